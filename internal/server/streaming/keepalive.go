package streaming

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"holdfast/internal/reading"
	"holdfast/internal/sse"
)

// This file has the timed work of an event stream's connection while no messages
// come, and the reasons to end the connection before its stream.

// An Alarm finds the earliest of several times to come.
type Alarm struct{ Now, Next time.Time }

// Due reports whether a time has come. If not, it sets Next to the time if that is earlier. The zero time never comes.
func (a *Alarm) Due(at time.Time) bool {
	switch {
	case at.IsZero():
	case !a.Now.Before(at):
		return true
	case a.Next.IsZero() || at.Before(a.Next):
		a.Next = at
	}
	return false
}

// A Parting is the state of a call that matters for the end of a connection that carries other calls too.
type Parting struct {
	Announced atomic.Bool                   // the client got the token to resume the call by, if it has one
	Retry     atomic.Pointer[time.Duration] // set when the call has asked for the connection's end: the time after which the client may come back
}

// News updates the parting from the reader of the call's stream, and reports whether it has changed.
func (p *Parting) News(r *reading.Reader) bool {
	announced := r.PastPolicy()
	news := p.Announced.Swap(announced) != announced
	if retry, ok := r.DisconnectRequest(); ok {
		p.Retry.Store(&retry)
		news = true
	}
	return news
}

// Idle implements [Sink].
func (c *Events) Idle(ctx context.Context, now time.Time) (time.Time, error) {
	a := Alarm{Now: now}
	if c.isDenied() {
		return a.Next, c.deny()
	}
	if retry, ok := c.disconnected(); ok {
		return a.Next, c.leave(retry)
	}
	if err := c.continueDue(ctx, &a); err != nil {
		return a.Next, err
	}
	opts := c.of
	if c.mayPing() && a.Due(c.opened.Add(opts.PingAfter)) {
		c.shown.CompareAndSwap(shownNone, shownPinged)
		c.Reader.Ping()
	}
	c.awaitDrain(now)
	switch {
	case c.isQuiet() && a.Due(c.Leaving):
		// Spread over a second time of waiting, so that not all come back at once.
		return a.Next, c.leave(opts.Retry + rand.N(opts.Retry+1))
	case opts.DisconnectAfter > 0 && c.mayLeave() && a.Due(c.opened.Add(opts.DisconnectAfter)):
		return a.Next, c.leave(opts.Retry)
	case c.awaitsInput(now) && a.Due(c.Asking.Add(opts.InputGrace)):
		return a.Next, c.leave(opts.Retry)
	}
	return a.Next, c.KeepAlive(&a)
}

// KeepAlive writes a comment if nothing was written for long.
func (c *Events) KeepAlive(a *Alarm) error {
	every := c.of.KeepAlive
	if every <= 0 {
		return nil
	}
	c.mu.Lock()
	written := c.written
	c.mu.Unlock()
	if !a.Due(written.Add(every)) {
		return nil
	}
	a.Due(a.Now.Add(every))
	return c.Flush(c.comment(), false)
}

// disconnected reports whether the connection is to end because the call, or one
// continued beside the standalone stream, has asked for that.
func (c *Events) disconnected() (retry time.Duration, ok bool) {
	if c.continued == nil && !c.Reader.HasDisconnectRequest() || !c.announced() {
		return 0, false // checked again when more has come
	}
	retry, ok = c.Reader.DisconnectRequest()
	if !ok && c.continued != nil {
		retry, ok = c.continued.disconnected()
	}
	if retry < 0 {
		retry = c.of.Retry
	}
	return retry, ok && c.mayLeave()
}

// mayPing reports whether to ping the client, as it has no event id of its call and
// gets no priming event (docs/decisions/0021-ids-by-ping.md).
func (c *Events) mayPing() bool {
	return c.name != "" && !c.Primes && c.shown.Load() == shownNone && c.Wants != WantsInitialize && !c.Via.IsMuxed() &&
		c.of.PingAfter > 0 && c.Reader.Cursor().Stream.Number != 0
}

// awaitDrain sets the time to end the connection if the node is drained. It does so once no call is in flight.
func (c *Events) awaitDrain(now time.Time) {
	c.Drain = nil
	if c.Leaving.IsZero() && c.isQuiet() {
		c.Leaving, c.Drain = c.of.Life.Departure(now, false)
	}
}

// isQuiet reports whether the client waits for no call here.
func (c *Events) isQuiet() bool {
	return c.IsStandalone() && !c.Via.IsMuxed() && c.continued.none() && (!c.Session.SingleStream() || !c.Session.Busy())
}

// IsStandalone reports whether the standalone stream is copied.
func (c *Events) IsStandalone() bool { return c.Reader.Cursor().Stream.Number == 0 }

// awaitsInput reports whether the call waits for input of a client that can come
// back for the rest (SEP-1335, "Multi-turn"), and sets Asking.
func (c *Events) awaitsInput(now time.Time) bool {
	if !c.URL && !c.Primes || !c.continued.none() || !c.Reader.AwaitsInput() || !c.mayLeave() {
		c.Asking = time.Time{}
		return false
	}
	if c.Asking.IsZero() {
		c.Asking = now
	}
	return true
}

// mayLeave reports whether the connection may be ended before its stream: the client
// can resume from the same event, or misses no messages if it does not.
func (c *Events) mayLeave() bool {
	return !c.Via.IsMuxed() && (c.URL || c.shown.Load() >= shownWritten || c.IsStandalone()) && c.announced()
}

// announced reports whether the client got the tokens of all calls on the connection.
func (c *Events) announced() bool {
	return (c.state >= last || c.Reader.PastPolicy()) && c.continued.announced()
}

// leave returns ErrComeBack to end the connection, after it has told the client when to come back (SEP-1699). It returns nil
// if the client could not come back.
func (c *Events) leave(retry time.Duration) error {
	if !c.mayLeave() {
		return nil
	}
	text := sse.AppendRetry(nil, retry)
	if c.Primes {
		text = c.prime(retry)
	}
	if err := c.Flush(text, false); err != nil {
		return err
	}
	return ErrComeBack
}
