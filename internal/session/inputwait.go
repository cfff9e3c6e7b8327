package session

import (
	"time"
)

// What follows bounds how long calls of modern clients wait for those.

// AwaitReturn has the call end, for a reason, unless its client returns within a time.
func (c *Call) AwaitReturn(within time.Duration, reason string) {
	c.s.use.hold(within)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	stopTimer(c.away)
	if c.record != nil {
		stopTimer(c.record.unseen)
	}
	c.away = time.AfterFunc(within, func() {
		if c.s.m.startWork() {
			defer c.s.m.work.Done()
			if !c.standing.IsFollowed() { // else another request of its client waits for it
				c.Withdraw(reason)
			}
		}
	})
}

// Returned notes that the client has returned to the call. It may leave again without all that
// it was asked for.
func (c *Call) Returned() {
	c.mu.Lock()
	defer c.mu.Unlock()
	stopTimer(c.away)
	if c.asking > 0 && c.record != nil {
		c.awaitClient()
	}
}

// boundAsking has the call end, which has just asked its client something, if that is not
// taken up within resume.Options.InputWait. Mostly the client is there, and is told of the question
// at once; then [Call.AwaitReturn] bounds it. But it may have left a call that goes on without
// it, or the call may have been made again because its node was lost.
func (c *Call) boundAsking() {
	if c.s.modern == "" {
		return // its session is its client's, and ends with that
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.requests.mu.Lock()
	defer c.s.requests.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recorded()
	c.awaitClient()
}

// awaitClient begins the time of [Call.boundAsking]. The call has a record. c.mu is held.
func (c *Call) awaitClient() {
	if c.isOver() || c.isHeir() { // an heir may ask for as long as it can be asked for
		return
	}
	r := c.record
	stopTimer(r.unseen)
	r.unseen = time.AfterFunc(c.s.m.resumes.InputWait(), func() {
		if c.s.m.startWork() {
			defer c.s.m.work.Done()
			c.endUnseen()
		}
	})
}

// endUnseen ends the call if it waits for a client that has not come. One that is just there may
// leave before it is told of the question.
func (c *Call) endUnseen() {
	asking, _ := c.AwaitsInput()
	if !asking || c.isAskedFor() {
		return
	}
	if c.s.streams.IsRead(c.Number()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.awaitClient()
		return
	}
	c.Withdraw("its client did not come for what it was asked")
}

// isAskedFor reports whether the client was told a name for the call, or has asked for it.
func (c *Call) isAskedFor() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record != nil && c.record.watched != nil && c.record.watched.IsAskedFor()
}

// stopTimer stops a timer, which may be nil.
func stopTimer(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}
