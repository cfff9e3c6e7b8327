package resume

import (
	"time"
)

// Leave notes that another node waits for the client from now on.
func (c *Call) Leave() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.stop()
}

// stop stops waiting for the client. Session.mu is held.
func (c *Call) stop() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// cancelIfAway is called when the client may have been away for too long. If it was, the call is cancelled.
func (c *Call) cancelIfAway() {
	s := c.of
	var ids []string
	c.owner.Look(func(_, _, isRead bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if isRead {
			c.seen = time.Now()
		}
		switch rest := s.opts.MaxWait - time.Since(c.seen); {
		case c.timer == nil:
		case rest > 0:
			c.timer.Reset(rest)
		default:
			ids = c.inFlight()
		}
	})
	c.owner.Cancel(ids, "cancelled: its client was away for longer than maxWait ("+s.opts.MaxWait.String()+")")
}

// Seen notes that the client of a stream's call is connected, or was until now.
func (s *Session) Seen(number uint64) {
	if c := s.call(number); c != nil {
		c.see()
	}
}

func (c *Call) see() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.seen = time.Now()
}
