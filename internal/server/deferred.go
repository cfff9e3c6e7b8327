package server

import (
	"context"
	"encoding/json"
	"errors"

	"holdfast/internal/caller"
	"holdfast/internal/limit"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for deferred calls: the experimental tasks of revision 2025-11-25. Their clients
// ask for that. Requests about them are calls of their session, which answers them itself: package
// session, service.go.

// startDeferred begins a call that is deferred, or finds the one that the same request has begun
// before.
func (h *Handler) startDeferred(x *exchange, o *outcome) (err error) {
	if o.begun, err = h.begin(x.session, x.msgs, false, x.once, h.origin(x)); err != nil {
		if o.begun, err = h.beginInTurn(x, x.msgs, false, err); err != nil {
			return err
		}
	}
	o.kind = outcomeDeferred
	o.body = o.session.Deferral(x.r.Context(), o.number, &x.msgs[0])
	return nil
}

// callBesides makes a request whose call is to be deferred, or is about one of another session. It
// reports whether a request is that.
func (m *mux) callBesides(s *session.Session, msg *jsonrpc.Message, key string, pass *limit.Pass) bool {
	home, err := s.Home(msg)
	switch {
	case err != nil:
		m.elsewhere([]jsonrpc.Message{*msg}, false, err)
	case home != s:
		m.callInHome(home, msg)
	case s.Defers(msg):
		m.callDeferred(s, msg, key, pass)
	default:
		return false
	}
	return true
}

// callDeferred is startDeferred on a connection that carries many exchanges.
func (m *mux) callDeferred(s *session.Session, msg *jsonrpc.Message, key string, pass *limit.Pass) {
	one := []jsonrpc.Message{*msg}
	got, err := m.h.begin(s, one, false, runOnce{key: key}, m.origin(pass))
	if err != nil {
		if !errors.Is(err, session.ErrCancelled) && !m.callInTurn(s, one, false, err) {
			m.elsewhere(one, false, err)
		}
		return
	}
	m.queue.text(got.session.Deferral(m.client.values, got.number, msg))
	if got.call != nil {
		got.call.Deliver(m.client.values, one, m.client.header)
	}
}

// mayGoAbroad reports whether the exchange may be about a task of another session than its client's.
func (x *exchange) mayGoAbroad() bool {
	return x.purpose == forMessages && len(x.msgs) == 1 && session.MayGoAbroad(&x.msgs[0])
}

// ownSession returns the session of the client of an exchange that may be about a task, or "".
func (x *exchange) ownSession() stream.SessionKey {
	switch {
	case x.from != nil:
		return stream.SessionKey(x.from.Own)
	case x.mine != "":
		return x.mine
	}
	return x.name()
}

// guest returns that session if the exchange is about a task of another one, in which it is served.
func (x *exchange) guest() stream.SessionKey {
	if !x.mayGoAbroad() {
		return ""
	}
	if own := x.ownSession(); own != stream.SessionKey(x.session.Name()) {
		return own
	}
	return ""
}

// callInHome makes a request about a task that is of another session on this node.
func (m *mux) callInHome(home *session.Session, msg *jsonrpc.Message) {
	one := []jsonrpc.Message{*msg}
	from := m.origin(nil)
	from.Guest = m.key
	call, err := home.Begin(one, false, from)
	if err != nil {
		m.elsewhere(one, false, err)
		return
	}
	at, _ := cursorAfter(m.client.values, home, call.Number(), "")
	m.attach(home, at, msg)
	call.Deliver(m.client.values, one, m.client.header)
}

// methodList is the method by which one node asks another for the tasks of a principal. No
// client can.
const methodList = "holdfast/tasks"

// List implements [session.Elsewhere].
func (e elsewhere) List(ctx context.Context, principal caller.Principal, after stream.SessionKey, query []byte) ([]json.RawMessage, session.Range, error) {
	x, err := e.request(ctx, principal, methodList, query)
	if err != nil {
		return nil, session.Range{}, err
	}
	return e.h.everywhere(x, after)
}

// startList answers such a request.
func (h *Handler) startList(x *exchange, o *outcome) error {
	var in session.Range
	if x.from.Local != nil {
		in = *x.from.Local
	}
	m := &x.msgs[0]
	o.kind = outcomeAnswer
	o.body = jsonrpc.AppendResult(nil, m.ID, h.sessions.ListHere(x.r.Context(), x.principal, in, m.Params))
	return nil
}
