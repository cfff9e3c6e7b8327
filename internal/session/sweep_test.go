package session

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
	"holdfast/internal/mcptest"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// everything lets a sweep take over all sessions of lost nodes.
func everything(stream.SessionKey) bool { return true }

// A sweep does not wait for the end of the store's list of sessions, which may be long.
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
			mcptest.Eventually(t, "the first to be taken over", time.Minute, func() bool { return b.Sessions() >= listed-1 })
		}
		return true
	}
	mcptest.Check(t, b.Finder.Sweep(t.Context(), func(node string) bool { return node == "a" }, mine))
	if b.Sessions() != 3 {
		t.Errorf("%d sessions", b.Sessions())
	}
}

// However many sessions are wanted, only some are taken over at a time, and all in
// the end. A sweep leaves room for the sessions that clients ask for.
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
			if err := b.Finder.Sweep(t.Context(), func(node string) bool { return node == "a" }, everything); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if n := under.Load(); n != whereabouts.Sweepers {
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

// The clients of calls that end get that end before many backends are opened, one
// after the other, for calls that are made again.
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
		if err := b.Finder.Sweep(context.Background(), func(node string) bool { return node == "a" }, everything); err != nil {
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

// unmarking is the store of an earlier build, which marks no sessions.
type unmarking struct{ shared.Store }

// newMarkingHouse builds a manager over an engine with a store that marks sessions, or over the store that wrap makes of it.
func newMarkingHouse(t testing.TB, e *logtest.Engine, wrap func(shared.Store) shared.Store) *house {
	return newHouse(t, safeTools(), func(other stream.Store) stream.Store {
		_ = other.Close()
		return wrap(durable.New(e.Open(), durable.Options{}))
	})
}

// The mark of a session is removed when no call of it needs another node, and not before.
func TestMarkedSessionRests(t *testing.T) {
	t.Parallel()
	h := newMarkingHouse(t, logtest.New(logtest.Options{}), func(st shared.Store) shared.Store { return st })
	defer h.close()
	rests := func(s *Session) bool { return h.store.(whereabouts.Marking).Rests(s.key) }
	s := h.open("")
	if !rests(s) || h.mayRest(s) {
		t.Error("a session without calls is marked")
	}
	c := begin(t, s, false, request(1))
	if rests(s) || h.mayRest(s) {
		t.Error("one with a call in flight is not marked, or may rest")
	}
	link := h.desk.last()
	link.say((<-link.in).Call, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	readAll(t, s, c.Number())
	mcptest.Eventually(t, "it to be quiet", time.Minute, func() bool { return h.mayRest(s) })
	s.keyed.Store(true)
	if h.mayRest(s) {
		t.Error("one whose calls can be found by their keys may rest")
	}
	s.keyed.Store(false)
	h.rest([]*Session{s})
	if !rests(s) {
		t.Error("it is still marked")
	}
}

// Where the store marks sessions with calls, a sweep takes over the marked sessions, and all sessions of a node that marks none.
func TestSweepMarked(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	same := func(st shared.Store) shared.Store { return st }
	lost, old, last := newMarkingHouse(t, e, same), newMarkingHouse(t, e, func(st shared.Store) shared.Store { return unmarking{st} }), newMarkingHouse(t, e, same)
	gone := func(node string) bool { return node != last.shared.Node() }
	everything := func(stream.SessionKey) bool { return true }
	mcptest.Eventually(t, "the nodes to be known as marking", time.Minute, func() bool {
		nodes, err := last.store.(whereabouts.Marking).Marking(t.Context())
		return err == nil && len(nodes) == 3
	})
	// The old house runs on this build's store, which announces that it marks. A store of the earlier build would not.
	if err := e.Open().Remove(t.Context(), "n."+old.shared.Node(), 0); err != nil {
		t.Fatal(err)
	}
	var calls []*Session
	for i := range 10 {
		s := lost.open("")
		old.open("")
		if i == 5 {
			begin(t, s, false, request(1))
			calls = append(calls, s)
		}
	}
	// The other nodes are lost: they were not closed.
	if err := last.Finder.Sweep(t.Context(), gone, everything); err != nil {
		t.Fatal(err)
	}
	if n := last.Sessions(); n != 11 {
		t.Errorf("%d sessions were taken over, want one with a call, and 10 of the node that marks none", n)
	}
	if !last.isKnown(calls[0].key) {
		t.Error("the one with a call was not")
	}
	// After the first sweep no sweep lists all sessions.
	s := lost.open("")
	begin(t, s, false, request(1))
	old.open("")
	if err := last.Finder.Sweep(t.Context(), gone, everything); err != nil {
		t.Fatal(err)
	}
	if n := last.Sessions(); n != 12 {
		t.Errorf("%d sessions after another sweep, want one more", n)
	}
	for _, h := range []*house{last, old, lost} {
		h.close()
	}
}

// A node that marks no sessions may come and go between two sweeps: its sessions are taken over all the same, also a session with the mark of a
// node that lives.
func TestSweepUnmarkedBetween(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	last := newMarkingHouse(t, e, func(st shared.Store) shared.Store { return st })
	old := newMarkingHouse(t, e, func(st shared.Store) shared.Store { return unmarking{st} })
	defer last.close()
	defer old.close()
	heard := []string{}
	last.Finder.OnHomes(func() whereabouts.Homes {
		return whereabouts.Homes{Settled: true, Heard: func() []string { return heard }}
	})
	everything := func(stream.SessionKey) bool { return true }
	mcptest.Eventually(t, "the nodes to be known as marking", time.Minute, func() bool {
		nodes, err := last.store.(whereabouts.Marking).Marking(t.Context())
		return err == nil && len(nodes) == 2
	})
	log := e.Open()
	if err := log.Remove(t.Context(), "n."+old.shared.Node(), 0); err != nil { // a store of the earlier build would not announce that it marks
		t.Fatal(err)
	}
	if err := last.Finder.Sweep(t.Context(), func(string) bool { return false }, everything); err != nil {
		t.Fatal(err)
	}
	heard = append(heard, old.shared.Node())
	s, other := old.open(""), old.open("")
	if _, err := log.Put(t.Context(), "w."+string(other.key), 0, []byte("lives"), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := last.Finder.Sweep(t.Context(), func(node string) bool { return node == old.shared.Node() }, everything); err != nil {
		t.Fatal(err)
	}
	if !last.isKnown(s.key) || !last.isKnown(other.key) {
		t.Errorf("of a lost node that marks none, the session was taken over: %v; one with the mark of another node: %v", last.isKnown(s.key), last.isKnown(other.key))
	}
}
