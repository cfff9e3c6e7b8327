package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	expbackoff "github.com/cenkalti/backoff/v5"

	"holdfast/internal/outagelog"
	"holdfast/internal/protocol"
	"holdfast/internal/redact"
)

// A backoff decides how long to wait before the next attempt or connection. One goroutine
// uses it, except for ask, which needs the lock of its owner, and poke and hurry, which may
// be called at any time.
type backoff struct {
	retry    time.Duration // how long the server wants to be left alone (SSE field retry)
	retrySet bool          // the server has set retry

	delays  *expbackoff.ExponentialBackOff
	since   time.Time     // since when the server has been out of reach; zero: it is not
	last    error         // how the last attempt failed
	fresh   bool          // a message has come since the last wait
	atLeast time.Duration // the wait that a Retry-After has asked for
	met     time.Time     // when the server was reached, if that was after the last wait
	slow    int           // how often it did not begin to answer in time, since it was reached
	polls   int           // resumed streams in a row that brought no event

	// idle reports whether no caller waits for the connection: then the next connection may
	// come later, until a caller waits. Nil: a caller always waits.
	idle  func() bool
	nudge chan struct{} // makes wait call idle again

	mu   sync.Mutex
	wake chan struct{} // ends a wait; nil until it is needed
}

// ask notes how long the server wants to be left alone after each connection: at most
// Options.GiveUp, or one number would end the call.
func (b *backoff) ask(retry time.Duration, c *Conn) {
	b.retry, b.retrySet = min(retry, c.opts.GiveUp), true
}

// reached notes that the server was reached.
func (b *backoff) reached() { b.since, b.last, b.slow, b.met = time.Time{}, nil, 0, time.Now() }

// firstBound is how long the server may take to answer an attempt that continues a call: a
// connection that leads nowhere is noticed soon. For a slow server it doubles each time.
const firstBound = 10 * time.Second

// bound returns how long the server may take to answer an attempt that continues a call.
func (b *backoff) bound(atMost time.Duration) time.Duration {
	return min(firstBound<<min(b.slow, 10), atMost)
}

// progress notes that a message has come.
func (b *backoff) progress() { b.fresh, b.polls = true, 0 }

// firstPoll is how long a resumed stream may bring no event before it is asked for again.
// It doubles each time that no event comes.
const firstPoll = 5 * time.Second

// poll returns how long a resumed stream may bring no event.
func (b *backoff) poll(atMost time.Duration) time.Duration {
	d := atMost
	if b.polls < 10 {
		d = min(firstPoll<<b.polls, atMost)
	}
	b.polls++
	return d
}

// wait waits before the next attempt: as long as the server wants, and longer each time
// while it is out of reach (err is not nil) or no message comes. It fails when ctx ends, or
// when the server was out of reach for Options.GiveUp.
func (b *backoff) wait(ctx context.Context, c *Conn, err error) error {
	if err != nil && b.since.IsZero() {
		c.away(err)
	}
	return b.waitFor(ctx, err, c.opts.GiveUp)
}

// away reports to the user that the server is out of reach.
func (c *Conn) away(err error) {
	if c.opts.Away != nil {
		inform(c.logger, "Options.Away", func() { c.opts.Away(err) })
		return
	}
	if no := (*refusal)(nil); errors.As(err, &no) && no.status == http.StatusTooManyRequests {
		c.logger.Info("the server takes no more for now: trying again", "after", no.after, "error", err)
		return
	}
	c.remote.outage.Failed(c.remote.secrets.Error(err))
}

// watch makes the log tell once that the server is out of reach, and once that it is back, however many calls wait.
func (c *Conn) watch(rawURL string) {
	wait := "calls wait for it for up to " + c.opts.GiveUp.String()
	c.remote.outage = outagelog.New(outagelog.Options{
		Logger: c.logger, Attrs: []any{"url", redact.URL(rawURL)},
		Away: "the server is out of reach: " + wait, Still: "the server is still out of reach: " + wait, Back: "the server is reached again",
		Calls:   c.calls.count,
		Confirm: time.Second,
	})
}

