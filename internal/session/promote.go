package session

import (
	"context"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/reading"
)

// Wait waits for a light call to answer. It returns the responses and true, or
// false as soon as the call is stored: by itself, because after has passed (0:
// never), or because ctx is done. A call that was cancelled has no responses.
func (c *Call) Wait(ctx context.Context, after time.Duration) ([][]byte, bool) {
	c.mu.Lock()
	promoted := false
	if c.isLight() {
		wait := c.s.m.Waiter(after)
		c.light.changed = wait.Ready
		c.mu.Unlock()
		select {
		case <-wait.Ready:
		case <-wait.Late:
		case <-ctx.Done():
		}
		c.mu.Lock()
		c.light.changed = nil
		wait.Stop(true)
		if promoted = c.isLight(); promoted {
			c.promote()
		}
	}
	answers, light := c.light.all, c.number == 0
	var stored chan struct{}
	if !light && c.recovery != nil {
		stored = c.recovery.stored
	}
	c.mu.Unlock()
	if promoted {
		c.s.log.Flush()
	}
	if stored != nil { // a client is shown nothing of a call before that is on record
		select {
		case <-stored:
		case <-ctx.Done():
		}
	}
	return answers, light
}

// Promote makes a light call a stored one. An ended call is left alone.
func (c *Call) Promote() {
	c.mu.Lock()
	if c.isLight() {
		c.promote()
	}
	c.mu.Unlock()
	c.s.log.Flush()
	c.s.Resumes().Sweep(time.Now())
}

// promote gives the call a stream. c.mu is held; the log must be flushed after.
func (c *Call) promote() {
	c.number = c.s.streams.Add(writer{c})
	c.become(callStored)
	c.watch.Stored(c.number)
	if c.recovery != nil && c.recovery.stored == nil {
		c.recovery.stored = make(chan struct{})
	}
	c.note(c.number)
	for f := range c.features {
		f.stored(c)
	}
	for _, data := range c.light.take(c.s) {
		c.push(data, false)
	}
	reading.Wake(c.light.changed)
}

// lightAnswers are the responses of a call so far, while it is light. Guarded by Call.mu.
type lightAnswers struct {
	all     [][]byte
	changed chan struct{} // told when the call ends or is promoted; nil if nobody waits
}

// holds counts a response as on its way until it is written, if it is long. It is false if there is no room for
// that: then its call is to be stored, which has a bound of its own.
func holds(s *Session, data []byte) bool {
	n := int64(len(data))
	return n <= budget.Uncounted || s.m.opts.Flight.Read(s.tenant.name, n)
}

// take returns the responses and forgets them. They count no more.
func (l *lightAnswers) take(s *Session) (all [][]byte) {
	all, l.all = l.all, nil
	for _, data := range all {
		if n := int64(len(data)); n > budget.Uncounted {
			s.m.opts.Flight.Done(s.tenant.name, n)
		}
	}
	return all
}

// Answered says that the responses of a light call, if it has any, were written, or will not be. Whoever waits for a
// light call calls it at the end.
func (c *Call) Answered() {
	c.s.m.flights.Wrote(flightCall{c}, c.takeAnswer())
}

// takeAnswer returns the answer of a light call that was not made again, and forgets it; nil: it has none.
func (c *Call) takeAnswer() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.light.take(c.s)
	if len(all) == 1 && (c.recovery == nil || c.recovery.state != recoveryHandedBack) {
		return all[0]
	}
	return nil
}
