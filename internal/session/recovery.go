package session

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A recovery is what the next owner of the session may have to know of a call, and so
// what its note says: see notes.go. Calls have one only where the store is shared.
type recovery struct {
	retry  retry // whether its requests may be made again; it does not change
	repeat bool  // they are made again here, as the session was taken over

	// A call of a session with a single stream has a stream of its own all the same,
	// that nobody reads: its note stands beside it, and it ends with the call. Its
	// entries are the ids of those requests of a batch that were answered before the
	// last. 0 for other calls.
	journal uint64

	// Guarded by Call.mu.
	state recoveryState
	msgs  []jsonrpc.Message // until the note is queued and a backend has the first of them
	noted bool              // the note is queued

	stored chan struct{} // closed when the note is stored, or will not be; nil before it is to be queued
	failed error         // why it was refused; to be read after that
}

// retry reports whether requests may be made again without harm.
type retry uint8

const (
	retryUnsafe   retry = iota
	retryUnlisted       // not known when the call began, as the tools had not been listed
	retryAllowed
)

// A recoveryState says who makes the requests of a call.
//
//	state        what it means
//	undelivered  no backend has a request of it
//	delivered    a backend has one, or may have
//	left         the next owner makes them, as its note says that no backend has them
//	handedBack   whoever waits for the call makes it again where its session is now
//
//	from                    to          when
//	undelivered             delivered   the first request is about to be handed to the backend
//	undelivered             left        the session is handed over, and the call's client will come back for it
//	left                    undelivered the session was taken over, with the call
//	undelivered, delivered  handedBack  the session has left, and the call may be made (again)
//
// [recovery.become] makes all transitions.
type recoveryState uint8

const (
	recoveryUndelivered recoveryState = iota
	recoveryDelivered
	recoveryLeft
	recoveryHandedBack
)

var recoverySteps = [...][]recoveryState{
	recoveryUndelivered: {recoveryDelivered, recoveryLeft, recoveryHandedBack},
	recoveryDelivered:   {recoveryHandedBack},
	recoveryLeft:        {recoveryUndelivered},
	recoveryHandedBack:  {},
}

// become brings the call into a state, if its own allows that. Call.mu is held.
func (k *recovery) become(to recoveryState) (ok bool) {
	if ok = slices.Contains(recoverySteps[k.state], to); ok {
		k.state = to
	}
	k.release()
	return ok
}

// A recoveryNote is what the note of a call says of that.
type recoveryNote struct {
	Safe     bool              `json:"safe"`
	Unsent   bool              `json:"unsent"` // its owner has left without having handed it to a backend
	Requests []json.RawMessage `json:"requests"`
}

// apply has the recovery be as the note says.
func (n *recoveryNote) apply(k *recovery) error {
	k.noted = true
	if n.Safe {
		k.retry = retryAllowed
	}
	if n.Unsent {
		k.state = recoveryLeft
	}
	msgs := make([]jsonrpc.Message, len(n.Requests))
	for i, raw := range n.Requests {
		m, err := jsonrpc.Parse(raw)
		if err != nil || m.Kind != jsonrpc.Request {
			return fmt.Errorf("not a request: %w", err)
		}
		msgs[i] = m
	}
	k.msgs = msgs
	return nil
}

// callsTool reports whether the call's first request, which is still known, calls a tool.
func (k *recovery) callsTool() bool {
	return len(k.msgs) > 0 && k.msgs[0].Method == protocol.MethodCallTool
}

// takeUp decides what becomes of the requests of a call that was restored, and has not ended: they are made again, or for the first time, which
// unsent says, or neither. A tool is safe if the call's note says so, or the session's: the tools may have been listed after the call began. What a
// note says of other methods is not heard: nodes of earlier builds took all of them for safe.
func (k *recovery) takeUp(s *Session) (unsent bool) {
	unsent = k.become(recoveryUndelivered)
	noted := k.isSafe()
	k.retry = retryUnsafe
	var err error // then nobody has called them safe
	defer panics.Catch(&err, s.m.logger, "Options.Safe", "")
	if len(k.msgs) > 0 && tools.Repeatable(k.msgs, func(m *jsonrpc.Message) bool { return noted || s.Tools.IsRepeatable(tools.Called(m)) }) {
		k.retry, k.repeat = retryAllowed, true
	}
	return unsent
}

// isSafe reports whether the call's requests may be made again.
func (k *recovery) isSafe() bool { return k.retry == retryAllowed }

// mayRun reports whether the call may be made, or made again, once its session has been
// closed here, so that it is begun no more. Call.mu is held.
func (k *recovery) mayRun() bool { return k.isSafe() || k.state != recoveryDelivered }

// release lets go of what no note will need any more: of a call that the backend has
// there is nothing to be said but what the note says. Call.mu is held.
func (k *recovery) release() {
	if k.noted && k.state == recoveryDelivered {
		k.msgs = nil
	}
}

// Repeated reports whether the call is made again here, as its session was taken over; c may be nil.
func (c *Call) Repeated() bool { return c != nil && c.recovery != nil && c.recovery.repeat }

// hasJournal reports whether the call has a stream for nothing but its note.
func (c *Call) hasJournal() bool { return c.recovery != nil && c.recovery.journal != 0 }

// awaitNote waits until the store has the call's note, or has refused it: the error is that of the store. late says that it has done neither in
// time. What is said by calls that run is waited for longer, but this one has not begun.
func (k *recovery) awaitNote(stored <-chan struct{}) (late bool, err error) {
	t := time.NewTimer(storeTimeout)
	defer t.Stop()
	select {
	case <-stored:
		return false, k.failed
	case <-t.C:
		return true, stream.ErrUnavailable
	}
}

// handOver reports whether the call is left to the next owner of its session, which was
// closed, and, if not, whether a backend may have it. One that no backend has is noted
// as such, if its client will ask for it by its key or token; the log must be flushed
// after.
func (c *Call) handOver() (goesOn, sent bool) {
	k := c.recovery
	if k == nil {
		return false, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	stored, sent := c.number != 0 || k.journal != 0, k.state == recoveryDelivered
	switch {
	case k.isSafe():
		return stored || !c.s.single, sent
	case sent && k.retry == retryUnlisted && c.number != 0: // the next owner may know
		return true, true
	case !sent && !stored && !c.s.single:
		return true, false
	case !sent && c.number != 0 && c.record != nil && (c.record.key != nil || c.resume() != nil || c.deferred() != nil):
		if k.become(recoveryLeft) {
			c.queueNote(c.number, nil)
		}
		return true, false
	}
	return false, sent
}
