package session

import (
	"context"
	"time"

	"holdfast/internal/budget"
)

// Wait waits for a light call to answer. It returns the responses and true, or
// false as soon as the call is stored: by itself, because after has passed (0:
// never), or because ctx is done. A call that was cancelled has no responses.
func (c *Call) Wait(ctx context.Context, after time.Duration) ([][]byte, bool) {
	c.mu.Lock()
	if !c.isLight() {
		c.mu.Unlock()
		return c.outcome(ctx)
	}
	wait := c.s.m.Waiter(after)
	c.changed = wait.Ready
	c.mu.Unlock()
	select {
	case <-wait.Ready:
	case <-wait.Late:
	case <-ctx.Done():
	}
	c.mu.Lock()
	c.changed = nil
	wait.Stop(true)
	promoted := c.isLight()
	if promoted {
		c.promote()
	}
	c.mu.Unlock()
	if promoted {
		c.s.log.Flush()
	}
	return c.outcome(ctx)
}

// outcome returns what Wait does. A client is shown nothing of a call before that is
// on record.
func (c *Call) outcome(ctx context.Context) ([][]byte, bool) {
	c.mu.Lock()
	answers, light := c.light, c.number == 0
	var stored chan struct{}
	if !light && c.recovery != nil {
		stored = c.recovery.stored
	}
	c.mu.Unlock()
	if stored != nil {
		select {
		case <-stored:
		case <-ctx.Done():
		}
	}
	return answers, light
}

// Promote makes a light call a stored one. An ended call is left alone.
func (c *Call) Promote() { c.promoteWith(c.s.log.Flush) }

// promoteWith is Promote for who flushes the log otherwise.
func (c *Call) promoteWith(flush func()) {
	c.mu.Lock()
	if c.isLight() {
		c.promote()
	}
	c.mu.Unlock()
	flush()
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
	for _, data := range c.light {
		c.push(data, false)
	}
	c.dropAnswers()
	c.wake()
}

// holdAnswer counts a response as on its way until it is written, if it is long. It is false if there is no room for
// that: then the call is to be stored, which has a bound of its own. c.mu is held.
func (c *Call) holdAnswer(data []byte) bool {
	n := int64(len(data))
	return n <= budget.Uncounted || c.s.m.opts.Flight.Read(c.s.tenant.name, n)
}

// dropAnswers forgets the responses of a light call, which count no more. c.mu is held.
func (c *Call) dropAnswers() {
	for _, data := range c.light {
		if n := int64(len(data)); n > budget.Uncounted {
			c.s.m.opts.Flight.Done(c.s.tenant.name, n)
		}
	}
	c.light = nil
}

// Answered says that the responses of a light call, if it has any, were written, or will not be. Whoever waits for a
// light call calls it at the end.
func (c *Call) Answered() {
	c.s.m.flights.Wrote(flightCall{c}, c.takeAnswer())
}

// takeAnswer returns the answer of a light call that was not made again, and forgets it; nil: it has none.
func (c *Call) takeAnswer() (answer []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.light) == 1 && (c.recovery == nil || c.recovery.state != recoveryHandedBack) {
		answer = c.light[0]
	}
	c.dropAnswers()
	return answer
}
