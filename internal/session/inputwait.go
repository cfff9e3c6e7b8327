package session

import (
	"sync"
	"sync/atomic"
	"time"
)

// This file bounds how long calls of modern clients wait for their clients.

// A clientWait counts a call's open requests to its client, and has the timers that end the call if the client does not come. Its lock is taken after that of the call.
type clientWait struct {
	asked     atomic.Int32 // requests to the client that it has not answered
	signalled atomic.Bool  // the client was just told that the call waits for input: see signal

	mu     sync.Mutex
	away   *time.Timer // ends the call if its client does not return; nil: the client was never away
	unseen *time.Timer // ends the call if its client does not take up a question; nil: none was asked
}

// isOpen reports whether the client has a request to answer.
func (w *clientWait) isOpen() bool { return w.asked.Load() > 0 }

// said notes that the call has another message.
func (w *clientWait) said() { w.signalled.Store(false) }

// asks notes that the client has another request to answer.
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

// passTo moves the open requests to an heir.
func (w *clientWait) passTo(heir *clientWait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	heir.asked.Store(w.asked.Swap(0))
}

// signal reports whether the client may be told that the call waits for it. After a true the next result is false, unless the call has said something meanwhile.
func (w *clientWait) signal() bool {
	if w.signalled.CompareAndSwap(false, true) {
		return true
	}
	w.signalled.Store(false)
	return false
}

// leaves notes that the client is away. away is the timer that ends the call.
func (w *clientWait) leaves(away *time.Timer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stopTimer(w.away)
	stopTimer(w.unseen)
	w.away = away
}

// returns notes that the client is back, and reports whether it has a request to answer.
func (w *clientWait) returns() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	stopTimer(w.away)
	return w.isOpen()
}

// bound sets the timer that ends the call, unless its client leaves, or has answered all requests, before.
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

// AwaitReturn ends the call, for a reason, unless its client returns within a time.
func (c *Call) AwaitReturn(within time.Duration, reason string) {
	c.s.use.hold(within)
	c.client.leaves(c.s.m.work.After(within, func() {
		if !c.standing.IsFollowed() { // else another request of its client waits for the call
			c.Withdraw(reason)
		}
	}))
}

// Returned notes that the client has returned to the call. The client may leave again before it has all the questions.
func (c *Call) Returned() {
	if c.client.returns() {
		c.boundAsking()
	}
}

// boundAsking ends a call that has asked its client something, if the client does not take up the question
// within resume.Options.InputWait. Mostly the client is connected, and gets the question at once; then
// [Call.AwaitReturn] bounds the wait. But it may have left a call that goes on without it, or the call may
// have been made again because its node was lost.
func (c *Call) boundAsking() {
	if c.s.modern == "" {
		return // the session is the client's own, and the call ends with it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.IsOver() || c.isHeir() { // an heir may wait for as long as clients can ask for it
		return
	}
	c.client.bound(c.s.m.work.After(c.s.m.resumes.InputWait(), c.endUnseen))
}

// endUnseen ends the call if it waits for a client that has not come. If a client is connected just now it
// bounds the call again: the client may leave before it gets the question.
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
