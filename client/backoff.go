package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	expbackoff "github.com/cenkalti/backoff/v5"
)

// backoff says how long to wait before the next connection. A stream's reader uses
// it; only retry and told are set with the call's lock held.
type backoff struct {
	retry time.Duration // what the server told us to wait
	told  bool          // that it did

	off     *expbackoff.ExponentialBackOff
	since   time.Time     // since when the server has been out of reach; zero: it is not
	last    error         // how the last exchange failed
	fresh   bool          // something has come since the last wait
	atleast time.Duration // what a Retry-After asked for
	met     time.Time     // when the server was reached, if that was after the last wait
	slow    int           // how often it did not begin to answer in time, since it was reached

	// idle says whether nobody waits for the connection: then the next one has more
	// time, until somebody does. Nil: somebody does all the time.
	idle  func() bool
	nudge chan struct{} // has idle asked again

	cuts  int // connections on which nothing came, one after the other
	polls int // resumed streams on which nothing came, one after the other

	silences int           // how often the server did not begin to answer
	wake     chan struct{} // ends a wait; made by who waits or who ends it, under mu
	mu       sync.Mutex

	renewals int // how often the call began anew in another session
}

// ask notes how long the server wants to be left alone after each connection. It is
// heeded for Options.GiveUp at the most: else one number would end the call.
func (b *backoff) ask(retry time.Duration, c *Conn) {
	b.retry, b.told = min(retry, c.opts.GiveUp), true
}

// reached notes that the server was there.
func (b *backoff) reached() { b.since, b.last, b.slow, b.met = time.Time{}, nil, 0, time.Now() }

// firstBound is how long the server may take to answer who comes back: a connection
// that leads nowhere is to be noticed soon. For a server that is slow it is twice as
// long the next time.
const firstBound = 10 * time.Second

// bound returns how long the server may take to answer who comes back, which is at
// most that long.
func (b *backoff) bound(atMost time.Duration) time.Duration {
	return min(firstBound<<min(b.slow, 10), atMost)
}

// mostCuts is how many connections in a row may end on which nothing came in answer
// to a request that is sent again each time.
const mostCuts = 8

// cut notes that a connection has ended, and returns on how many of them nothing came.
func (b *backoff) cut() int {
	if b.cuts++; b.fresh {
		b.cuts = 0
	}
	return b.cuts
}

// progress notes that something has come.
func (b *backoff) progress() { b.fresh, b.polls = true, 0 }

// firstPoll is how long a resumed stream may bring no event before it is asked for
// again; each time it brings none the next may take twice as long.
const firstPoll = 5 * time.Second

// poll returns how long a resumed stream may bring no event, which is at most that
// long.
func (b *backoff) poll(atMost time.Duration) time.Duration {
	d := atMost
	if b.polls < 10 {
		d = min(firstPoll<<b.polls, atMost)
	}
	b.polls++
	return d
}

// wait waits before the next connection: as long as the server asked to, and
// longer and longer while it is out of reach (err) or nothing comes. It fails when
// ctx ends, or the server was out of reach for Options.GiveUp.
func (b *backoff) wait(ctx context.Context, c *Conn, err error) error {
	if err != nil && b.since.IsZero() {
		c.away(err)
	}
	return b.waitFor(ctx, err, c.opts.GiveUp)
}

// away says that the server is out of reach.
func (c *Conn) away(err error) {
	if c.opts.Away != nil {
		c.inform("Options.Away", func() { c.opts.Away(err) })
		return
	}
	c.logger.Info("the server is out of reach: trying again", "error", err)
}

// waitBriefly is wait for who has not reached the server yet.
func (b *backoff) waitBriefly(ctx context.Context, c *Conn, err error) error {
	return b.waitFor(ctx, err, min(c.opts.ConnectTimeout, c.opts.GiveUp)/6)
}

func (b *backoff) waitFor(ctx context.Context, err error, giveUp time.Duration) error {
	now := time.Now()
	if err != nil {
		b.last = err
		if b.since.IsZero() {
			b.since = now
		}
		if away := now.Sub(b.since); away >= giveUp {
			return fmt.Errorf("the server has been out of reach for %v: %w", away.Round(time.Second), err)
		}
	}
	if errors.Is(err, errSilent) {
		b.slow++
	}
	delay, more := b.delay(err == nil)
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

// delay returns how long to wait, and how much longer if nobody waits for the
// connection. there says that the server was not out of reach.
func (b *backoff) delay(there bool) (delay, more time.Duration) {
	if b.off == nil {
		b.off = newBackoff()
	}
	// Who comes back after a connection that was of use, or lasted, does not come
	// too often.
	if b.fresh || !b.met.IsZero() && time.Since(b.met) >= longestDelay {
		b.off.Reset()
	}
	// No sooner than told, and not all at once with everybody else.
	told := b.retry + rand.N(b.retry/10+1)
	if b.told && there {
		b.off.Reset() // it was there, and sent us away
	}
	var idle time.Duration
	if delay = told; !b.told || !there {
		idle = b.off.NextBackOff()
		if delay = min(idle, longestDelay/2+rand.N(longestDelay/2)); b.told {
			delay = max(delay, told)
		}
	}
	if delay = max(delay, b.atleast); !b.fresh {
		delay = max(delay, leastPoll)
	} else if !b.met.IsZero() {
		delay = max(delay, leastPoll-time.Since(b.met)) // a message for each connection is no way to stream
	}
	b.fresh, b.met, b.atleast = false, time.Time{}, 0
	return delay, max(idle-delay, 0)
}

// hurry says that somebody may wait for the connection now.
func (b *backoff) hurry() {
	select {
	case b.nudge <- struct{}{}:
	default:
	}
}

// poke ends a wait, this one or the next.
func (b *backoff) poke() {
	select {
	case b.waker() <- struct{}{}:
	default:
	}
}

func (b *backoff) waker() chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wake == nil {
		b.wake = make(chan struct{}, 1)
	}
	return b.wake
}

// Delays grow from the first to the longest, and farther while nobody waits for the
// connection.
const (
	firstDelay   = 100 * time.Millisecond
	longestDelay = 5 * time.Second
	longestIdle  = 30 * time.Second
	// leastPoll is how long at the least is waited after a connection on which nothing
	// came, or after the beginning of another, whatever the server says.
	leastPoll = 10 * time.Millisecond
)

func newBackoff() *expbackoff.ExponentialBackOff {
	b := expbackoff.NewExponentialBackOff()
	b.InitialInterval, b.Multiplier = firstDelay, 2
	b.MaxInterval = time.Duration(float64(longestIdle) / (1 + b.RandomizationFactor))
	b.Reset()
	return b
}
