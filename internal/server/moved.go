package server

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// What follows is for servers whose path has changed. What was begun at the old path goes on there; nothing else begins
// there.

type movedKey struct{}

// WithMoved returns a context for a request that came at a path where its server is no more: it is at another.
func WithMoved(ctx context.Context, to string) context.Context {
	return context.WithValue(ctx, movedKey{}, to)
}

// movedOn returns an error if an exchange begins something at a path where its server is no more: a session, or what
// needs one and names none. See [Handler.movedModern] for modern ones.
func (x *exchange) movedOn() error {
	if !x.opens() && (x.purpose != forMessages || x.secret != "" || x.session != nil) {
		return nil
	}
	if to, ok := x.r.Context().Value(movedKey{}).(string); ok {
		return &answering.Moved{To: to}
	}
	return nil
}

// movedModern is movedOn for a modern request. What belongs to a call that has begun goes on.
func (h *Handler) movedModern(x *exchange) error {
	to, ok := x.r.Context().Value(movedKey{}).(string)
	if !ok {
		return nil
	}
	m := &x.msgs[0]
	switch {
	case x.modern.Returns, slices.ContainsFunc(h.features, func(f Feature) bool { return f.Continues(m) }), m.Method == protocol.MethodResume:
		return nil
	case x.once.key != "" && h.sessions.BegunOnce(x.client(h.sessions), x.once.key):
		return nil
	}
	return &answering.Moved{To: to}
}

// SessionsNamed returns the names of the sessions that the header and the URL of a request name: as a rule one, or none.
func SessionsNamed(r *http.Request) (all []string) {
	add := func(name stream.SessionKey) { all = append(all, string(name)) }
	if id := r.Header[protocol.HeaderSession]; len(id) > 0 {
		add(whereabouts.KeyOf(id[0]))
	}
	if r.URL.RawQuery != "" {
		q := r.URL.Query()
		if id := q.Get(protocol.ParamSession); id != "" {
			add(whereabouts.KeyOf(id))
		}
		if name, _, ok := strings.Cut(q.Get(protocol.ParamStream), "."); ok {
			add(stream.SessionKey(name))
		}
	}
	if name, _, ok := strings.Cut(lastEventID(r), "."); ok {
		add(stream.SessionKey(name))
	}
	return all
}
