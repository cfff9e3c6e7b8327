package session

import "holdfast/jsonrpc"

// This file is for sessions that have ended and are kept for a time. If the client ends a session with heirs, these
// go on, and can be asked for as long as others. If the server ends it, the streams of its calls can still be read.

// ErrEnded is an [ErrNotFound] for a session that its client has ended, and that is kept for its heirs.
var ErrEnded error = wrapped{"its client has ended the session", ErrNotFound}

// ErrServerEnded is an [ErrEnded] for a session that its server has ended, and that is kept for the streams of its calls.
var ErrServerEnded error = wrapped{"its server has ended the session", ErrEnded}

type wrapped struct {
	text string
	err  error
}

func (e wrapped) Error() string { return e.text }
func (e wrapped) Unwrap() error { return e.err }

// lose ends a session that its server has ended, because of why. Its client has to begin another. The streams of its calls,
// if there are any, are kept as long as those of any call: the client may come back for them.
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

// leave ends a session, because of why, but not its heirs, which go on. All other calls end.
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
	for _, r := range open { // no client can answer these, nor those that come later
		r.link.refuse(jsonrpc.Message{ID: r.id, Method: r.method}, why.Error())
		r.call.client.answered()
	}
	for _, rq := range lost { // else the backend, which stays, would go on with them
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
