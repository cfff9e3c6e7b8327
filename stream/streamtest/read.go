package streamtest

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"

	"holdfast/stream"
)

func inOrder(b *box) {
	const n = 200
	l := b.create("a")
	for seq := uint64(1); seq <= n; seq++ {
		b.add(l, rec(1, seq), rec(2, seq))
	}
	b.has(b.st, l, 1, 1, n, 0)
	for _, room := range []int{1, 3, 64, 1000} {
		after := at(l, 1, 0)
		after.Epoch = 0 // the epoch is not checked at the beginning
		for after.Seq < n {
			got, err := b.st.Read(b.Context(), after, make([]stream.Entry, 0, room))
			if err != nil || len(got) == 0 || len(got) > room {
				b.Fatalf("room for %d: got %d and %v", room, len(got), err)
			}
			for _, e := range got {
				if e.Seq != after.Seq+1 || !bytes.Equal(e.Data, text(1, e.Seq, 0)) || e.Last {
					b.Fatalf("after %d: %+v", after.Seq, e)
				}
				after.Seq, after.Epoch = e.Seq, l.Epoch
			}
		}
		got, err := b.st.Read(b.Context(), after, make([]stream.Entry, 0, room))
		if err != nil || len(got) != 0 {
			b.Fatalf("nothing new: got %d and %v", len(got), err)
		}
	}
	// Entries in the buffer stay, and no entry is written past its capacity.
	buf := make([]stream.Entry, 4)
	buf[0].Seq, buf[3].Seq = 77, 99
	got, err := b.st.Read(b.Context(), at(l, 1, 10), buf[:1:3])
	if err != nil || len(got) != 3 || got[0].Seq != 77 || got[1].Seq != 11 || got[2].Seq != 12 || buf[3].Seq != 99 {
		b.Errorf("got %+v and %v, then %d", got, err, buf[3].Seq)
	}
	got, err = b.st.Read(b.Context(), at(l, 1, 10), buf[:2:2])
	if err != nil || len(got) != 2 {
		b.Errorf("no room: got %+v and %v", got, err)
	}
	b.add(l, final(rec(1, n+1)))
	got, err = b.st.Read(b.Context(), at(l, 1, n+1), buf[:1])
	if len(got) != 1 {
		b.Errorf("got %+v beside the end", got)
	}
	b.want("Read at the end", err, io.EOF)
}

// tails follows streams, from different places, while they are written.
func tails(b *box) {
	const n = 500
	l := b.create("a")
	b.add(l, rec(1, 1), rec(1, 2))
	var wg sync.WaitGroup
	for i := range 6 {
		st, from := b.st, uint64(i%3)
		for number := uint64(1); number <= 2; number++ {
			after := at(l, number, from)
			if number == 2 {
				after.Seq = 0 // not written yet
			}
			ready := b.watch(st, after.Stream)
			wg.Go(func() {
				seq := after.Seq
				err := follow(b.Context(), st, after, ready, func(e stream.Entry) error {
					if seq++; e.Seq != seq || e.Last != (seq == n) || !bytes.Equal(e.Data, text(number, seq, 0)) {
						return fmt.Errorf("got %+v, want %d", e, seq)
					}
					return nil
				})
				if err != nil || seq != n {
					b.Errorf("stream %d from %d: %v, after %d", number, after.Seq, err, seq)
				}
			})
		}
	}
	next := [3]uint64{0, 3, 1}
	for next[1] <= n || next[2] <= n {
		var batch []stream.Record
		for number := uint64(1); number <= 2; number++ {
			for range next[number]%5 + number {
				if seq := next[number]; seq <= n {
					r := rec(number, seq)
					r.Last = seq == n
					batch = append(batch, r)
					next[number]++
				}
			}
		}
		b.add(l, batch...)
	}
	wg.Wait()
}

// gap trims a stream and reads from before its oldest entry.
func gap(b *box) {
	l := b.create("a")
	oldest := uint64(0)
	seq := uint64(0)
	for oldest < 3 {
		if seq++; seq > 1000 {
			b.Fatal("nothing is ever trimmed")
		}
		b.add(l, sized(1, seq, 4*kib))
		var err error
		if oldest, _, err = b.st.Bounds(b.Context(), at(l, 1, 0).Stream); err != nil {
			b.Fatal(err)
		}
	}
	for after := range oldest - 1 {
		got, err := read(b.Context(), b.st, at(l, 1, after))
		b.want(fmt.Sprintf("Read after %d of %d…", after, oldest), err, stream.ErrTrimmed)
		if len(got) > 0 {
			b.Errorf("%d entries after the gap", len(got))
		}
	}
	b.has(b.st, l, 1, oldest, seq, 4*kib)
}

