package session

import (
	"slices"
	"sync/atomic"

	"holdfast/backend"
	"holdfast/internal/observe"
)

// A sessionState says where a session is in its life on this node.
//
//	state      what it means
//	opening    the store may not know the session yet
//	open       requests are taken
//	leaving    given up for another node: nothing is taken, but messages of the backend
//	           are still stored
//	lingering  over, but found by its resume tokens for a little longer
//	ended      over; readers may read its streams to their end
//	deleted    over; the store was told to drop its streams
//	moved      left this node: nothing is appended any more
//
//	from                to         when
//	opening             open       the store has it: created, or taken over
//	opening, open       ended      its client, its backend, its age or Close ends it, or it could not be opened
//	open                lingering  its client ends it while others follow a call of it
//	lingering           ended      they have read how it ended, or took too long
//	ended, leaving      deleted    its streams are no longer needed; leaving: it could not be opened meanwhile
//	open                leaving    it is handed over
//	all but opening,
//	deleted             moved      it was released, another node has it, the store can't be reached, or it falls asleep
//
// [sessionLife.become] makes all transitions.
type sessionState uint32

const (
	sessionOpening sessionState = iota
	sessionOpen
	sessionLeaving
	sessionLingering
	sessionEnded
	sessionDeleted
	sessionMoved
)

// sessionSteps are the states that may follow each.
var sessionSteps = [...][]sessionState{
	sessionOpening:   {sessionOpen, sessionEnded},
	sessionOpen:      {sessionLeaving, sessionLingering, sessionEnded, sessionMoved},
	sessionLeaving:   {sessionDeleted, sessionMoved},
	sessionLingering: {sessionEnded, sessionMoved},
	sessionEnded:     {sessionDeleted, sessionMoved},
	sessionDeleted:   {},
	sessionMoved:     {},
}

// A callState says where the messages of a call go.
//
//	state     what it means
//	light     held in memory: it has said nothing but responses
//	answered  over while light; the transport that waits for it has its responses
//	stored    it has a stream
//	ended     over; the last entry of its stream is stored, or queued
//	sealed    over; the store refused an entry, and is given no more of them
//
//	from           to        when
//	light          answered  its last request is answered, cancelled, or left to another node
//	light          stored    it says something else, or its client can't wait ([Call.Promote])
//	stored         ended     its last request is answered, cancelled, or its stream can't go on
//	stored, ended  sealed    the store refuses an entry
//
// A call of a session with a single stream stays light: its messages go to the standalone stream. That stream's own
// call is stored from its beginning. A call that was taken over begins in the state that it had, stored or ended.
//
// [callLife.become] makes all transitions.
type callState uint32

const (
	callLight callState = iota
	callAnswered
	callStored
	callEnded
	callSealed
)

// callSteps are the states that may follow each.
var callSteps = [...][]callState{
	callLight:    {callAnswered, callStored},
	callAnswered: {},
	callStored:   {callEnded, callSealed},
	callEnded:    {callSealed},
	callSealed:   {},
}

// callLife is a call's state: written under Call.mu, and read without it.
type callLife struct{ now atomic.Uint32 }

func (l *callLife) state() callState { return callState(l.now.Load()) }

// become brings the call into a state, if its own allows that. c.mu is held, or no
// other goroutine knows the call.
func (l *callLife) become(to callState) (ok bool) {
	if ok = slices.Contains(callSteps[l.state()], to); ok {
		l.now.Store(uint32(to))
	}
	return ok
}

// isLight reports whether the call has no stream, and is not over.
func (l *callLife) isLight() bool { return l.state() == callLight }

// IsOver reports whether nothing more is taken for the call.
func (l *callLife) IsOver() bool {
	state := l.state()
	return state != callLight && state != callStored
}

// end ends the call, stored or not. Observers are told here how a call without a stream of its own has ended; of any other call,
// when the store has the end. c.mu is held.
func (c *Call) end() {
	if !c.become(callAnswered) {
		c.become(callEnded)
	}
	c.client.bound(nil)
	if c.number == 0 || c.sharesStream() {
		c.watch.End(c.number, observe.Cancelled, 0)
	}
	c.light.wake()
}

// seal ends the call, and gives the store no more of its entries.
func (c *Call) seal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.become(callSealed)
}

// sessionLife is a session's state: written under Session.mu, and read without it.
type sessionLife struct{ now atomic.Uint32 }

func (l *sessionLife) state() sessionState { return sessionState(l.now.Load()) }

// become brings the session into a state, if its own, which become returns, allows that. s.mu is held.
func (l *sessionLife) become(to sessionState) (from sessionState, ok bool) {
	from = l.state()
	if ok = slices.Contains(sessionSteps[from], to); ok {
		l.now.Store(uint32(to))
	}
	return from, ok
}

// step is become for callers that do not hold s.mu.
func (s *Session) step(to sessionState) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok = s.become(to)
	return ok
}

// isClosed reports whether the session takes no requests any more.
func (l *sessionLife) isClosed() bool { return l.state() > sessionOpen }

// isLingering reports whether the session is over, but found by its tokens.
func (l *sessionLife) isLingering() bool { return l.state() == sessionLingering }

// Moved reports whether the session has left this node: another has taken it, or may.
// Its calls continue there, so its clients should come back.
func (l *sessionLife) Moved() bool { return l.state() == sessionMoved }

// Ended reports whether the session is over, on whichever node.
func (l *sessionLife) Ended() bool {
	switch l.state() {
	case sessionLingering, sessionEnded, sessionDeleted:
		return true
	default:
		return false
	}
}

// goneError says why a closed session takes no requests.
func (s *Session) goneError() error {
	if s.use.expired.Load() {
		return ErrMoved // a request that has found it just before revives it
	}
	if s.Ended() || s.use.lost.Load() {
		return ErrNotFound
	}
	return ErrMoved
}

// closeIf is [Session.close] for callers that do not hold s.mu, if may returns true, which is called with s.mu held (nil: always).
func closeIf(s *Session, to sessionState, may func() bool) (c closing, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if may != nil && !may() {
		return c, false
	}
	return s.close(to)
}

// A closing has the requests and the conversation of a closed session, for its closer to end.
type closing struct {
	from     sessionState
	inFlight []*inflight
	conn     backend.Conn // nil if none is open
}

// close brings the session into a state in which it takes no requests any more. s.mu is held.
func (s *Session) close(to sessionState) (c closing, ok bool) {
	if c.from, ok = s.become(to); ok {
		s.events.ended(c.from, to)
		s.patience.rest()
		c.inFlight = s.requests.takeIf(func(*inflight) bool { return true })
		c.conn = s.backend.link.finish()
		s.asked.takeAll()
		s.waiting.stop(s.goneError())
	}
	return c, ok
}
