package session

import (
	"context"
	"errors"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file bounds how long a client waits for a backend that hangs before it has begun. Requests that begin a
// conversation have no effects, so they can be answered with a plain error: their outcome is not unknown.

// boundOpening makes a request that begins a conversation fail if the backend does not answer it in time.
func (rq *inflight) boundOpening(method string) {
	t := rq.call.s.m.work.After(openTimeout, func() { rq.openInVain(method) })
	rq.stop = func() { t.Stop() }
}

// openInVain answers a request that begins a conversation with an error, if it is in flight. A conversation with nothing else in
// flight, in which the backend never answered, is closed too: the next request opens another. If other clients of a carrier have
// requests in flight in it, its server may still be at work.
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
	if opened { // else the goroutine that opens it logs that
		l.logEnd(why, 1)
	}
	rq.fail(jsonrpc.Errorf(jsonrpc.CodeServer, "%v", why))
	switch {
	case conn != nil:
		s.m.closeBackend(conn)
	case rq.sent && method != protocol.MethodInitialize: // initialize must not be cancelled (2025-11-25, Cancellation)
		l.tellCancelled(rq, nil, "timeout")
	}
}

// inVain turns an error of an opening that took too long into a [protocol.NoAnswer], and returns others as they are. method is
// the request that began the conversation; "": the backend was not open yet.
func (l *link) inVain(method string, err error) error {
	var known *protocol.NoAnswer
	if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &known) {
		return err
	}
	why := &protocol.NoAnswer{Server: l.s.Server(), Method: method, Within: openTimeout}
	l.logEnd(why, 0)
	return why
}

// A vainOpening is an opening that has failed before the request began for which the backend was opened (see awaitOffer): the request gets the
// error, and the backend is not opened for it a second time.
type vainOpening struct {
	id  string        // of the request
	err error         // of the opening
	at  time.Duration // when it failed, by the manager's clock
}

// inVainFor bounds how long after such an opening the request gets its error: one that had to wait for its turn may find a backend that starts.
const inVainFor = 5 * time.Second

// takeInVain returns the error of the opening that has failed for a request; nil: there was none, or the request has it already. s.mu is held.
func (s *Session) takeInVain(in *backend.Inbound) error {
	v := s.backend.inVain
	if v == nil || in.Call == nil || v.id != string(in.ID) {
		return nil
	}
	s.backend.inVain = nil
	if s.m.clock()-v.at > inVainFor {
		return nil
	}
	return v.err
}
