package session

import (
	"time"

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

// Stop ends the waiting. over says that nobody tells Ready any more, as its call has ended.
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

// What follows is for transports that wait for many calls at a time.

// Notify has ready told, as that of a [reading.Reader] is, when a light call has answered or
// was given a stream: see [Call.Answers]. It takes the place of [Call.Wait].
func (c *Call) Notify(ready chan struct{}) {
	c.mu.Lock()
	c.light.changed = ready
	c.mu.Unlock()
	reading.Wake(ready) // for what has happened already
}

// Answers returns the responses of a call that ended while it was light, and
// whether it did, or the number of its stream, or 0 while it is light. A call that
// was cancelled has no responses.
func (c *Call) Answers() (answers [][]byte, done bool, number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.light.all, c.state() == callAnswered, c.number
}

// CallFrom returns the call that a request in flight with the id is part of, or nil. It came from a session, as [Origin] says.
func (s *Session) CallFrom(guest stream.SessionKey, id []byte) (c *Call) {
	s.requests.locked(func() {
		if rq := s.requests.all[string(requestKey(guest, id))]; rq != nil {
			c = rq.call
		}
	})
	return c
}
