package client

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mcptest"
)

// However often a server ended the connection early, the client tries it again soon when it then is out of reach.
func TestBackoffAfterPolling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := backoff{retrySet: true, retry: 10 * time.Millisecond}
		wait := func(err error) time.Duration {
			t.Helper()
			began := time.Now()
			mcptest.Check(t, p.waitFor(t.Context(), err, time.Hour))
			return time.Since(began)
		}
		for range 100 {
			if d := wait(nil); d > 20*time.Millisecond {
				t.Fatalf("sent away for 10 ms, and waited %v", d)
			}
		}
		away := errors.New("away")
		if d := wait(away); d > 2*firstDelay {
			t.Errorf("away, and waited %v", d)
		}
		for range 20 {
			wait(away)
		}
		if d := wait(away); d < longestDelay/4 {
			t.Errorf("away for long, and waited %v", d)
		}
		wait(nil)
		if d := wait(away); d > 2*firstDelay {
			t.Errorf("away again, and waited %v", d)
		}
	})
}

// While a caller waits, the next connection comes soon. While none waits it comes later, or when a caller comes.
func TestBackoffIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var idle atomic.Bool
		idle.Store(true)
		p := backoff{idle: idle.Load, nudge: make(chan struct{}, 1)}
		away := errors.New("away")
		wait := func() time.Duration {
			t.Helper()
			p.hurry() // no caller waits at this hurry
			began := time.Now()
			mcptest.Check(t, p.waitFor(t.Context(), away, 24*time.Hour))
			return time.Since(began)
		}
		var longest time.Duration
		for range 100 {
			longest = max(longest, wait())
		}
		if longest <= longestIdle/2 || longest > longestIdle {
			t.Errorf("nobody waits, and it took up to %v", longest)
		}
		for range 10 {
			time.AfterFunc(time.Second, func() {
				idle.Store(false)
				p.hurry()
			})
			if d := wait(); d < longestDelay/2 || d > longestDelay {
				t.Errorf("somebody came, and it took %v", d)
			}
			idle.Store(true)
			time.AfterFunc(6*time.Second, func() {
				idle.Store(false)
				p.hurry()
			})
			if d := wait(); d > 6*time.Second {
				t.Errorf("somebody came late, and it took %v", d)
			}
			idle.Store(true)
		}
	})
}

// A connection without a message does not shorten the next wait, unless it lasted.
func TestBackoffAfterLongConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p backoff
		wait := func() time.Duration {
			began := time.Now()
			mcptest.Check(t, p.waitFor(t.Context(), nil, time.Hour))
			return time.Since(began)
		}
		for range 10 {
			p.reached()
			wait()
		}
		p.reached()
		if d := wait(); d < longestDelay/2 {
			t.Errorf("each connection ended at once, and it waited %v", d)
		}
		p.reached()
		time.Sleep(longestDelay)
		if d := wait(); d > 2*firstDelay {
			t.Errorf("the connection lasted, and it waited %v", d)
		}
	})
}

// The time that a server has to answer grows with each try for which it was too short.
func TestBackoffBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p backoff
		for _, want := range []time.Duration{10, 20, 30, 30} {
			if d := p.bound(30 * time.Second); d != want*time.Second {
				t.Errorf("%v, want %d s", d, want)
			}
			mcptest.Check(t, p.waitFor(t.Context(), errSilent, time.Hour))
		}
		p.reached()
		if d := p.bound(30 * time.Second); d != firstBound {
			t.Errorf("reached, and then %v", d)
		}
	})
}

// TestBackoffGivesUp has a server that stays out of reach: the client gives it up after giveUp, and no later for
// the sake of the last wait, unless the server asked for that wait.
func TestBackoffGivesUp(t *testing.T) {
	t.Parallel()
	for _, giveUp := range []time.Duration{0, time.Millisecond, 700 * time.Millisecond, 5 * time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			b, began, away := &backoff{}, time.Now(), errors.New("away")
			var err error
			for err == nil {
				err = b.waitFor(t.Context(), away, giveUp)
			}
			if took := time.Since(began); !errors.Is(err, away) || took < giveUp || took > giveUp+leastPoll {
				t.Errorf("given up after %v, want %v: %v", took, giveUp, err)
			}
			b = &backoff{retry: 3 * time.Second, retrySet: true}
			began = time.Now()
			_ = b.waitFor(t.Context(), away, max(giveUp, time.Second))
			if took := time.Since(began); took < b.retry {
				t.Errorf("asked again after %v, the server wants %v", took, b.retry)
			}
		})
	}
}
