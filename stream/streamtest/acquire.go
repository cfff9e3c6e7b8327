package streamtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

func takenOver(b *box) {
	_, other := b.shared()
	old := b.create("a")
	b.add(old, rec(1, 1), rec(1, 2))
	// The new owner sees every append that succeeded.
	type end struct {
		seq uint64
		err error
	}
	stored := make(chan end)
	begun := make(chan struct{})
	go func() {
		for seq := uint64(3); ; seq++ {
			if err := b.append(old, rec(1, seq)); err != nil {
				stored <- end{seq - 1, err}
				return
			}
			if seq == 10 {
				close(begun)
			}
		}
	}()
	<-begun
	l := b.acquire(other, "a").Lease
	if l.Epoch <= old.Epoch {
		b.Errorf("epoch %d after %d", l.Epoch, old.Epoch)
	}
	_, next, err := other.Bounds(b.Context(), at(l, 1, 0).Stream)
	e := <-stored
	if err != nil || next != e.seq+1 {
		b.Fatalf("%d entries stored, next seen is %d and %v", e.seq, next, err)
	}
	b.want("the append that was one too many", e.err, stream.ErrFenced)
	b.has(other, l, 1, 1, e.seq, 0)
	if err := other.Append(b.Context(), l, []stream.Record{rec(1, next), final(rec(1, next+1))}); err != nil {
		b.Fatal(err)
	}
	b.want("old owner", b.append(old, rec(2, 1)), stream.ErrFenced)
	b.gone(l, 2)
	// An entry has the epoch of its writer.
	if _, err := read(b.Context(), other, at(old, 1, 2)); err != nil {
		b.Errorf("cursor of the old epoch: %v", err)
	}
	_, err = read(b.Context(), other, at(l, 1, 2))
	b.want("old entry under the new epoch", err, stream.ErrTrimmed)
	_, err = read(b.Context(), other, at(old, 1, next))
	b.want("new entry under the old epoch", err, stream.ErrTrimmed)
	_, err = read(b.Context(), other, at(l, 1, next+1))
	b.want("the end", err, io.EOF)
}

func contested(b *box) {
	b.shared()
	l := b.create("a")
	b.add(l, rec(1, 1))
	for round := range 10 {
		was := b.lookup(b.nodes[round%2], "a")
		var mu sync.Mutex
		var winner shared.Store
		var won shared.Taken
		var wg sync.WaitGroup
		for i := range 6 {
			st := b.nodes[i%2]
			wg.Go(func() {
				taken, err := st.Acquire(b.Context(), was)
				switch {
				case err == nil:
					mu.Lock()
					if winner != nil {
						b.Errorf("round %d: two have acquired it: %+v and %+v", round, taken.Lease, won.Lease)
					}
					winner, won = st, taken
					mu.Unlock()
				case !errors.Is(err, stream.ErrConflict):
					b.Errorf("Acquire: %v", err)
				}
			})
		}
		wg.Wait()
		if winner == nil {
			b.Fatalf("round %d: nobody has acquired it", round)
		}
		now := b.lookup(b.nodes[0], "a")
		if now.Owner != winner.Node() || now.Epoch != won.Epoch || now.Open {
			b.Fatalf("round %d: %s won epoch %d, and it is %+v", round, winner.Node(), won.Epoch, now)
		}
		b.is(won, shared.Stream{Number: 1, Oldest: 1, Next: uint64(round + 2)})
		b.want("the winner's append", winner.Append(b.Context(), won.Lease, []stream.Record{rec(1, uint64(round+2))}), nil)
		_, err := b.nodes[1].Acquire(b.Context(), was)
		b.want("Acquire of what was", err, stream.ErrConflict)
	}
	_, err := b.nodes[0].Acquire(b.Context(), shared.Session{Key: "nobody", Epoch: 1})
	b.want("Acquire of no session", err, stream.ErrNotFound)
}

