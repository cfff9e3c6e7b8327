package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/processes"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A conversation is a session's state towards its backend: the open link, and the messages and settings that
// the next link begins with. Guarded by Session.mu. It is
//
//	reserved  while first is set: it is opened for the client's initialize, and not before
//	opening   while opening is not nil
//	open      while link is not nil
//	closed    else: the next message opens it again
type conversation struct {
	link    *link
	opening chan struct{} // closed when the backend is open, or could not be opened
	first   *http.Request // the request that began the session

	initialize  []byte // the raw request
	refused     error  // how the backend has refused initialize: a [protocol.Unauthorized], or nil
	initialized bool   // the client has sent notifications/initialized
	stateful    bool   // the backend may have state that a new one would not have: see leavesState
	own         ownRequests
	settings    settings
	unsure      []string     // tools that were called before the backend's list of tools was known
	noted       []byte       // the [sleepNote] that the store has, or nil
	inVain      *vainOpening // the last opening before a request began, or nil
}

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

// openTimeout bounds how long a backend may take to be opened, and to answer its first request: the client's
// or, when it is opened again, the stored one.
const openTimeout = protocol.OpensWithin

// open opens the backend for a new session.
func (s *Session) open(ctx context.Context, r *http.Request) error {
	place, err := s.m.processes.Take(ctx, processOwner{s}, placeWait, false)
	if err != nil {
		return err
	}
	_, err = s.connect(ctx, r, place)
	return err
}

// connect opens the backend for the session. place is the one that was taken for its process; nil: it needs none.
func (s *Session) connect(ctx context.Context, r *http.Request, place *processes.Place) (*link, error) {
	if !s.m.work.Start() {
		place.Free()
		return nil, ErrClosing
	}
	l := &link{s: s}
	if s.m.many != nil {
		l.version, _ = s.m.many.Server(s.Server(), s.modern != "")
	}
	s.mu.Lock()
	s.backend.link = l
	s.mu.Unlock()
	began := time.Now()
	ctx, stop := context.WithTimeout(ctx, openTimeout)
	defer stop()
	conn, err := s.m.openBackend(ctx, backend.Start{Session: s.Name(), Secret: s.id, Server: s.Server(), Revision: s.modern, HTTP: r}, l)
	s.events.opened(began, err)
	if err != nil {
		place.Free()
		s.m.work.Done()
		return l, fmt.Errorf("%w: %w", ErrRefused, l.inVain("", err))
	}
	if place != nil {
		conn = &placed{conn, place}
		place.Opened()
	}
	s.mu.Lock()
	l.conn = conn
	s.backend.first = nil
	ended := l.over || s.isClosed()
	l.over = ended
	replies := l.replies
	l.replies = nil
	s.mu.Unlock()
	if ended { // while the backend was opened
		s.events.closed()
		s.m.closeBackend(conn)
		return l, fmt.Errorf("%w: %w", ErrRefused, l.whyEnded())
	}
	for _, m := range replies {
		l.replyNow(m)
	}
	return l, nil
}

// deliver hands a message to the backend, which it opens again if that has ended.
func (s *Session) deliver(ctx context.Context, in backend.Inbound) error {
	for range 4 { // a backend that ends again and again is given up
		s.mu.Lock()
		if s.isClosed() || s.use.lost.Load() {
			s.mu.Unlock()
			return s.goneError()
		}
		if s.backend.first != nil && in.Method != protocol.MethodInitialize {
			s.mu.Unlock()
			return errNotInitialized
		}
		l, opening := s.backend.link, s.backend.opening
		if l != nil && opening == nil {
			rq, begun := s.requests.deliver(&in)
			rq.keepListen(&in)
			s.backend.stateful = s.backend.stateful || leavesState(&in)
			var sets, changes bool
			if begun {
				sets, changes = s.backend.settings.take(&in.Message)
			}
			if begun && !sets && !s.use.lasts.Load() && leavesMore(s, &in) {
				s.use.lasts.Store(true)
			}
			s.mu.Unlock()
			if !begun {
				return nil
			}
			if changes && s.m.shared != nil { // the next owner opens a server, too
				s.noteSettings()
			}
			return s.m.deliverTo(l.conn, in)
		}
		s.mu.Unlock()
		if err := s.awaitOpen(ctx, in); err != nil {
			return err
		}
	}
	return errEnded
}

