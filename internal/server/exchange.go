package server

import (
	"errors"
	"net/http"
	"strings"

	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/modernfront"
	"holdfast/internal/server/websocket"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// endpoint serves one request at the endpoint. Its Host and Origin were checked.
func (h *Handler) endpoint(w http.ResponseWriter, r *http.Request) {
	x := exchange.Exchange{HTTP: r, From: h.callers.visit(r)}
	if h.decode(w, &x) {
		h.serve(w, &x)
	}
}

// decode decodes a request at the endpoint. If it returns false, the request was answered.
//
//go:noinline
func (h *Handler) decode(w http.ResponseWriter, x *exchange.Exchange) bool {
	r := x.HTTP
	switch {
	case r.Method == http.MethodGet && !h.opts.Stateless && websocket.IsUpgrade(r):
		return h.decodeGet(w, x)
	case r.Method != http.MethodPost && modern.IsHeader(r) && h.opts.Eras == modernfront.ErasLegacy:
		h.answers.Reject(w, http.StatusBadRequest, modern.Unsupported(protocol.V20260728, protocol.Supported()))
		return false
	case r.Method != http.MethodPost && modern.IsHeader(r):
		w.Header().Set("Allow", "POST, OPTIONS")
		h.answers.Reject(w, http.StatusMethodNotAllowed, errf(codeInvalid, "protocol revision %s has POST only", protocol.V20260728))
		return false
	case r.Method != http.MethodPost && h.opts.Eras.RefusesLegacy() && x.From == nil: // these methods need sessions
	case r.Method == http.MethodPost && r.URL.RawQuery != "" && streamParam(r) != "":
		return h.decodeAnswers(w, x)
	case r.Method == http.MethodPost:
		return h.decodePost(w, x)
	case r.Method == http.MethodGet && !h.opts.Stateless:
		return h.decodeGet(w, x)
	case r.Method == http.MethodDelete && !h.opts.Stateless:
		x.Purpose = exchange.ForEnd
		return h.identify(w, x)
	}
	w.Header().Set("Allow", h.allow())
	h.answers.Reject(w, http.StatusMethodNotAllowed, errf(codeInvalid, "method %s is not allowed here", r.Method))
	return false
}

// serve serves an exchange: on this node if its session is here, without a look-up
// elsewhere; else where placement finds the session.
func (h *Handler) serve(w http.ResponseWriter, x *exchange.Exchange) {
	err := movedOn(x)
	if err != nil {
		h.answers.FailMessages(w, err, x.Msgs, x.Batch)
		return
	}
	if x.Purpose == exchange.ForModern {
		err = h.modern.Serve(w, x)
	} else if x.Opens() {
		err = h.serveNew(w, x)
		for moves := 0; x.Purpose == exchange.ForSession && errors.Is(err, session.ErrMoved) && moves < placement.MostMoves; moves++ {
			err = h.serveNew(w, x) // no client knows the session that has left: a new one begins, here or on another node
		}
	} else if err = h.find(x); err == nil {
		err = h.serveIn(w, x)
		for moves := 0; errors.Is(err, session.ErrMoved) && !h.sessions.Shared() && x.Names() && moves < placement.MostMoves; moves++ {
			if err = h.find(x); err == nil { // the session has just fallen asleep, and wakes
				err = h.serveIn(w, x)
			}
		}
	}
	if err != nil {
		h.place(w, x, err)
	}
}

// errUnnamed says that a request has to name its session.
var errUnnamed = errf(codeInvalid,
	"missing Mcp-Session-Id header: start with an initialize request and send the id that its response carries")

// find finds the session of an exchange on this node. The error is placement.ErrNotHere if it may be
// on another node.
//
//go:noinline
func (h *Handler) find(x *exchange.Exchange) (err error) {
	switch {
	case x.Purpose == exchange.ForNamed:
		return nil
	case x.Purpose == exchange.ForRequest:
		if x.Secret != "" && !exchange.IsBetweenNodes(x.Msgs[0].Method) {
			x.Session, _ = h.sessions.Find(x.Secret, x.Principal) // a session that is gone has no requests to list
		}
		return nil
	case x.Ref != "":
		x.Session, err = h.sessions.FindName(string(x.Name()), x.Principal)
	case x.Secret != "" && x.Purpose == exchange.ForRead && x.Last != "":
		x.Session, err = h.sessions.FindToRead(x.Secret, x.Principal)
	case x.Secret != "":
		x.Session, err = h.sessions.Find(x.Secret, x.Principal)
	case x.Session == nil:
		return errUnnamed
	}
	if errors.Is(err, session.ErrEnded) {
		return err
	}
	if err != nil && !h.sessions.Shared() && x.Names() {
		x.Session, err = h.revive(x)
		if err != nil && !errors.Is(err, session.ErrNotFound) {
			return err
		}
	}
	if err != nil {
		return placement.ErrNotHere
	}
	if x.Ref == "" && x.Session.Streams().Unconfirmed() && !x.Pair() && h.watched.At(x.HTTP) != nil {
		x.Session.Streams().ConfirmArrival(x.HTTP.RemoteAddr)
	}
	return nil
}

// revive revives the session of an exchange, which no node has any more.
func (h *Handler) revive(x *exchange.Exchange) (*session.Session, error) {
	return h.sessions.Revive(x.Values(), x.Secret, x.Principal, x.HTTP, versionOf(x.HTTP))
}

// versionOf returns the protocol revision in a request's header, or "".
func versionOf(r *http.Request) string {
	if v := r.Header[protocol.HeaderVersion]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// open begins a session for an exchange. The error is ErrClosing while the node is drained, and
// on a door.
func (h *Handler) open(x *exchange.Exchange) (err error) {
	if h.life.TakesNothing() && !h.opts.Stateless {
		return h.life.NotHere()
	}
	if x.Purpose == exchange.ForSession {
		var params []byte // of initialize, if that is the request
		if !h.opts.Stateless && len(x.Msgs) == 1 {
			params = x.Msgs[0].Params
		}
		x.Session, err = h.sessions.New(x.HTTP, x.Principal, false, params)
		return err
	}
	x.Session, err = h.sessions.Reserve(x.HTTP, x.Principal, x.Pair()) // the session's backend is opened for its initialize request
	return err
}

// The following is for servers that have moved to another path. Sessions and calls that began at the old path go on
// there; none begins there.

// movedOn returns an error if an exchange at a server's old path begins a session, or needs one and names none.
// Package modernfront checks modern exchanges.
func movedOn(x *exchange.Exchange) error {
	if !x.Opens() && (x.Purpose != exchange.ForMessages || x.Secret != "" || x.Session != nil) {
		return nil
	}
	return exchange.Moved(x.HTTP.Context())
}

// SessionsNamed returns the names of the sessions that the header and the URL of a request name: as a rule one or none.
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
