package session

import "time"

// Promote makes a light call a stored one. An ended call is left alone.
func (c *Call) Promote() { c.promoteWith(c.s.log.Flush) }

// promoteWith is Promote, with a flush of the caller's choice.
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
	for _, data := range c.light.take(c.s) {
		c.push(data, false)
	}
	c.light.wake()
}
