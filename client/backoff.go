package client

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// pace says how long to wait before the next connection. A stream's reader uses
// it; only retry and told are set with the call's lock held.
type pace struct {
	retry time.Duration // what the server told us to wait
	told  bool          // that it did

	off     *backoff.ExponentialBackOff
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

	reachedOnce bool          // the server was there once
	silences    int           // how often the server did not begin to answer
	wake        chan struct{} // ends a wait; made by who waits or who ends it, under mu
	mu          sync.Mutex

	renewals int // how often the call began anew in another session
}

// ask notes how long the server wants to be left alone after each connection. It is
// heeded for Options.GiveUp at the most: else one number would end the call.
func (p *pace) ask(retry time.Duration, c *Conn) {
	p.retry, p.told = min(retry, c.opts.GiveUp), true
}

// reached notes that the server was there.
func (p *pace) reached() { p.since, p.last, p.slow, p.met = time.Time{}, nil, 0, time.Now() }

// firstBound is how long the server may take to answer who comes back: a connection
// that leads nowhere is to be noticed soon. For a server that is slow it is twice as
// long the next time.
const firstBound = 10 * time.Second

// bound returns how long the server may take to answer who comes back, which is at
// most that long.
func (p *pace) bound(atMost time.Duration) time.Duration {
	return min(firstBound<<min(p.slow, 10), atMost)
}

// mostCuts is how many connections in a row may end on which nothing came in answer
// to a request that is sent again each time.
const mostCuts = 8

// cut notes that a connection has ended, and returns on how many of them nothing came.
func (p *pace) cut() int {
	if p.cuts++; p.fresh {
		p.cuts = 0
	}
	return p.cuts
}

// progress notes that something has come.
func (p *pace) progress() { p.fresh, p.polls = true, 0 }

// firstPoll is how long a resumed stream may bring no event before it is asked for
// again; each time it brings none the next may take twice as long.
const firstPoll = 5 * time.Second

// poll returns how long a resumed stream may bring no event, which is at most that
// long.
func (p *pace) poll(atMost time.Duration) time.Duration {
	d := atMost
	if p.polls < 10 {
		d = min(firstPoll<<p.polls, atMost)
	}
	p.polls++
	return d
}

