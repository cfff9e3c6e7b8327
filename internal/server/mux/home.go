package mux

import (
	"errors"

	"holdfast/internal/limit"
	"holdfast/internal/server/copying"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// What follows is for calls that go on when their requests were answered, and for requests about them, which may be served in
// another session than the connection's.

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

// callAnswered begins a call whose request is answered at once, or finds the one that the same request has begun before.
func (m *mux) callAnswered(s *session.Session, msg *jsonrpc.Message, key string, pass *limit.Pass) {
	one := []jsonrpc.Message{*msg}
	got, err := exchange.Begin(s, one, false, exchange.Once{Key: key}, m.origin(pass))
	if err != nil {
		if !errors.Is(err, session.ErrCancelled) && !m.callInTurn(s, one, false, err) {
			m.elsewhere(one, false, err)
		}
		return
	}
	m.queue.text(got.Session.Deferral(m.client.values, got.Number, msg))
	if got.Call != nil {
		got.Call.Deliver(m.client.values, one, m.client.header)
	}
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
	at, _ := copying.CursorAfter(m.client.values, home, call.Number(), "")
	m.attach(home, at, msg)
	call.Deliver(m.client.values, one, m.client.header)
}
