package session

import (
	"context"
	"time"

	"holdfast/jsonrpc"
)

// What follows is what the core knows of features that are offered to the clients of a session in the place of the backend,
// which has none. One is a line in [services].

// A service is such a feature, of one session. Each of its methods may be called by several goroutines at once.
type service interface {
	offer
	answerer
	deferrer
}

// An offer is what a service says of itself.
type offer interface {
	// member is the name under which the note of a session says that it is offered.
	member() string
	// isOn reports whether the options have it at all.
	isOn() bool
	// suits reports whether it is offered by the side of a backend with this result of initialize. s.mu is held.
	suits(result []byte) bool
	// change returns the backend's response to a request as the clients get it to whom this is offered.
	change(method string, response []byte) []byte
}

// An answerer answers requests of the client in the backend's place.
type answerer interface {
	// owns reports whether it answers the requests of a method.
	owns(method string) bool
	// isForHome reports whether such a request may be about a call of another session.
	isForHome(method string) bool
	// home returns that session, or this one. The error is that of [Session.Home].
	home(m *jsonrpc.Message) (*Session, error)
	// serve answers a request, which is the call's. It returns before that is done.
	serve(c *Call, m jsonrpc.Message)
}

// A deferrer answers the clients of calls when these begin: the calls are deferred. Their clients come back for the outcome.
type deferrer interface {
	// defers reports whether the call of a request is to be deferred.
	defers(m *jsonrpc.Message) bool
	// begun returns the record of such a call, which no other goroutine knows yet.
	begun(at time.Time) *watched
	// restored is begun for the call of a note; nil: that was not deferred.
	restored(note []byte) *watched
	// deferral returns what the client is told at once: the response to the request with the id. number is the call's.
	deferral(ctx context.Context, number uint64, id []byte) []byte
}

// deferred is what a service knows of a call that it has deferred.
type deferred interface {
	// stored is called when the call has a stream. Call.mu is held, or no other goroutine knows the call.
	stored(c *Call)
	// appendNote appends the members by which restored knows the call again.
	appendNote(dst []byte) []byte
	// plain returns the call's request as the backend gets it.
	plain(m jsonrpc.Message) jsonrpc.Message
	// changed returns what is to be woken as anything of the call has changed. watchedCalls.mu is held.
	changed() []*waker
}

// services are all there are.
var services = [...]func(*Session) service{
	func(s *Session) service { return legacyTasks{s} },
}

// offered calls yield for each service that is offered to the session's clients.
func (s *Session) offered(yield func(service) bool) {
	on := s.offers.Load()
	for i := 0; on>>i != 0; i++ {
		if on>>i&1 != 0 && !yield(services[i](s)) {
			return
		}
	}
}

// setOffers notes which services are offered.
func (s *Session) setOffers(is func(service) bool) {
	on := uint32(0)
	for i, of := range services {
		if f := of(s); f.isOn() && is(f) {
			on |= 1 << i
		}
	}
	s.offers.Store(on)
}

// service returns the first service that is offered and is as is asked for, or nil.
func (s *Session) service(is func(service) bool) service {
	for f := range s.offered {
		if is(f) {
			return f
		}
	}
	return nil
}

// owner returns the service that answers the requests of a method, or nil.
func (s *Session) owner(method string) service {
	return s.service(func(f service) bool { return f.owns(method) })
}

// deferrer returns the service that defers the call of a request, or nil.
func (s *Session) deferrer(m *jsonrpc.Message) service {
	return s.service(func(f service) bool { return f.defers(m) })
}

// answerOwn answers a request of a client in the backend's place, if it is still unanswered.
func (c *Call) answerOwn(id, answer []byte) {
	s := c.s
	s.mu.Lock()
	rq := s.takeRequest(id, c)
	s.mu.Unlock()
	if rq != nil {
		rq.call.respond(rq, answer)
		s.requestEnded(rq)
	}
}

// Home returns the session that a request of the session's client is for: another one of
// the same principal if it is about a call of that one. The error is a [*Redirect], that of a
// store which can't tell, or [ErrDuplicate].
func (s *Session) Home(m *jsonrpc.Message) (*Session, error) {
	if f := s.owner(m.Method); f != nil && m.Kind == jsonrpc.Request && f.isForHome(m.Method) {
		return f.home(m)
	}
	return s, nil
}

// Defers reports whether the call that [Session.Begin] makes of a request of the session's client is deferred: its
// client is answered at once, with [Session.Deferral].
func (s *Session) Defers(m *jsonrpc.Message) bool { return s.deferrer(m) != nil }

// Deferral returns the response to a request whose call, which is that of a stream, is deferred.
func (s *Session) Deferral(ctx context.Context, number uint64, m *jsonrpc.Message) []byte {
	for _, of := range services {
		if f := of(s); f.defers(m) {
			return f.deferral(ctx, number, m.ID)
		}
	}
	return nil
}

// deferred returns what the service knows that has deferred the call, or nil. It does not change.
func (c *Call) deferred() deferred {
	if c.s.modern != "" || c.record == nil || c.record.watched == nil {
		return nil
	}
	return c.record.watched.deferred
}

// restoreDeferred takes in a call that no other goroutine knows yet, if it was deferred. note is the call's.
func (c *Call) restoreDeferred(note []byte) {
	s := c.s
	for _, of := range services {
		w := of(s).restored(note)
		if w == nil {
			continue
		}
		s.hold(s.m.KeepEnded())
		if w.updated = time.Now(); c.isOver() {
			w.ended = w.updated
		}
		c.recorded().watched = w
		w.stored(c)
	}
}