// wait waits before the next connection: as long as the server asked to, and
// longer and longer while it is out of reach (err) or nothing comes. It fails when
// ctx ends, or the server was out of reach for Options.GiveUp.
func (p *pace) wait(ctx context.Context, c *Conn, err error) error {
	if err != nil && p.since.IsZero() {
		c.away(err)
	}
	return p.waitFor(ctx, err, c.opts.GiveUp)
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
func (p *pace) waitBriefly(ctx context.Context, c *Conn, err error) error {
	return p.waitFor(ctx, err, min(c.opts.ConnectTimeout, c.opts.GiveUp)/6)
}

func (p *pace) waitFor(ctx context.Context, err error, giveUp time.Duration) error {
	now := time.Now()
	if err != nil {
		p.last = err
		if p.since.IsZero() {
			p.since = now
		}
		if away := now.Sub(p.since); away >= giveUp {
			return fmt.Errorf("the server has been out of reach for %v: %w", away.Round(time.Second), err)
		}
	}
	if errors.Is(err, errSilent) {
		p.slow++
	}
	delay, more := p.delay(err == nil)
	if away := now.Sub(p.since); err != nil && away+delay > giveUp && delay > longestIdle {
		return fmt.Errorf("the server asks to come back in %v: %w", delay.Round(time.Second), err)
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.waker():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t.Reset(more)
	for more > 0 && p.idle != nil && p.idle() {
		select {
		case <-t.C:
			return nil
		case <-p.nudge:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// delay returns how long to wait, and how much longer if nobody waits for the
// connection. there says that the server was not out of reach.
func (p *pace) delay(there bool) (delay, more time.Duration) {
	if p.off == nil {
		p.off = newBackoff()
	}
	// Who comes back after a connection that was of use, or lasted, does not come
	// too often.
	if p.fresh || !p.met.IsZero() && time.Since(p.met) >= longestDelay {
		p.off.Reset()
	}
	// No sooner than told, and not all at once with everybody else.
	told := p.retry + rand.N(p.retry/10+1)
	if p.told && there {
		p.off.Reset() // it was there, and sent us away
	}
	var idle time.Duration
	if delay = told; !p.told || !there {
		idle = p.off.NextBackOff()
		if delay = min(idle, longestDelay/2+rand.N(longestDelay/2)); p.told {
			delay = max(delay, told)
		}
	}
	if delay = max(delay, p.atleast); !p.fresh {
		delay = max(delay, leastPoll)
	} else if !p.met.IsZero() {
		delay = max(delay, leastPoll-time.Since(p.met)) // a message for each connection is no way to stream
	}
	p.fresh, p.met, p.atleast = false, time.Time{}, 0
	return delay, max(idle-delay, 0)
}

// hurry says that somebody may wait for the connection now.
func (p *pace) hurry() {
	select {
	case p.nudge <- struct{}{}:
	default:
	}
}

// poke ends a wait, this one or the next.
func (p *pace) poke() {
	select {
	case p.waker() <- struct{}{}:
	default:
	}
}

func (p *pace) waker() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wake == nil {
		p.wake = make(chan struct{}, 1)
	}
	return p.wake
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

func newBackoff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.Multiplier = firstDelay, 2
	b.MaxInterval = time.Duration(float64(longestIdle) / (1 + b.RandomizationFactor))
	b.Reset()
	return b
}

// seen are event ids that have been taken, the newest of them: an event that
// comes a second time is not given out again. What is kept of an id is its hash,
// which nobody outside can foresee.
type seen struct {
	seed   maphash.Seed
	newest []uint64 // a ring once it is full
	next   int      // the oldest in it
	all    map[uint64]struct{}
}

const (
	// mostSeen is how many event ids of a stream are remembered. A server that goes
	// back further than that does not know its own ids.
	mostSeen = 512
	// fewSeen are sooner looked through than found in a map.
	fewSeen = 16
)

// add notes an id, and says whether it is new.
func (s *seen) add(id string) bool {
	if s.seed == (maphash.Seed{}) {
		s.seed = maphash.MakeSeed()
	}
	return s.addHash(maphash.String(s.seed, id))
}

// has says whether an id was noted.
func (s *seen) has(id string) bool {
	if len(s.newest) == 0 {
		return false
	}
	h := maphash.String(s.seed, id)
	if s.all == nil {
		return slices.Contains(s.newest, h)
	}
	_, ok := s.all[h]
	return ok
}

// hash stands for an id and what was said under it, together. It needs no lock,
// but s.seed.
func (s *seen) hash(id string, said []byte) uint64 {
	return maphash.String(s.seed, id) ^ bits.RotateLeft64(maphash.Bytes(s.seed, said), 1)
}

// addHash is add for an id of which there is the hash.
func (s *seen) addHash(h uint64) bool {
	if s.all == nil && slices.Contains(s.newest, h) {
		return false
	}
	if _, old := s.all[h]; old {
		return false
	}
	if len(s.newest) < mostSeen {
		s.newest = append(s.newest, h)
	} else {
		delete(s.all, s.newest[s.next])
		s.newest[s.next] = h
		s.next = (s.next + 1) % mostSeen
	}
	switch {
	case s.all != nil:
		s.all[h] = struct{}{}
	case len(s.newest) > fewSeen:
		s.all = make(map[uint64]struct{})
		for _, h := range s.newest {
			s.all[h] = struct{}{}
		}
	}
	return true
}

// outbox sends notifications in their order, one after the other.
type outbox struct {
	mu      sync.Mutex
	waiting []func()
	busy    bool
	idle    chan struct{} // closed when nothing is left; nil if nobody waits
}

// put adds work; it says whether a goroutine must be started that calls run.
func (o *outbox) put(f func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, f)
	start := !o.busy
	o.busy = true
	return start
}

func (o *outbox) run() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting) > 0 {
		f := o.waiting[0]
		o.waiting = o.waiting[1:]
		o.mu.Unlock()
		f()
		o.mu.Lock()
	}
	o.busy, o.waiting = false, nil
	if o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
}

// wait waits until all was sent, or ctx is done.
func (o *outbox) wait(ctx context.Context) {
	o.mu.Lock()
	if !o.busy {
		o.mu.Unlock()
		return
	}
	if o.idle == nil {
		o.idle = make(chan struct{})
	}
	idle := o.idle
	o.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
