// Package session holds sessions and their calls: their lives, the requests in
// flight in them, and the streams that messages of the backend belong to.
//
// A message of a backend goes one way: [backend.Sink] finds its call, the call appends it
// to the store, and a [reading.Reader] reads it there. The only other way from a backend to a
// client is the response of a light call, which its one waiter takes from memory.
//
// The tables in state.go and redelivery.go have the states of sessions and calls, and all transitions.
//
// Locks, in the order in which they may be taken: Session.mu, that of Session.requests, Call.mu, then those of Session.asked, offering and held, that of untold outcomes, that of
// the log, turns.mu, that of resumable requests, that of watched calls, roster.mu or that of processes; carriers.mu and that of [handover.Work] after that, and those of the
// streams and of Session.Tools last. Of two calls' locks the standalone stream's comes second. Those of a call's clientWait and pace come after its own. None is held while the
// store or the backend is called.
package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"holdfast/backend"
	"holdfast/internal/deferred"
	"holdfast/internal/feature/resume"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/handover"
	"holdfast/internal/journal"
	"holdfast/internal/limit"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/spans"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// Errors that a transport branches on.
var (
	// ErrNotFound stands for a session that does not exist, has ended, or is
	// another principal's: clients are not told which.
	ErrNotFound = errors.New("session not found")
	// ErrMoved stands for a session that has left this node just now: it has to be
	// located again ([Manager.Locate]).
	ErrMoved = reading.ErrMoved
	// ErrDuplicate refuses a request with the id of one in flight in its session.
	ErrDuplicate = errors.New("a request with this id is in flight in this session")
	// ErrBusy refuses sessions and requests over a limit, for now.
	ErrBusy = errors.New("too much is in flight")
	// ErrNotDelivered wraps a backend's refusal to take a message, which may be sent
	// again.
	ErrNotDelivered = errors.New("the server did not take the message")
	// ErrClosing refuses sessions and requests while the node is shutting down.
	ErrClosing = handover.ErrClosing
	// ErrRefused wraps a backend's refusal to open a session.
	ErrRefused = errors.New("the server refused the session")
)

// A Session is one client's conversation with one backend. Its methods may be
// called concurrently.
//
// It has more than fifteen fields as it is where its parts meet; each part keeps its own
// rules.
type Session struct {
	identity
	sessionLife // see [sessionState]
	tenure
	m      *Manager
	events events
	use    usage
	Tools  tools.List // of its server
	held   holding

	standalone *Call // its stream carries the messages that belong to no call
	streams    reading.Streams
	log        journal.Log[*Call]
	keyed      atomic.Bool                    // calls were made under idempotency keys
	offers     atomic.Uint32                  // the services that are offered to its clients: the bit 1<<i for Manager.services[i]
	ids        atomic.Uint64                  // that were given to requests of a carrier
	resumes    atomic.Pointer[resume.Session] // nil but for clients of SEP-975
	Watched    deferred.Calls
	untold     *webhook.Session // outcomes that webhooks may have to be told; nil if there are none

	requests requests       // in flight
	asked    serverRequests // of its server
	abroad   abroad         // requests of its client that wait in other sessions
	offering offering       // the lists that its server offers
	// settingsNote has the client's settings noted in a store that nodes share.
	settingsNote settingsNote

	mu           sync.Mutex
	revision     string
	lateProgress bool     // an ended call has become a task of the backend, so its progress goes on
	noted        uint64   // how far the standalone stream was told, as the store knows
	rung         []uint64 // streams of calls with outcomes that webhooks were told, as the session's note says
	patience     patience
	waiting      turns // requests that wait for a limit, by the key of their id
	backend      conversation

	relisted struct{ after, through uint64 } // the entries of the standalone stream that [relist] has added; guarded by its call's lock
}