// passedOn moves a session from node to node. Each continues its streams.
func passedOn(b *box) {
	b.shared()
	l := b.create("a")
	owner := b.nodes[0]
	for round := uint64(1); round <= 12; round++ {
		b.want("Append", owner.Append(b.Context(), l, []stream.Record{
			rec(0, round), rec(1, 2*round-1), note(1, fmt.Sprint("round ", round)), rec(1, 2*round), final(rec(round+1, 1)),
		}), nil)
		old, was := l, owner
		owner = b.nodes[round%2]
		taken := b.acquire(owner, "a")
		l = taken.Lease
		b.is(taken, shared.Stream{Number: 0, Oldest: 1, Next: round + 1})
		b.is(taken, shared.Stream{Number: 1, Note: fmt.Append(nil, "round ", round), Oldest: 1, Next: 2*round + 1})
		for n := uint64(2); n <= round+1; n++ {
			b.is(taken, shared.Stream{Number: n, Oldest: 1, Next: 2, Ended: true})
			b.has(owner, l, n, 1, 1, 0)
		}
		b.has(owner, l, 1, 1, 2*round, 0)
		b.want("old owner", was.Append(b.Context(), old, []stream.Record{rec(0, round+1)}), stream.ErrFenced)
		if was != owner {
			was.Forget(old)
			_, _, err := was.Bounds(b.Context(), at(old, 1, 0).Stream)
			b.want("Bounds of what is forgotten", err, stream.ErrNotFound)
		}
		was.Forget(old) // has no effect on the session under a newer lease
		b.has(owner, l, 1, 1, 2*round, 0)
	}
	got, err := read(b.Context(), owner, at(l, 1, 0))
	b.want("Read", err, nil)
	for i, e := range got {
		if want := uint64(i/2 + 1); e.Epoch != want {
			b.Fatalf("entry %d has epoch %d, want %d", e.Seq, e.Epoch, want)
		}
	}
}

func acquired(b *box) {
	st, other := b.shared()
	about := []byte("about \x00\xff it")
	l, err := st.Create(b.Context(), "a", about)
	b.want("Create", err, nil)
	b.add(l, rec(0, 1), rec(7, 1), rec(1<<63, 1))
	b.add(l, final(rec(7, 2)), sized(8, 1, 50*kib))
	b.add(l, final(stream.Record{Number: 9, Entry: stream.Entry{Seq: 1}})) // empty
	was := b.lookup(other, "a")
	if was.Key != "a" || was.Owner != st.Node() || was.Open || was.Epoch != l.Epoch || !bytes.Equal(was.About, about) {
		b.Errorf("Lookup: %+v", was)
	}
	taken, err := other.Acquire(b.Context(), was)
	b.want("Acquire", err, nil)
	if taken.Session != "a" || !bytes.Equal(taken.About, about) {
		b.Errorf("Acquire: %+v", taken)
	}
	for i, want := range []shared.Stream{
		{Number: 0, Oldest: 1, Next: 2},
		{Number: 7, Oldest: 1, Next: 3, Ended: true},
		{Number: 8, Oldest: 1, Next: 2},
		{Number: 9, Oldest: 1, Next: 2, Ended: true},
		{Number: 1 << 63, Oldest: 1, Next: 2},
	} {
		if len(taken.Streams) != 5 || taken.Streams[i].Number != want.Number {
			b.Fatalf("streams are %+v", taken.Streams)
		}
		b.is(taken, want)
	}
	b.has(other, taken.Lease, 8, 1, 1, 50*kib)
	b.has(other, taken.Lease, 1<<63, 1, 1, 0)
	_, err = read(b.Context(), other, at(l, 7, 2))
	b.want("Read at the end", err, io.EOF)
	b.want("after the last", other.Append(b.Context(), taken.Lease, []stream.Record{rec(7, 3)}), stream.ErrConflict)
	b.want("not the next", other.Append(b.Context(), taken.Lease, []stream.Record{rec(8, 3)}), stream.ErrConflict)
	b.want("repeated", other.Append(b.Context(), taken.Lease, []stream.Record{rec(0, 1)}), nil)
	again := b.lookup(st, "a")
	if again.Owner != other.Node() || again.Epoch != taken.Epoch || !bytes.Equal(again.About, about) {
		b.Errorf("Lookup: %+v", again)
	}
	// A session without streams can be acquired, too.
	b.create("b")
	if n := len(b.acquire(other, "b").Streams); n != 0 {
		b.Errorf("%d streams of an empty session", n)
	}
}

