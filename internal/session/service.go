package session

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"holdfast/backend"
	"holdfast/internal/caller"
	"holdfast/internal/deferred"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file has the seam to features that the clients of a session are offered in the place of a backend without them. Each
// has a package of its own, above this one. See [Options.Services].

// A Service is a feature that is offered in the backend's place. Its methods may be called concurrently.
type Service interface {
	offer
	answerer
	deferrer
}

// An offer says to which sessions a service is offered, and changes the responses to their clients.
type offer interface {
	// Member is the name under which the note of a session says that the service is offered.
	Member() string
	// Suits reports whether the service is offered in a session of a revision, beside a backend with this result of initialize. s.mu is held.
	Suits(s *Session, revision string, result []byte) bool
	// Change returns the backend's response to a request as clients with the service get it.
	Change(method string, response []byte) []byte
}

// An answerer answers requests of the client in the backend's place.
type answerer interface {
	// Owns reports whether the service answers the requests of a method.
	Owns(method string) bool
	// About returns the text of a ticket that names the call which a request is about, maybe of another session, and the
	// purpose of the ticket; "" for other requests. waits says that the request may wait for that call.
	About(m *jsonrpc.Message) (purpose, text string, waits bool)
	// Answer returns the answer to a request of the call c; nil: it comes later ([Call.AnswerOwn]). number is that of the
	// call that the request is about, which may be gone; 0: it is about no call of the session.
	Answer(ctx context.Context, c *Call, m *jsonrpc.Message, number uint64) []byte
	// List answers a query of the service on another node: see [Manager.ListHere].
	List(ctx context.Context, principal caller.Principal, in Range, query []byte) []byte
}

// A deferrer answers the client of a call when the call begins: the call is deferred, and its client comes back for the outcome.
type deferrer interface {
	// Defers reports whether the service defers the call of a request.
	Defers(m *jsonrpc.Message) bool
	// Begun returns the service's record of a deferred call, which no other goroutine knows yet.
	Begun(s *Session) deferred.Deferred
	// Restored is Begun for a call that is restored from its note; nil: the call was not deferred.
	Restored(s *Session, note []byte) deferred.Deferred
	// Deferral returns the response that the client gets at once, to the request with the id. The other
	// arguments are as [deferred.Calls.Deferred] returns them.
	Deferral(id []byte, d deferred.Deferred, st *deferred.Standing, err error) []byte
}

// offered calls yield for each service that is offered to the session's clients.
func (s *Session) offered(yield func(Service) bool) {
	on := s.offers.Load()
	for i := 0; on>>i != 0; i++ {
		if on>>i&1 != 0 && !yield(s.m.services[i]) {
			return
		}
	}
}

// offers returns the services that are offered, of those that is returns true for: the bit 1<<i for services[i].
func offers(m *Manager, is func(Service) bool) (on uint32) {
	for i, f := range m.services {
		if m.opts.Polls && !m.opts.Stateless && is(f) {
			on |= 1 << i
		}
	}
	return on
}

// owner returns the service that answers the requests of a method, or nil.
func (s *Session) owner(method string) Service {
	for f := range s.offered {
		if f.Owns(method) {
			return f
		}
	}
	return nil
}

// deferrer returns the service that defers the call of a request, or nil.
func (s *Session) deferrer(m *jsonrpc.Message) Service {
	for f := range s.offered {
		if f.Defers(m) {
			return f
		}
	}
	return nil
}

// answerBy makes a service answer a request of the call, on a goroutine of its own.
func (c *Call) answerBy(f Service, m jsonrpc.Message) {
	c.s.m.InBackground(func(ctx context.Context) { // else all calls end now
		ctx, stop := context.WithTimeout(ctx, storeTimeout)
		defer stop()
		purpose, text, _ := f.About(&m)
		t, ok := ticket.Parse(text)
		if !ok || !c.s.Tickets().Made(t, purpose) {
			t.Number = 0
		}
		if answer := f.Answer(ctx, c, &m, t.Number); answer != nil {
			c.AnswerOwn(m.ID, answer)
		}
	})
}

// AnswerOwn answers a request of a client in the backend's place, if it is still unanswered.
func (c *Call) AnswerOwn(id, answer []byte) { c.s.requests.answer(id, c, answer) }