// Revision returns the protocol revision that initialize settled on, or ""
// before that.
func (s *Session) Revision() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// locked does something with the session's lock held.
func locked(s *Session, do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// Touch notes that the client has sent something, so that the session does not expire.
func (s *Session) Touch() { s.use.touch() }

// Busy reports whether requests are in flight.
func (s *Session) Busy() bool { return s.use.calls.Load() > 0 }

// Begin opens a call for the requests among msgs. A light call is held in
// memory until it says something else than its responses. from says where msgs come from: one Origin at most.
//
// The errors are [ErrDuplicate], [ErrCancelled], [ErrBusy], [ErrClosing], [ErrNotFound],
// [ErrMoved], a [*limit.Refusal], and that of a store which does not take the call's note.
func (s *Session) Begin(msgs []jsonrpc.Message, light bool, from ...Origin) (*Call, error) {
	c := &Call{s: s}
	if err := s.start(c, msgs, light, from); err != nil {
		return nil, err
	}
	return c, nil
}

// start admits a new call and puts it on record.
func (s *Session) start(c *Call, msgs []jsonrpc.Message, light bool, from []Origin) error {
	n := int32(0)
	for range protocol.Requests(msgs) {
		n++
	}
	if len(from) > 0 {
		if s.events.areTold() {
			c.watch = spans.In(from[0].Header)
		}
		c.cameAsGuest(from[0].Guest)
		s.m.flights.Came(&c.standing, from[0].ID, from[0].Conn)
	}
	if len(msgs) == 1 {
		if f := s.deferrer(&msgs[0]); f != nil {
			c.recorded().watched, light = s.Watched.Begin(f.Begun(s)), false
		}
	}
	light = light && !s.m.outlivesNode(msgs)
	if n > 0 && s.m.shared != nil {
		if err := (departing{s}).admit(msgs); err != nil {
			return err
		}
	}
	if n > 0 && !light && s.m.storeCrowded() {
		return stream.ErrFull
	}
	if n > 0 {
		if err := checkPlace(s); err != nil {
			return err
		}
	}
	pass, err := s.passLimits(msgs, from)
	if err != nil {
		return err
	}
	settle, err := s.held.keepState(msgs)
	if err == nil {
		err = s.record(c, msgs, n, light, pass)
		if settle != nil {
			settle(err == nil)
		}
	}
	if err != nil {
		pass.Release()
		s.m.processes.Break(processOwner{s})
	}
	return err
}

// record counts a new call, which has n requests, and puts it on record.
func (s *Session) record(c *Call, msgs []jsonrpc.Message, n int32, light bool, pass *limit.Pass) error {
	if s.m.work.Reached(handover.Stopped) {
		return ErrClosing
	}
	if err := s.m.admit(s, n, s.aboutBegun(msgs)); err != nil {
		return err
	}
	if s.m.shared != nil {
		if err := s.prepareRecovery(c, msgs, light); err != nil {
			s.m.dismiss(s, n)
			return err
		}
		if n > 0 && !c.recovery.isSafe() && s.m.Departure.RefusesUnsafe() {
			s.m.dismiss(s, n)
			return ErrMoved
		}
	}
	c.expected = light && !s.single
	s.mu.Lock()
	err := s.addRequests(c, msgs, pass)
	s.mu.Unlock()
	if err != nil {
		s.m.dismiss(s, n)
		return err
	}
	if s.single && c.recovery != nil {
		return s.noteInJournal(c)
	}
	if light {
		return nil
	}
	if c.recovery == nil {
		c.Promote()
	} else {
		c.promoteWith(s.flushInBackground)
	}
	if c.recovery != nil && c.Number() == 0 { // it has ended before it began
		if s.isClosed() {
			return s.goneError()
		}
		return nil // its client has cancelled it
	}
	if c.recovery != nil {
		err = c.awaitNote() // before it runs
		if s.Moved() {
			return ErrMoved
		}
	}
	if err != nil || c.Number() != 0 && c.IsOver() { // the note or the policy could not be stored
		c.fail(msgs, errNotStored)
		if err == nil && s.isClosed() { // just now, and the call was ended with it
			return s.goneError()
		}
		if err == nil {
			err = stream.ErrFull
		}
		return err
	}
	return nil
}

// Send takes a message of the client that is no request: a notification, or the
// answer to a request of the backend. A message that names another session of the
// same principal goes there.
func (s *Session) Send(ctx context.Context, m jsonrpc.Message, header http.Header) error {
	if m.Kind == jsonrpc.Response {
		if taken, err := s.m.Answer(ctx, s.principal, m, header); taken {
			return err
		}
		return s.answer(ctx, m, header)
	}
	switch m.Method {
	case protocol.MethodCancelled:
		if taken, err := s.m.resumes.Cancel(s.principal, &m, header); taken {
			return err
		}
		// First, so that a request that waits to be delivered is not. The backend is told only of requests that
		// were in flight here: a request that it has under another's id, or in another form, goes on.
		id := jsonrpc.Field(m.Params, "requestId")
		if taken, err := s.cancelAbroad(id); taken || !s.cancel(id) {
			return err
		}
	case protocol.MethodInitialized:
		s.mu.Lock()
		again := s.backend.initialized && s.taken // the backend has been told already
		s.backend.initialized = true
		s.mu.Unlock()
		if again {
			return nil
		}
	}
	err := s.deliver(ctx, backend.Inbound{Message: m, Context: ctx, Header: header})
	if panicked(err) {
		return nil // it has no answer, and is not to be sent again
	}
	return err
}

// answer hands the client's answer to the backend that asked. An answer to a
// request that does not wait is dropped: it may be a second one. But if the request
// was made under a newer lease, the answer is for the node with that lease.
func (s *Session) answer(ctx context.Context, m jsonrpc.Message, header http.Header) error {
	id, ok := s.parseAskedID(m.ID)
	if !ok {
		if number, ok := pinged(m.ID); ok {
			s.streams.Has(number, 1) // unless that is over
		}
		return nil
	}
	s.mu.Lock()
	a, ok := s.asked.take(id)
	s.backend.stateful = true
	if ok && a.call == s.standalone && a.method != "roots/list" { // for the requests of a call see [leavesMore]
		s.use.lasts.Store(true)
	}
	current := ok && a.round == nil && s.backend.link == a.link && a.link.conn != nil
	newer := uint64(id>>32) >= s.lease.Epoch
	s.mu.Unlock()
	if !ok && newer {
		err := s.checkOwner(ctx)
		if err != nil && !errors.Is(err, ErrMoved) { // a newer owner may wait for the answer
			return fmt.Errorf("%w: %s", ErrNotDelivered, StoreErrorText(err))
		}
		return err
	}
	if !ok {
		return nil
	}
	if current { // else the conversation that asked is over
		raw := m.WithID(a.id)
		m.ID, m.Raw = a.id, raw
		err := s.m.deliverTo(a.link.conn, backend.Inbound{Message: m, Context: ctx, Header: header})
		if panicked(err) {
			failAll(s.requests.takeCall(a.call), notDelivered(err)) // the call waits for the answer
			return nil
		}
		if err != nil {
			s.mu.Lock()
			if s.backend.link == a.link {
				s.asked.put(id, a) // so that it can be answered again
			}
			s.mu.Unlock()
			return fmt.Errorf("%w: %w", ErrNotDelivered, err)
		}
	}
	a.call.client.answered()
	if a.round != nil {
		a.round.answered(a.name, &m)
	}
	s.Watched.Wake(a.call.Number())
	return nil
}

// Refuse tells the client of a session with a single stream that a request was not taken, and reports whether it could.
func (s *Session) Refuse(id []byte, why *jsonrpc.Error) bool {
	return s.single && s.standalone.emit(jsonrpc.AppendError(nil, id, why), false)
}

// Initializing returns the initialize call while it is in flight, or nil.
func (s *Session) Initializing() *Call {
	for rq := range s.requests.each {
		if rq.call.method == protocol.MethodInitialize {
			return rq.call
		}
	}
	return nil
}

// Initialize does a client's part of the opening, for requests that come without
// one.
func (s *Session) Initialize(ctx context.Context, params []byte, header http.Header) error {
	ctx, stop := context.WithTimeout(ctx, openTimeout)
	defer stop()
	s.mu.Lock()
	l := s.backend.link
	s.mu.Unlock()
	in := backend.Inbound{Context: ctx, Header: header}
	reply, err := l.ask(ctx, protocol.MethodInitialize, params, in)
	if err == nil && reply.Error != nil {
		err = fmt.Errorf("initialize failed: %s", reply.Error)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, l.inVain(protocol.MethodInitialize, err))
	}
	s.mu.Lock()
	s.revision = jsonrpc.String(jsonrpc.Field(reply.Result, "protocolVersion"))
	s.mu.Unlock()
	return s.Send(ctx, initialized, header)
}

// initialized is the notification that ends the opening.
var initialized = jsonrpc.Message{
	Kind:   jsonrpc.Notification,
	Method: protocol.MethodInitialized,
	Raw:    []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`),
}
