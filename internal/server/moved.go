package server

import (
	"net/http"
	"slices"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// What follows is for servers whose path has changed. What was begun at the old path goes on there; nothing else begins
// there.

// movedOn returns an error if an exchange begins something at a path where its server is no more: a session, or what
// needs one and names none. See [Handler.movedModern] for modern ones.
func movedOn(x *exchange.Exchange) error {
	if !x.Opens() && (x.Purpose != exchange.ForMessages || x.Secret != "" || x.Session != nil) {
		return nil
	}
	return exchange.Moved(x.HTTP.Context())
}

// movedModern is movedOn for a modern request. What belongs to a call that has begun goes on.
func (h *Handler) movedModern(x *exchange.Exchange) error {
	err, m := exchange.Moved(x.HTTP.Context()), &x.Msgs[0]
	switch {
	case err == nil:
	case x.Modern.Returns, slices.ContainsFunc(h.features, func(f Feature) bool { return f.Continues(m) }), m.Method == protocol.MethodResume:
		return nil
	case x.Once.Key != "" && h.sessions.BegunOnce(x.Client(h.sessions), x.Once.Key):
		return nil
	}
	return err
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
	if name, _, ok := strings.Cut(exchange.LastEventID(r), "."); ok {
		add(stream.SessionKey(name))
	}
	return all
}
