package server

import (
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// What follows is for the experimental tasks of revision 2025-11-25. They are tasks as those
// of the extension are, but that their clients ask for them. Requests about them are calls of
// their session, which answers them itself: package session, tasklegacy.go.

// startTask begins a call that is a task, or finds the one that the same request has begun
// before.
func (h *Handler) startTask(x *exchange, o *outcome) (err error) {
	if o.begun, err = h.begin(x.session, x.msgs, false, x.once); err != nil {
		return err
	}
	o.kind = outcomeTask
	o.body = o.session.TaskCreated(x.r.Context(), o.number, x.msgs[0].ID)
	return nil
}

// callOfTask makes a request that is to become a task, or is about one of another session. It
// reports whether a request is that.
func (m *mux) callOfTask(s *session.Session, msg *jsonrpc.Message, key string) bool {
	home, err := s.TaskHome(msg)
	switch {
	case err != nil:
		m.elsewhere([]jsonrpc.Message{*msg}, false, err)
	case home != s:
		m.callInHome(home, msg)
	case s.AsksForTask(msg):
		m.callTask(s, msg, key)
	default:
		return false
	}
	return true
}

// callTask is startTask on a connection that carries many exchanges.
func (m *mux) callTask(s *session.Session, msg *jsonrpc.Message, key string) {
	one := []jsonrpc.Message{*msg}
	got, err := m.h.begin(s, one, false, runOnce{key: key})
	if err != nil {
		m.elsewhere(one, false, err)
		return
	}
	m.queue.text(got.session.TaskCreated(m.client.values, got.number, msg.ID))
	if got.call != nil {
		got.call.Deliver(m.client.values, one, m.client.header)
	}
}

// callInHome makes a request about a task that is of another session on this node.
func (m *mux) callInHome(home *session.Session, msg *jsonrpc.Message) {
	one := []jsonrpc.Message{*msg}
	call, err := home.Begin(one, false)
	if err != nil {
		m.elsewhere(one, false, err)
		return
	}
	at, _ := cursorAfter(m.client.values, home, call.Number(), "")
	m.attach(home, at, msg)
	call.Deliver(m.client.values, one, m.client.header)
}
