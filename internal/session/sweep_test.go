package session

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/stream"
)

// everything is what a sweep is to take over whose node is gone.
func everything(stream.SessionKey) bool { return true }

// A sweep does not wait for the end of a list, which may be long.
func TestSweepWhileListing(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	for range 3 {
		a.open("alice")
	}
	a.kill()
	listed := 0
	mine := func(stream.SessionKey) bool {
		if listed++; listed > 1 {
			eventually(t, "the first to be taken over", func() bool { return b.Sessions() >= listed-1 })
		}
		return true
	}
	if err := b.Sweep(t.Context(), func(node string) bool { return node == "a" }, mine); err != nil {
		t.Fatal(err)
	}
	if b.Sessions() != 3 {
		t.Errorf("%d sessions", b.Sessions())
	}
}

// However many are asked for, some are taken over at a time, and all in the end: a
// sweep leaves room for those that clients ask for.
func TestTakersBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newShelf()
		a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
		const count = 2 * takers
		asked := make([]*Session, count)
		for i := range asked {
			asked[i] = a.open("alice")
		}
		a.kill()
		var under atomic.Int32
		hold := make(chan struct{})
		acquire := func() {
			under.Add(1)
			<-hold
		}
		b.node.taking.Store(&acquire)
		var work sync.WaitGroup
		work.Go(func() {
			if err := b.Sweep(t.Context(), func(node string) bool { return node == "a" }, everything); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if n := under.Load(); n != sweepers {
			t.Errorf("a sweep takes over %d at a time", n)
		}
		for _, s := range asked {
			work.Go(func() { b.take(s) })
		}
		synctest.Wait()
		if n := under.Load(); n != takers {
			t.Errorf("%d are taken over at a time", n)
		}
		close(hold)
		work.Wait()
		if b.Sessions() != count {
			t.Errorf("%d sessions", b.Sessions())
		}
		a.Close()
		b.Close()
	})
}

// Calls that end are all told before many backends are opened for those that are made
// again, one after the other.
func TestMadeAgainLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newShelf()
		a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
		const count = 50
		for range count {
			s := a.open("alice")
			begin(t, s, false, safeRequest(1))
			begin(t, s, false, request(2))
		}
		a.kill()
		began := time.Now()
		if err := b.Sweep(context.Background(), func(node string) bool { return node == "a" }, everything); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n, opened := b.Calls(), b.desk.opened(); n != count || opened > 1 {
			t.Errorf("after the sweep: %d calls, %d backends", n, opened)
		}
		time.Sleep(count * retryEvery)
		synctest.Wait()
		if n := b.desk.opened(); n != count {
			t.Errorf("%d backends after %v", n, time.Since(began))
		}
		a.Close()
		b.Close()
	})
}