// waitBriefly is wait for a server that was never reached: it fails sooner. A server that has
// said when to come back is there, and has more time.
func (b *backoff) waitBriefly(ctx context.Context, c *Conn, err error) error {
	most := min(c.opts.BeginWithin, c.opts.GiveUp)
	if no := (*refusal)(nil); errors.As(err, &no) && no.after != 0 {
		most = max(most, min(c.opts.ConnectTimeout, c.opts.GiveUp))
	}
	return b.waitFor(ctx, err, most)
}

// waitFor is wait with another bound, and without telling the user.
func (b *backoff) waitFor(ctx context.Context, err error, giveUp time.Duration) error {
	now := time.Now()
	if err != nil {
		b.last = err
		if b.since.IsZero() {
			b.since = now
		}
		if away := now.Sub(b.since); away >= giveUp {
			return fmt.Errorf(protocol.TextOutOfReach+"%v: %w", away.Round(time.Second), err)
		}
	}
	if errors.Is(err, errSilent) {
		b.slow++
	}
	wanted := max(b.atLeast, b.retry)
	delay, more := b.delay(err == nil)
	if left := giveUp - now.Sub(b.since); err != nil && delay > left {
		delay = max(left, wanted, leastPoll) // for the last attempt
	}
	if away := now.Sub(b.since); err != nil && away+delay > giveUp && delay > longestIdle {
		return fmt.Errorf("the server asks to come back in %v: %w", delay.Round(time.Second), err)
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-b.waker():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t.Reset(more)
	for more > 0 && b.idle != nil && b.idle() {
		select {
		case <-t.C:
			return nil
		case <-b.nudge:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// delay returns how long to wait, and how much longer if no caller waits for the connection.
// reachable says that the server was not out of reach.
func (b *backoff) delay(reachable bool) (delay, more time.Duration) {
	if b.delays == nil {
		b.delays = newBackoff()
	}
	// A connection that brought messages, or lasted, resets the delays.
	if b.fresh || !b.met.IsZero() && time.Since(b.met) >= longestDelay {
		b.delays.Reset()
	}
	// No sooner than the server wants, and not at the same moment as other clients.
	retry := b.retry + rand.N(b.retry/10+1)
	if b.retrySet && reachable {
		b.delays.Reset() // it was reached, and has ended the connection
	}
	var idle time.Duration
	if delay = retry; !b.retrySet || !reachable {
		idle = b.delays.NextBackOff()
		if delay = min(idle, longestDelay/2+rand.N(longestDelay/2)); b.retrySet {
			delay = max(delay, retry)
		}
	}
	if delay = max(delay, b.atLeast); !b.fresh {
		delay = max(delay, leastPoll)
	} else if !b.met.IsZero() {
		delay = max(delay, leastPoll-time.Since(b.met)) // one message for each connection is too few
	}
	b.fresh, b.met, b.atLeast = false, time.Time{}, 0
	return delay, max(idle-delay, 0)
}

// hurry makes wait call idle again: a caller may wait for the connection now.
func (b *backoff) hurry() {
	select {
	case b.nudge <- struct{}{}:
	default:
	}
}

// poke ends a wait: this one or the next.
func (b *backoff) poke() {
	select {
	case b.waker() <- struct{}{}:
	default:
	}
}

// waker returns the channel that ends a wait.
func (b *backoff) waker() chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wake == nil {
		b.wake = make(chan struct{}, 1)
	}
	return b.wake
}

// Delays grow from the first to the longest, and farther while no caller waits for the connection.
const (
	firstDelay   = 100 * time.Millisecond
	longestDelay = 5 * time.Second
	longestIdle  = 30 * time.Second
	// leastPoll is the shortest wait after a connection on which nothing came, or after the
	// beginning of another, whatever the server says.
	leastPoll = 10 * time.Millisecond
)

func newBackoff() *expbackoff.ExponentialBackOff {
	b := expbackoff.NewExponentialBackOff()
	b.InitialInterval, b.Multiplier = firstDelay, 2
	b.MaxInterval = time.Duration(float64(longestIdle) / (1 + b.RandomizationFactor))
	b.Reset()
	return b
}
