package server

import (
	"errors"

	"holdfast/internal/limit"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for calls that go on when their requests were answered, and for requests about them, which may be served in
// another session than their client's. They are the experimental tasks of revision 2025-11-25 (package legacytask), which package
// session knows as a service.

// startAnswered begins a call whose request is answered at once, or finds the one that the same request has begun
// before.
func (h *Handler) startAnswered(x *exchange, o *outcome) (err error) {
	if o.begun, err = h.starter.start(x, x.msgs, false); err != nil {
		return err
	}
	o.kind = outcomeBegun
	o.body = o.session.Deferral(x.r.Context(), o.number, &x.msgs[0])
	return nil
}

// callOfHome makes a request that is answered at once, or is for another session than the connection's. It
// reports whether a request is that.
func (m *mux) callOfHome(s *session.Session, msg *jsonrpc.Message, key string, pass *limit.Pass) bool {
	home, defers, err := s.Home(msg)
	switch {
	case err != nil:
		m.elsewhere([]jsonrpc.Message{*msg}, false, err)
	case home != s:
		m.callInHome(home, msg)
	case defers:
		m.callAnswered(s, msg, key, pass)
	default:
		return false
	}
	return true
}

// callAnswered is startAnswered on a connection that carries many exchanges.
func (m *mux) callAnswered(s *session.Session, msg *jsonrpc.Message, key string, pass *limit.Pass) {
	one := []jsonrpc.Message{*msg}
	got, err := begin(s, one, false, runOnce{key: key}, m.origin(pass))
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

// mayBeGuest reports whether the exchange may be for another session than its client's.
func (x *exchange) mayBeGuest(sessions *session.Manager) bool {
	return x.purpose == forMessages && len(x.msgs) == 1 && session.MayGoAbroad(sessions, &x.msgs[0])
}

// ownSession returns the session of the client of an exchange that may be a guest, or "".
func (x *exchange) ownSession() stream.SessionKey {
	switch {
	case x.from != nil:
		return stream.SessionKey(x.from.Own)
	case x.mine != "":
		return x.mine
	}
	return x.name()
}

// guest returns that session if the exchange is for another one, in which it is served.
func (x *exchange) guest(sessions *session.Manager) stream.SessionKey {
	if !x.mayBeGuest(sessions) {
		return ""
	}
	if own := x.ownSession(); own != stream.SessionKey(x.session.Name()) {
		return own
	}
	return ""
}

// callInHome makes a request that is for another session on this node.
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
