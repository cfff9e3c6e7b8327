package session

import (
	"context"
	"errors"
	"log/slog"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A link is one opening of the backend for a session. After the backend has ended by itself the session gets
// another link, and messages of the old link are dropped.
type link struct {
	s       *Session
	conn    backend.Conn      // nil until Open has returned
	over    bool              // guarded by s.mu
	why     error             // why the backend ended it; nil: it has not; guarded by s.mu
	held    int64             // bytes that the conversation is counted with; guarded by s.mu
	version uint64            // of the server, where there are many
	spoke   bool              // the backend has answered a request; guarded by s.mu
	replies []jsonrpc.Message // our own, to requests that the backend makes before it is open; guarded by s.mu
}

// deliver hands a message to the link's backend. The error is errEnded if the link is not open.
func (l *link) deliver(in backend.Inbound) error {
	l.s.mu.Lock()
	conn := l.conn
	if l.over {
		conn = nil
	}
	l.s.mu.Unlock()
	if conn == nil {
		return errEnded
	}
	return l.s.m.deliverTo(conn, in)
}

// unlink ends the link and closes its backend. l may be nil.
func (l *link) unlink() {
	if l == nil {
		return
	}
	l.s.mu.Lock()
	conn := l.finish()
	l.s.mu.Unlock()
	if conn != nil {
		l.s.m.closeBackend(conn)
	}
}

// finish ends a link. The first caller gets the backend's Conn, which it has to close; nil if the backend is
// not open yet. l may be nil; s.mu is held.
func (l *link) finish() backend.Conn {
	if l == nil || l.over {
		return nil
	}
	l.over = true
	if l.s.backend.link == l {
		l.s.backend.link = nil // the next delivery opens another
	}
	l.s.backend.own.endAll()
	if l.held != 0 {
		l.s.held.mustKeep(-l.held) // mustKeep only counts
		l.held = 0
	}
	if l.conn != nil {
		l.s.events.closed()
	}
	return l.conn
}

// ask makes a request of our own to the backend and waits for the answer, which no client sees. l may be nil.
func (l *link) ask(ctx context.Context, method string, params []byte, in backend.Inbound) (jsonrpc.Message, error) {
	if l == nil {
		return jsonrpc.Message{}, errEnded
	}
	s := l.s
	if s.modern != "" {
		params = modernParams(params, in.Params, s.modern)
	}
	s.mu.Lock()
	if l.conn == nil || l.over { // no goroutine would end a request that is added now
		s.mu.Unlock()
		return jsonrpc.Message{}, errEnded
	}
	id, answer := s.backend.own.add()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.backend.own.drop(id)
	}()
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, id, method, params))
	if err != nil {
		return m, err
	}
	if err := s.m.deliverTo(l.conn, backend.Inbound{Message: m, Context: in.Context, Header: in.Header}); err != nil {
		return m, err
	}
	select {
	case m, ok := <-answer:
		if !ok {
			return m, errEnded
		}
		return m, nil
	case <-ctx.Done():
		return m, ctx.Err()
	}
}

// Closed implements [backend.Sink].
func (l *link) Closed(why error, reopen bool) {
	s := l.s
	s.mu.Lock()
	if l.over {
		s.mu.Unlock()
		return
	}
	l.why = why
	conn := l.finish()
	lost := s.requests.takeIf(func(rq *inflight) bool { return rq.sent && !rq.ours || !reopen })
	s.asked.takeAll()
	s.mu.Unlock()
	l.logEnd(why, len(lost))
	start, begun := splitStart(lost, why)
	failAll(start, jsonrpc.Errorf(jsonrpc.CodeServer, "%v", why))
	failAll(begun, outcomeUnknown("%v", why))
	if !reopen {
		s.m.lose(s, why)
	}
	if conn != nil {
		s.m.closeBackend(conn)
	}
}

// logEnd logs that the session's server ended by itself, with the end of its stderr.
func (l *link) logEnd(why error, calls int) {
	s := l.s
	if none, ok := errors.AsType[*protocol.NoAnswer](why); ok {
		s.m.logger.Warn(none.ForOperator(), "session", s.Name(), "server", s.Server(), "calls", calls)
		return
	}
	attrs := []any{"session", s.Name(), "error", why, "calls", calls}
	var said interface{ Stderr() string }
	if errors.As(why, &said) && said.Stderr() != "" {
		attrs = append(attrs, "stderr", said.Stderr())
	}
	level := slog.LevelWarn
	if protocol.Logged(why) {
		level = slog.LevelDebug
	}
	s.m.logger.Log(context.Background(), level, "backend ended", attrs...)
}

// splitStart splits lost into the requests that only begin a conversation, and those that may have run. If
// why says that nothing has begun, all are of the first kind.
func splitStart(lost []*inflight, why error) (start, begun []*inflight) {
	var none interface{ NothingBegan() bool }
	if errors.As(why, &none) && none.NothingBegan() {
		return lost, nil
	}
	for _, rq := range lost {
		if protocol.Opens(rq.call.method) {
			start = append(start, rq)
		} else {
			begun = append(begun, rq)
		}
	}
	return start, begun
}

// whyEnded returns the error with which the backend has ended the link, or errEnded.
func (l *link) whyEnded() error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.why == nil {
		return errEnded
	}
	return l.why
}

// Account implements [budget.Accounted].
func (l *link) Account() budget.Account { return l }

// Arrive implements [budget.Account].
func (l *link) Arrive(done <-chan struct{}) *budget.Arrival {
	return l.s.m.opts.Flight.Arrive(l.s.tenant.name, done)
}

// Hold implements [budget.Account].
func (l *link) Hold(n int64) error {
	s, over := l.s, false
	hold := func(n int64) {
		if over = l.over; !over {
			l.held += n
		}
	}
	locked(s, func() { hold(n) })
	if over { // its bytes were given back
		if n < 0 {
			return nil
		}
		return errEnded
	}
	err := s.held.keep(n)
	if err == nil {
		return nil
	}
	locked(s, func() { hold(-n) })
	if over { // finish has given back bytes that were not counted
		s.held.mustKeep(n)
	}
	return err
}
