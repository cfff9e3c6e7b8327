package session

import (
	"slices"

	"holdfast/jsonrpc"
)

// A recovery is what the next owner of the session may have to know of a call, and so
// what its note says: see note.go. Calls have one only where the store is shared.
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
	recoveryLeft:        {},
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

// isRepeat reports whether the call is made again here, as its session was taken over;
// c may be nil.
func (c *Call) isRepeat() bool { return c != nil && c.recovery != nil && c.recovery.repeat }

// Repeated is isRepeat for backends.
func (c *Call) Repeated() bool { return c.isRepeat() }

// hasJournal reports whether the call has a stream for nothing but its note.
func (c *Call) hasJournal() bool { return c.recovery != nil && c.recovery.journal != 0 }

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
	stored, sent := c.stored(), k.state == recoveryDelivered
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

// stored reports whether the next owner of the session will know of the call, which has a
// note. c.mu is held.
func (c *Call) stored() bool { return c.number != 0 || c.recovery.journal != 0 }

func (c *Call) isStored() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stored()
}

// isLeft reports whether the call was left to the next owner without having begun.
func (c *Call) isLeft() bool {
	if c.recovery == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recovery.state == recoveryLeft
}