func badCursor(b *box) {
	l := b.create("a")
	b.add(l, rec(1, 1), rec(1, 2), rec(2, 1), final(rec(2, 2)))
	for _, c := range []stream.Cursor{
		at(l, 1, 3), at(l, 2, 3), at(l, 1, 1<<63), at(l, 1, 1<<64-1), // past the newest
		{Stream: at(l, 1, 0).Stream, Epoch: l.Epoch + 1, Seq: 1},
		{Stream: at(l, 1, 0).Stream, Epoch: l.Epoch + 1, Seq: 2},
		{Stream: at(l, 2, 0).Stream, Epoch: l.Epoch + 1, Seq: 2},
	} {
		got, err := read(b.Context(), b.st, c)
		if len(got) > 0 {
			b.Errorf("%+v: got %+v", c, got)
		}
		b.want(fmt.Sprintf("Read after %+v", c), err, stream.ErrTrimmed)
	}
}

func neverWritten(b *box) {
	l := b.create("a")
	b.gone(l, 1)
	b.add(l, rec(1, 1))
	for _, number := range []uint64{0, 2, 1<<64 - 1} {
		b.gone(l, number)
	}
	m := b.create("b")
	b.gone(m, 1) // stream 1 is another session's
	ready := make(chan struct{}, 1)
	stop, err := b.st.Watch(at(l, 3, 0).Stream, ready)
	b.want("Watch", err, nil)
	b.gone(l, 3) // a watch does not write
	stop()
	b.gone(l, 3)
	_, err = read(b.Context(), b.st, at(l, 3, 5))
	b.want("Read after a later entry", err, stream.ErrNotFound)
}

func watched(b *box) {
	l := b.create("a")
	before := b.watch(b.st, at(l, 1, 0).Stream) // of a stream that does not exist yet
	second := b.watch(b.st, at(l, 2, 0).Stream)
	for seq := uint64(1); seq <= 20; seq++ {
		r := rec(1, seq)
		r.Last = seq == 20
		b.add(l, r)
		b.notified(before, "an append")
	}
	b.add(l, rec(2, 1))
	b.notified(second, "an append to another stream")

	// One channel may watch several streams, and several channels one stream.
	both := make(chan struct{}, 1)
	var stops []func()
	for number := uint64(3); number <= 4; number++ {
		stop, err := b.st.Watch(at(l, number, 0).Stream, both)
		b.want("Watch", err, nil)
		stops = append(stops, stop)
	}
	beside := b.watch(b.st, at(l, 3, 0).Stream)
	b.add(l, rec(3, 1))
	b.notified(both, "stream 3")
	b.notified(beside, "stream 3")
	b.add(l, rec(4, 1))
	b.notified(both, "stream 4")

	// stop ends its own watch and no other.
	stops[0]()
	b.add(l, rec(3, 2))
	b.notified(beside, "stream 3")
	if len(both) > 0 {
		b.Error("notified after stop")
	}
	b.add(l, rec(4, 2))
	b.notified(both, "stream 4")
	stops[1]()
}

// unwatched appends while no watcher reads its notifications.
func unwatched(b *box) {
	l := b.create("a")
	ready := b.watch(b.st, at(l, 1, 0).Stream)
	deaf := make(chan struct{}) // has no room
	stop, err := b.st.Watch(at(l, 1, 0).Stream, deaf)
	b.want("Watch", err, nil)
	defer stop()
	done := make(chan error, 1)
	go func() {
		var err error
		for seq := uint64(1); seq <= 100 && err == nil; seq++ {
			err = b.append(l, rec(1, seq))
		}
		done <- err
	}()
	select {
	case err := <-done:
		b.want("Append", err, nil)
	case <-time.After(patience):
		b.Fatal("an append waits for a watcher")
	}
	b.notified(ready, "a hundred appends")
	b.has(b.st, l, 1, 1, 100, 0)
}
