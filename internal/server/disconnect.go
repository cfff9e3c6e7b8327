package server

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"holdfast/internal/reading"
	"holdfast/internal/sse"
)

// What follows is what the connection of an event stream does while its stream has
// nothing to say, and when it ends before its stream.

// An alarm finds the next of several times.
type alarm struct{ now, next time.Time }

// due reports whether a time has come. If it has not, it may be the next. Zero never
// comes.
func (a *alarm) due(at time.Time) bool {
	switch {
	case at.IsZero():
	case !a.now.Before(at):
		return true
	case a.next.IsZero() || at.Before(a.next):
		a.next = at
	}
	return false
}

// A parting is what a call says of the end of its connection, which carries others too.
type parting struct {
	announced atomic.Bool                   // its client got the token to resume it by, if it has one
	retry     atomic.Pointer[time.Duration] // the call has asked for the connection's end, until its client comes back after that
}

// news takes in what the reader of the call's stream knows, and reports whether that is new.
func (p *parting) news(r *reading.Reader) bool {
	announced := r.PastPolicy()
	news := p.announced.Swap(announced) != announced
	if retry, ok := r.DisconnectRequest(); ok {
		p.retry.Store(&retry)
		news = true
	}
	return news
}

// idle implements [sink].
func (c *events) idle(ctx context.Context, now time.Time) (time.Time, error) {
	a := alarm{now: now}
	if c.isDenied() {
		return a.next, c.deny()
	}
	if retry, ok := c.disconnected(); ok {
		return a.next, c.leave(retry)
	}
	if err := c.continueDue(ctx, &a); err != nil {
		return a.next, err
	}
	opts := &c.h.opts
	if c.mayPing() && a.due(c.opened.Add(opts.PingAfter)) {
		c.shown.CompareAndSwap(shownNone, shownPinged)
		c.r.Ping()
	}
	c.awaitDrain(now)
	switch {
	case c.isQuiet() && a.due(c.leaving):
		// Spread over a second time of waiting, so that not all come back at once.
		return a.next, c.leave(opts.Retry + rand.N(opts.Retry+1))
	case opts.DisconnectAfter > 0 && c.mayLeave() && a.due(c.opened.Add(opts.DisconnectAfter)):
		return a.next, c.leave(opts.Retry)
	case c.awaitsInput(now) && a.due(c.asking.Add(opts.InputGrace)):
		return a.next, c.leave(opts.Retry)
	}
	return a.next, c.keepAlive(&a)
}

// keepAlive writes a comment if nothing was written for long.
func (c *events) keepAlive(a *alarm) error {
	every := c.h.opts.KeepAlive
	if every <= 0 {
		return nil
	}
	c.mu.Lock()
	written := c.written
	c.mu.Unlock()
	if !a.due(written.Add(every)) {
		return nil
	}
	a.due(a.now.Add(every))
	return c.flush([]byte(sse.Comment), false)
}

// disconnected reports whether the connection is to end because the call, or one that
// is continued beside the standalone stream, has asked for that.
func (c *events) disconnected() (retry time.Duration, ok bool) {
	if c.continued == nil && !c.r.HasDisconnectRequest() || !c.announced() {
		return 0, false // asked again when there is more
	}
	retry, ok = c.r.DisconnectRequest()
	if !ok && c.continued != nil {
		retry, ok = c.continued.disconnected()
	}
	if retry < 0 {
		retry = c.h.opts.Retry
	}
	return retry, ok && c.mayLeave()
}

// mayPing reports whether the client is to be pinged, as it has got no event id of its
// call and is not primed with one (docs/decisions/0021-ids-by-ping.md).
func (c *events) mayPing() bool {
	return c.name != "" && !c.primes && c.shown.Load() == shownNone && c.wants != wantsInitialize && !c.via.isMuxed() &&
		c.h.opts.PingAfter > 0 && c.r.Cursor().Stream.Number != 0
}

// awaitDrain sets when the connection is to end, if the node is drained. Calls in
// flight are waited for.
func (c *events) awaitDrain(now time.Time) {
	c.drain = nil
	if c.leaving.IsZero() && c.isQuiet() {
		c.leaving, c.drain = c.h.life.Departure(now)
	}
}

// isQuiet reports whether the client waits for nothing in particular.
func (c *events) isQuiet() bool {
	return c.isStandalone() && !c.via.isMuxed() && c.continued.none() && (!c.s.SingleStream() || !c.s.Busy())
}

// isStandalone reports whether the standalone stream is copied.
func (c *events) isStandalone() bool { return c.r.Cursor().Stream.Number == 0 }

// awaitsInput reports whether the call waits for its client, which knows how to come
// back for the rest (SEP-1335, "Multi-turn"), and notes since when.
func (c *events) awaitsInput(now time.Time) bool {
	if !c.url && !c.primes || !c.continued.none() || !c.r.AwaitsInput() || !c.mayLeave() {
		c.asking = time.Time{}
		return false
	}
	if c.asking.IsZero() {
		c.asking = now
	}
	return true
}

// mayLeave reports whether the connection may be ended before its stream: the client
// can come back to the same place, or misses nothing if it does not.
func (c *events) mayLeave() bool {
	return !c.via.isMuxed() && (c.url || c.shown.Load() >= shownWritten || c.isStandalone()) && c.announced()
}

// announced reports whether the client got the tokens of all calls here that have one.
func (c *events) announced() bool {
	return (c.state >= last || c.r.PastPolicy()) && c.continued.announced()
}

// leave ends the connection and tells the client when to come back (SEP-1699).
// Where the client could not come back, it stays.
func (c *events) leave(retry time.Duration) error {
	if !c.mayLeave() {
		return nil
	}
	text := sse.AppendRetry(nil, retry)
	if c.primes {
		text = c.prime(retry)
	}
	if err := c.flush(text, false); err != nil {
		return err
	}
	return errComeBack
}