// awaitOpen opens the backend again for a message, if it is closed, or waits until another goroutine has opened it. The error is that of the
// opening, or ctx's.
func (s *Session) awaitOpen(ctx context.Context, in backend.Inbound) error {
	s.mu.Lock()
	if opening := s.backend.opening; opening != nil {
		s.mu.Unlock()
		select {
		case <-opening:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.backend.link != nil || s.isClosed() {
		s.mu.Unlock()
		return nil
	}
	if err := s.takeInVain(&in); err != nil {
		s.mu.Unlock()
		return err
	}
	opening := make(chan struct{})
	s.backend.opening = opening
	s.mu.Unlock()
	err := s.reopen(ctx, in)
	s.mu.Lock()
	s.backend.opening = nil
	close(opening)
	s.mu.Unlock()
	if err == nil {
		s.learnAgain(in)
	}
	return err
}

// Refusal returns the [protocol.Unauthorized] with which the backend has refused the client's
// initialize, or nil.
func (s *Session) Refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backend.refused
}

// noteRefusal notes that the backend has refused the client's initialize, or a modern request: modern clients send no initialize.
func (c *Call) noteRefusal(m *jsonrpc.Message, err error) {
	var refused *protocol.Unauthorized
	if c.s.modern != "" {
		c.Refused(err)
	} else if m.Method == protocol.MethodInitialize && errors.As(err, &refused) {
		locked(c.s, func() { c.s.backend.refused = refused })
	}
}

// Refused notes that the backend's server has refused the client of the call, if err is a
// [protocol.Unauthorized]: nothing of the call has run. A backend calls it before it answers the request. The
// client may make the request again, under the same idempotency key, with another token.
func (c *Call) Refused(err error) {
	var refused *protocol.Unauthorized
	if !errors.As(err, &refused) {
		return
	}
	c.mu.Lock()
	if !c.IsOver() {
		c.refused = refused
	}
	c.mu.Unlock()
	c.NotTaken()
}

// NotTaken notes that no server has taken the request of the call, and none will: its client may make it
// again under the same idempotency key. A backend calls it before it answers the request.
func (c *Call) NotTaken() {
	if !c.IsOver() {
		c.disown()
	}
}

// MayRefuse reports whether the server may refuse one of the messages of r, because it gets the client's token.
func (m *Manager) MayRefuse(r *http.Request, msgs []jsonrpc.Message) bool {
	b, ok := m.backend.(authorizationTaker)
	if !ok {
		return false
	}
	if b, ok := m.backend.(refuser); ok {
		return slices.ContainsFunc(msgs, func(one jsonrpc.Message) bool { return b.MayRefuse(r, &one) })
	}
	takes, _ := b.TakesAuthorization(r)
	return takes
}

// Refusal returns the [protocol.Unauthorized] with which the backend has refused the call, or
// nil.
func (c *Call) Refusal() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

// leavesState reports whether a message may leave state in the backend's memory that a new backend of the
// session would not have. Calls that are made again after a take-over do not count: they may run any number
// of times, and older state was lost then.
func leavesState(in *backend.Inbound) bool {
	if in.Method == protocol.MethodInitialize || in.Method == protocol.MethodInitialized {
		return false
	}
	c := callOf(in)
	return !c.Repeated()
}

// errNotInitialized refuses messages before the initialize request.
var errNotInitialized = errors.New("the session is not initialized")

// reopen gives the session a new backend in the state that the client expects: it sends the stored initialize
// again, and the client's settings. The client does not see the answers.
func (s *Session) reopen(ctx context.Context, in backend.Inbound) error {
	wait := placeWait
	switch c := callOf(&in); {
	case c.Repeated():
		wait = placeAgainWait
	case c != nil:
		wait = processes.Patience
	}
	place, err := s.m.processes.Take(context.WithoutCancel(ctx), processOwner{s}, wait, in.Call != nil)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), openTimeout)
	defer stop()
	r := (&http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: in.Header}).WithContext(ctx)
	s.mu.Lock()
	if s.backend.first != nil {
		r = s.backend.first
	}
	s.mu.Unlock()
	l, err := s.connect(ctx, r, place)
	if err != nil {
		l.unlink()
		return err
	}
	s.mu.Lock()
	raw, ready, set := s.backend.initialize, s.backend.initialized, s.backend.settings.requests()
	s.mu.Unlock()
	if raw == nil || in.Method == protocol.MethodInitialize {
		return nil
	}
	init, err := jsonrpc.Parse(append([]byte(nil), raw...))
	if err != nil {
		return err
	}
	reply, err := l.ask(ctx, init.Method, init.Params, in)
	if err == nil && reply.Error != nil {
		err = fmt.Errorf("initialize failed: %s", reply.Error)
	}
	if errors.Is(err, errEnded) {
		err = l.whyEnded()
	}
	if err != nil {
		l.unlink()
		return fmt.Errorf("server did not start again: %w", l.inVain(init.Method, err))
	}
	defer s.answeredAgain(reply.Result)
	if ready {
		err = s.m.deliverTo(l.conn, backend.Inbound{Message: initialized, Context: in.Context, Header: in.Header})
	}
	if err != nil && !panicked(err) { // a server takes no requests before that
		l.unlink()
		return fmt.Errorf("server did not start again: %w", err)
	}
	if err == nil {
		l.setAgain(ctx, set, in)
	}
	return err
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

var errEnded = errors.New("the server ended")

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