// lateKeep is how long finished streams are kept in acquiredLate.
const lateKeep = time.Second

func acquiredLate(b *box) {
	_, other := b.shared()
	for try, late := 0, 50*time.Millisecond; ; try, late = try+1, 2*late {
		key := stream.SessionKey(fmt.Sprint("a", try))
		start := time.Now()
		l := b.create(key)
		b.add(l, rec(2, 1))
		b.add(l, note(1, "note"), rec(1, 1), final(rec(1, 2)))
		ended := time.Now()
		for time.Since(ended) < lateKeep+late {
			time.Sleep(10 * time.Millisecond) // polling: there is no event to wait for
		}
		taken := b.acquire(other, key)
		switch {
		case time.Since(start) >= 2*lateKeep+late && try < 10:
			continue // this machine stood still, and so did the goroutine that keeps unended streams from expiring
		case len(taken.Streams) == 2 && try < 6:
			// The engine's time is read late by as long as its answer took, and expired
			// entries are kept longer by that.
			continue
		}
		b.is(taken, shared.Stream{Number: 2, Oldest: 1, Next: 2})
		if len(taken.Streams) != 1 {
			b.Errorf("streams are %+v", taken.Streams)
		}
		b.gone(taken.Lease, 3)
		return
	}
}

func acquiredTrimmed(b *box) {
	_, other := b.shared()
	l := b.create("a")
	seq := uint64(0)
	for range 30 {
		seq++
		b.add(l, sized(1, seq, 4*kib))
	}
	oldest, next, err := b.st.Bounds(b.Context(), at(l, 1, 0).Stream)
	b.want("Bounds", err, nil)
	if oldest == 1 {
		b.Fatal("nothing was trimmed")
	}
	taken := b.acquire(other, "a")
	got := taken.Streams[0]
	if got.Next != next || got.Oldest == 1 || got.Oldest > next-4 {
		b.Errorf("acquired %+v of %d to %d", got, oldest, next)
	}
	b.has(other, taken.Lease, 1, got.Oldest, seq, 4*kib)
	_, err = read(b.Context(), other, at(l, 1, 1))
	b.want("Read of what is lost", err, stream.ErrTrimmed)
}

func released(b *box) {
	st, other := b.shared()
	l := b.create("a")
	b.add(l, rec(1, 1), note(2, "note"))
	ready := b.watch(b.st, at(l, 1, 0).Stream)
	b.want("Release", st.Release(b.Context(), l, true), nil)
	b.notified(ready, "the release")
	_, _, err := st.Bounds(b.Context(), at(l, 1, 0).Stream)
	b.want("Bounds of what was released", err, stream.ErrNotFound)
	if err := b.append(l, rec(1, 2)); err == nil {
		b.Error("appended to what was released")
	}
	was := b.lookup(other, "a")
	if was.Owner != "" || !was.Open {
		b.Errorf("Lookup: %+v", was)
	}
	_, err = b.st.Create(b.Context(), "a", nil)
	b.want("Create of what was released", err, stream.ErrExists)
	taken := b.acquire(other, "a")
	b.is(taken, shared.Stream{Number: 1, Oldest: 1, Next: 2})
	b.is(taken, shared.Stream{Number: 2, Note: []byte("note"), Oldest: 1, Next: 1})
	if was := b.lookup(other, "a"); was.Open || was.Owner != other.Node() {
		b.Errorf("Lookup: %+v", was)
	}
	b.want("Release", other.Release(b.Context(), taken.Lease, false), nil)
	if was := b.lookup(st, "a"); was.Open || was.Owner != "" {
		b.Errorf("Lookup: %+v", was)
	}
	taken = b.acquire(st, "a")
	b.want("Append", st.Append(b.Context(), taken.Lease, []stream.Record{final(rec(1, 2))}), nil)
	b.has(st, taken.Lease, 1, 1, 2, 0)
	other = b.nodes[1]
	next := b.acquire(other, "a")
	b.want("Release of what another has", st.Release(b.Context(), taken.Lease, true), stream.ErrFenced)
	b.has(other, next.Lease, 1, 1, 2, 0)
}
