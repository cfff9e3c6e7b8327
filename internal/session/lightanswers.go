package session

import (
	"context"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/reading"
	"holdfast/stream"
)

// A Waiter waits for one light call. Most light calls are answered at once, so it is used again.
type Waiter struct {
	Ready chan struct{}    // see [Call.Notify]
	Late  <-chan time.Time // gets the time once, when the call has taken too long; nil: there is no such time
	timer *time.Timer
	of    *Manager
}

// Waiter returns a Waiter for a call that should not take longer than after (0: as long as it takes).
func (m *Manager) Waiter(after time.Duration) *Waiter {
	w, ok := m.waiters.Get().(*Waiter)
	if !ok {
		w = &Waiter{Ready: make(chan struct{}, 1), of: m}
	}
	switch w.Late = nil; {
	case after <= 0:
		return w
	case w.timer == nil:
		w.timer = time.NewTimer(after)
	default:
		w.timer.Reset(after)
	}
	w.Late = w.timer.C
	return w
}

// Stop ends the waiting. over says that its call has ended, so that Ready gets no more: then the Waiter is used again.
func (w *Waiter) Stop(over bool) {
	if w.Late != nil {
		w.timer.Stop()
	}
	if !over {
		return
	}
	select {
	case <-w.Ready:
	default:
	}
	w.of.waiters.Put(w)
}

// lightAnswers are the responses of a call so far, while it is light. Guarded by Call.mu.
type lightAnswers struct {
	all     [][]byte
	changed chan struct{} // told when the call ends or is promoted; nil if no goroutine waits
}

// holds counts a response as on its way until it is written, if it is long. It returns false if there is no
// room for that: then its call is stored, which has a bound of its own.
func holds(s *Session, data []byte) bool {
	n := int64(len(data))
	return n <= budget.Uncounted || s.m.opts.Flight.Read(s.tenant.name, n)
}

// add takes a response, and returns how many there are.
func (l *lightAnswers) add(data []byte) uint64 {
	l.all = append(l.all, data)
	return uint64(len(l.all))
}

// wake tells the goroutine that waits for the call to look again.
func (l *lightAnswers) wake() { reading.Wake(l.changed) }

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
	if stored != nil { // a client gets no message of a call before its note is stored
		select {
		case <-stored:
		case <-ctx.Done():
		}
	}
	return answers, light
}

// The methods below are for transports that wait for many calls at a time.

// Notify sends to ready, as a [reading.Reader] does, when a light call has answered or was given a stream:
// see [Call.Answers]. It takes the place of [Call.Wait].
func (c *Call) Notify(ready chan struct{}) {
	c.mu.Lock()
	c.light.changed = ready
	c.mu.Unlock()
	reading.Wake(ready) // it may have happened already
}

// Answers returns the responses of a call that ended while it was light, and
// whether it did, or the number of its stream, or 0 while it is light. A call that
// was cancelled has no responses.
func (c *Call) Answers() (answers [][]byte, done bool, number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.light.all, c.state() == callAnswered, c.number
}

// Answered says that the responses of a light call, if it has any, were written, or will not be. A transport that
// waits for a light call calls it at the end.
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

// CallFrom returns the call that a request in flight with the id is part of, or nil. The request came from the session guest, as [Origin] says.
func (s *Session) CallFrom(guest stream.SessionKey, id []byte) (c *Call) {
	s.requests.locked(func() {
		if rq := s.requests.all[string(requestKey(guest, id))]; rq != nil {
			c = rq.call
		}
	})
	return c
}
