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

// A recovery has the state of a call that its note tells the next owner of the
// session: see callnotes.go. Calls have one only where the store is shared.
type recovery struct {
	retry  retry // whether its requests may be made again; it does not change
	repeat bool  // they are made again here, as the session was taken over

	// journal is the number of a stream that calls of a session with a single stream have, and
	// that no client reads: the note stands beside it, and it ends with the call. Its entries are
	// the ids of those requests of a batch that were answered before the last. 0 for other calls.
	journal uint64

	// Guarded by Call.mu.
	state recoveryState
	msgs  []jsonrpc.Message // until the note is queued and a backend has the first of them
	noted bool              // the note is queued

	stored chan struct{} // closed when the note is stored, or will not be; nil while the call needs none
	failed error         // why the store refused the note; to be read once stored is closed
}

// A retry says whether requests may be made again without harm.
type retry uint8

const (
	retryUnsafe   retry = iota
	retryUnlisted       // not known when the call began, as the tools had not been listed
	retryAllowed
)

// A recoveryState says where the requests of a call are made.
//
//	state        what it means
//	undelivered  no backend has a request of it
//	delivered    a backend has one, or may have
//	left         the next owner makes them, as its note says that no backend has them
//	handedBack   the transport that waits for the call makes it again where its session is now
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

// A recoveryNote has the members of a call's note that its recovery is restored from.
type recoveryNote struct {
	Safe     bool              `json:"safe"`
	Unsent   bool              `json:"unsent"` // its owner left before a backend had any of the requests
	Requests []json.RawMessage `json:"requests"`
}

// apply sets the recovery by the note.
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

// takeUp decides whether the requests of a restored call that has not ended are made again. unsent says that they are made for the first time. A
// tool is safe if the call's note says so, or the session's: the tools may have been listed after the call began. Notes do not count for other
// methods, as nodes of earlier builds took all of them for safe.
func (k *recovery) takeUp(s *Session) (unsent bool) {
	unsent = k.become(recoveryUndelivered)
	noted := k.isSafe()
	k.retry = retryUnsafe
	var err error // a panic: then they are not safe
	defer panics.Catch(&err, s.m.logger, "Options.Safe", "")
	if len(k.msgs) > 0 && tools.Repeatable(k.msgs, func(m *jsonrpc.Message) bool { return noted || s.Tools.IsRepeatable(tools.Called(m)) }) {
		k.retry, k.repeat = retryAllowed, true
	}
	return unsent
}

// isSafe reports whether the call's requests may be made again.
func (k *recovery) isSafe() bool { return k.retry == retryAllowed }

// mayRun reports whether the call may be made, or made again, on another node, once its
// session is closed here. Call.mu is held.
func (k *recovery) mayRun() bool { return k.isSafe() || k.state != recoveryDelivered }

// release drops the messages once no note needs them: a call that the backend has
// gets no other note. Call.mu is held.
func (k *recovery) release() {
	if k.noted && k.state == recoveryDelivered {
		k.msgs = nil
	}
}

// Repeated reports whether the call is made again here, as its session was taken over; c may be nil.
func (c *Call) Repeated() bool { return c != nil && c.recovery != nil && c.recovery.repeat }

// hasJournal reports whether the call has a stream for nothing but its note.
func (c *Call) hasJournal() bool { return c.recovery != nil && c.recovery.journal != 0 }

// awaitNote waits until the store has the call's note, or has refused it: the error is that of the store. late says that the store did neither
// within storeTimeout. Entries of calls that run may take longer, but this call has not begun.
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

// handOver reports whether the call goes on with the next owner of its session, which was
// closed here, and whether a backend may have it. If no backend has it, and its client
// will ask for it by a key or token, its note says so; the log must be flushed after.
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
	case sent && k.retry == retryUnlisted && c.number != 0: // the next owner may know the tools
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