// Home returns the session that a request of the session's client is for: another session of the same principal if the request is about a
// call of that one. defers says that it is this session, and that [Session.Begin] makes a deferred call of the request: the client is
// answered at once, with [Session.Deferral]. header is that of the HTTP request with m. The error is a [*Redirect], that of the store, or
// [ErrDuplicate].
func (s *Session) Home(ctx context.Context, m *jsonrpc.Message, header http.Header) (home *Session, defers bool, err error) {
	if err := s.awaitOffer(ctx, m, header); err != nil {
		return nil, false, err
	}
	f := s.owner(m.Method)
	if f == nil || m.Kind != jsonrpc.Request {
		return s, s.deferrer(m) != nil, nil
	}
	purpose, text, waits := f.About(m)
	t, ok := ticket.Parse(text)
	if !ok || t.Session == s.Name() {
		return s, false, nil
	}
	if s.CallFrom("", m.ID) != nil {
		return nil, false, ErrDuplicate
	}
	home, _, err = s.m.FindSeal(purpose, text, nil, s.principal)
	if errors.Is(err, ErrNotFound) {
		return s, false, nil // its service answers that there is no such call
	}
	if waits {
		s.abroad.add(m.ID, stream.SessionKey(t.Session))
	}
	return home, false, err
}

// awaitOffer opens the server of a session that has begun again, if a service may answer a request or defer its call: the server's answer to
// initialize says which services are offered. If that fails, the request gets the error when it is delivered. The error
// is [ErrBusy] if there is no room for a server now.
func (s *Session) awaitOffer(ctx context.Context, m *jsonrpc.Message, header http.Header) error {
	if m.Kind != jsonrpc.Request || !s.offering.isUnknown() || !slices.ContainsFunc(s.m.services, func(f Service) bool { return f.Owns(m.Method) || f.Defers(m) }) {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // other requests may wait for the opening, too
	if err := s.awaitOpen(ctx, backend.Inbound{Message: *m, Context: ctx, Header: header}); err != nil {
		if errors.Is(err, ErrBusy) && s.offering.isUnknown() {
			return err
		}
		locked(s, func() { s.backend.inVain = &vainOpening{string(m.ID), err, s.m.clock()} })
		s.m.logger.Debug("it is not known what is offered with the server", "session", s.Name(), "error", err)
	}
	return nil
}

// Deferral returns the response to a request of a deferred call, which has the stream with the number.
func (s *Session) Deferral(ctx context.Context, number uint64, m *jsonrpc.Message) []byte {
	d, st, err := s.Watched.Deferred(ctx, number)
	if c := s.CallAt(number); c != nil && err == nil {
		c.untold().Release(number) // no client waits for it on this connection
	}
	for _, f := range s.m.services {
		if f.Defers(m) {
			return f.Deferral(m.ID, d, &st, err)
		}
	}
	return nil
}

// ListHere answers a service of another node that has called [Elsewhere.List]: with its records in the principal's sessions
// on this node that are in a range.
func (m *Manager) ListHere(ctx context.Context, principal caller.Principal, in Range, query []byte) []byte {
	for _, f := range m.services {
		if list := f.List(ctx, principal, in, query); list != nil {
			return list
		}
	}
	return []byte("[]")
}

// deferred returns the record of the service that has deferred the call, or nil. It does not change.
func (c *Call) deferred() deferred.Deferred {
	if c.s.modern != "" || c.record == nil || c.record.watched == nil {
		return nil
	}
	return c.record.watched.Deferred()
}

// restoreDeferred takes in a call that no other goroutine knows yet, if it was deferred. note is the call's.
func (c *Call) restoreDeferred(note []byte) {
	s := c.s
	if s.modern != "" || c.isHeir() || !c.recovery.callsTool() {
		return
	}
	for _, f := range s.m.services {
		d := f.Restored(s, note)
		if d == nil {
			continue
		}
		s.use.hold(s.m.KeepEnded())
		w := s.Watched.Begin(d)
		if c.IsOver() {
			w.End(false)
		}
		c.recorded().watched = w
		watching{w}.stored(c)
	}
}
