package session

import (
	"sync"
	"sync/atomic"
	"time"
)

// What follows bounds how long calls of modern clients wait for those.

// A clientWait is what a call has asked its client, and until when that is to come for it. Its lock comes after that of the call.
type clientWait struct {
	asked     atomic.Int32 // requests to the client that it has not answered
	signalled atomic.Bool  // the client was told that the call waits for input, and has not shown that it knows what for

	mu     sync.Mutex
	away   *time.Timer // ends the call if its client does not return; nil if it was never waited for
	unseen *time.Timer // ends the call if nobody takes up what it asks; nil if it never asked
}

// isOpen reports whether the client has a request to answer.
func (w *clientWait) isOpen() bool { return w.asked.Load() > 0 }

// said notes that the call has said something.
func (w *clientWait) said() { w.signalled.Store(false) }

// asks notes that the client has one request more to answer.
func (w *clientWait) asks() { w.asked.Add(1) }

// answered notes that the client has answered a request.
func (w *clientWait) answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isOpen() && w.asked.Add(-1) > 0 {
		return
	}
	stopTimer(w.unseen)
}

// passTo makes the requests another call's.
func (w *clientWait) passTo(heir *clientWait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	heir.asked.Store(w.asked.Swap(0))
}

// signal reports whether the client may be told that the call waits for it: once for each time that the call says something.
func (w *clientWait) signal() bool {
	if w.signalled.CompareAndSwap(false, true) {
		return true
	}
	w.signalled.Store(false)
	return false
}

// leaves notes that the client is away. away ends the call.
func (w *clientWait) leaves(away *time.Timer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stopTimer(w.away)
	stopTimer(w.unseen)
	w.away = away
}

// returns notes that the client is back. It reports whether that has a request to answer.
func (w *clientWait) returns() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	stopTimer(w.away)
	return w.isOpen()
}

// bound has the call end by a timer, unless its client comes, or nothing is asked any more. nil: it has ended.
func (w *clientWait) bound(unseen *time.Timer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stopTimer(w.unseen)
	w.unseen = unseen
}

// stopTimer stops a timer, which may be nil.
func stopTimer(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}

// AwaitReturn has the call end, for a reason, unless its client returns within a time.
func (c *Call) AwaitReturn(within time.Duration, reason string) {
	c.s.use.hold(within)
	c.client.leaves(c.s.m.work.After(within, func() {
		if !c.standing.IsFollowed() { // else another request of its client waits for it
			c.Withdraw(reason)
		}
	}))
}

// Returned notes that the client has returned to the call. It may leave again without all that
// it was asked for.
func (c *Call) Returned() {
	if c.client.returns() {
		c.boundAsking()
	}
}

// boundAsking has the call end, which has asked its client something, if that is not
// taken up within resume.Options.InputWait. Mostly the client is there, and is told of the question
// at once; then [Call.AwaitReturn] bounds it. But it may have left a call that goes on without
// it, or the call may have been made again because its node was lost.
func (c *Call) boundAsking() {
	if c.s.modern == "" {
		return // its session is its client's, and ends with that
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.IsOver() || c.isHeir() { // an heir may ask for as long as it can be asked for
		return
	}
	c.client.bound(c.s.m.work.After(c.s.m.resumes.InputWait(), c.endUnseen))
}

// endUnseen ends the call if it waits for a client that has not come. One that is just there may
// leave before it is told of the question.
func (c *Call) endUnseen() {
	c.mu.Lock()
	waits := c.client.isOpen() && !c.IsOver() && !c.record.isAskedFor()
	c.mu.Unlock()
	switch {
	case !waits:
	case c.s.streams.IsRead(c.Number()):
		c.boundAsking()
	default:
		c.Withdraw("its client did not come for what it was asked")
	}
}

// isAskedFor reports whether the client was told a name for a call, or has asked for it. Call.mu is held. r may be nil.
func (r *record) isAskedFor() bool {
	return r != nil && r.watched != nil && r.watched.IsAskedFor()
}
