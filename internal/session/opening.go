package session

import (
	"context"
	"errors"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows bounds how long a client waits for a backend that hangs before it has begun. What begins a conversation
// does nothing, so it can be answered with an error that does not leave open what has happened.

// boundOpening has a request that begins a conversation answered with an error, if the backend has not answered it in time.
func (rq *inflight) boundOpening(method string) {
	t := rq.call.s.m.work.After(openTimeout, func() { rq.openInVain(method) })
	rq.stop = func() { t.Stop() }
}

// openInVain answers a request that begins a conversation with an error, if it is in flight. A conversation in which nothing else is in
// flight and nothing was ever answered is closed with it: the next request opens another. That other clients of a carrier
// have requests in it says that its server may still be at work.
func (rq *inflight) openInVain(method string) {
	s := rq.call.s
	why := &protocol.NoAnswer{Server: s.Server(), Method: method, Within: openTimeout}
	s.mu.Lock()
	if s.requests.take([]byte(rq.id), rq.call) == nil {
		s.mu.Unlock()
		return
	}
	l := s.backend.link
	opened := l != nil && l.conn != nil
	var conn backend.Conn
	if opened && s.requests.len() == 0 && !l.spoke {
		l.why = why
		conn = l.finish()
		s.asked.takeAll()
	}
	s.mu.Unlock()
	if opened { // else that is told of where it is opened
		l.logEnd(why, 1)
	}
	rq.fail(jsonrpc.Errorf(jsonrpc.CodeServer, "%v", why))
	switch {
	case conn != nil:
		s.m.closeBackend(conn)
	case rq.sent && method != protocol.MethodInitialize: // which must not be cancelled (2025-11-25, Cancellation)
		l.tellCancelled(rq, nil, "timeout")
	}
}

// inVain returns an error of an opening that has taken too long as one that says so; another stays as it is. method is what the
// backend was begun with; "": it was to be opened.
func (l *link) inVain(method string, err error) error {
	var known *protocol.NoAnswer
	if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &known) {
		return err
	}
	why := &protocol.NoAnswer{Server: l.s.Server(), Method: method, Within: openTimeout}
	l.logEnd(why, 0)
	return why
}
