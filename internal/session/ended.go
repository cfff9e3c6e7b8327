package session

import "holdfast/jsonrpc"

// What follows is for a session that ends, and is kept for a time: its client ends it, and it has heirs, which
// go on and can be asked for as long as others; or its server ends it, and what its calls have said can be read yet.

// ErrEnded is an [ErrNotFound] for a session that its client has ended, and that is here for the
// heirs in it.
var ErrEnded error = wrapped{"its client has ended the session", ErrNotFound}

// ErrServerEnded is an [ErrEnded] for a session that its server has ended, and that is here for what calls in it have said.
var ErrServerEnded error = wrapped{"its server has ended the session", ErrEnded}

type wrapped struct {
	text string
	err  error
}

func (e wrapped) Error() string { return e.text }
func (e wrapped) Unwrap() error { return e.err }

// lose is the end of a session, because of why, that its server has ended. Its client is to begin another. What calls in it
// have said can be read as long as that of any call: the client may have yet to come back for it.
func (m *Manager) lose(s *Session, why error) {
	if s.streams.Last() == 0 || m.opts.Stateless {
		m.end(s, why)
		return
	}
	s.use.hold(m.KeepEnded())
	s.use.lost.Store(true)
	m.leave(s, why)
	m.carriers.forget(s.carrier)
}

// leave is the end of a session, because of why, where heirs go on. All other calls end.
func (m *Manager) leave(s *Session, why error) {
	s.mu.Lock()
	if s.isClosed() || s.use.left.Swap(true) {
		s.mu.Unlock()
		return
	}
	lost := s.requests.takeIf(func(rq *inflight) bool { return !rq.call.isHeir() })
	s.waiting.stop(ErrEnded)
	open := s.asked.takeAll()
	l := s.backend.link
	s.mu.Unlock()
	failAll(lost, outcomeUnknown("the session ended: %v", why))
	for _, r := range open { // as those that are asked from now on: nobody can answer
		r.link.refuse(jsonrpc.Message{ID: r.id, Method: r.method}, why.Error())
		r.call.client.answered()
	}
	for _, rq := range lost { // or the backend, which stays, would go on with them
		if rq.sent && !rq.ours {
			l.tellCancelled(rq, nil, why.Error())
		}
	}
	s.streams.CloseStandalone()
	if m.shared != nil {
		s.noteSession(nil, true)
		s.log.Flush()
	}
}
