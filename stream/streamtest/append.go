package streamtest

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"holdfast/stream"
)

func created(b *box) {
	nobody := stream.Lease{Session: "nobody", Epoch: 1}
	b.want("Append to no session", b.append(nobody, rec(1, 1)), stream.ErrNotFound)
	_, err := b.st.Watch(at(nobody, 1, 0).Stream, make(chan struct{}, 1))
	b.want("Watch of no session", err, stream.ErrNotFound)
	b.gone(nobody, 1)

	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		st := b.st
		if i%2 == 1 {
			st = b.other
		}
		wg.Go(func() {
			l, err := st.Create(b.Context(), "a", nil)
			switch {
			case err == nil && l.Session == "a":
				won.Add(1)
			case !errors.Is(err, stream.ErrExists):
				b.Errorf("Create: %+v and %v", l, err)
			}
		})
	}
	wg.Wait()
	if n := won.Load(); n != 1 {
		b.Errorf("%d created the session", n)
	}
	l := b.create("b")
	b.add(l, rec(1, 1))
	_, err = b.other.Create(b.Context(), "b", nil)
	b.want("Create again", err, stream.ErrExists)
	b.has(b.st, l, 1, 1, 1, 0)
}

func allOrNone(b *box) {
	l := b.create("a")
	b.add(l, rec(1, 1), rec(2, 1), rec(0, 1), rec(1, 2), final(rec(3, 1)))
	b.want("gap at the end", b.append(l, rec(1, 3), rec(2, 2), rec(4, 1), rec(1, 5)), stream.ErrConflict)
	b.want("gap at the beginning", b.append(l, rec(2, 3), rec(1, 3)), stream.ErrConflict)
	b.want("after the last", b.append(l, rec(1, 3), rec(3, 2)), stream.ErrConflict)
	b.want("after a last of its own", b.append(l, final(rec(1, 3)), rec(1, 4)), stream.ErrConflict)
	b.want("twice in one", b.append(l, rec(4, 1), rec(4, 1), rec(4, 2)), stream.ErrConflict)
	b.has(b.st, l, 0, 1, 1, 0)
	b.has(b.st, l, 1, 1, 2, 0)
	b.has(b.st, l, 2, 1, 1, 0)
	b.gone(l, 4)
	b.add(l)
	b.add(l, rec(1, 3), rec(2, 2), final(rec(1, 4)))
	b.has(b.st, l, 1, 1, 4, 0)
	b.has(b.st, l, 2, 1, 2, 0)
}

func seenAtOnce(b *box) {
	l := b.create("a")
	for seq := uint64(1); seq <= 100; seq++ {
		b.add(l, rec(1, seq))
		got, err := read(b.Context(), b.st, at(l, 1, seq-1))
		if err != nil || len(got) != 1 || got[0].Seq != seq {
			b.Fatalf("after entry %d: %d entries and %v", seq, len(got), err)
		}
		if _, next, err := b.st.Bounds(b.Context(), at(l, 1, 0).Stream); err != nil || next != seq+1 {
			b.Fatalf("after entry %d: next is %d and %v", seq, next, err)
		}
	}
}

func durable(b *box) {
	if !b.o.Durable {
		b.Skip("the store promises nothing")
	}
	l := b.create("a")
	for seq := uint64(1); seq <= 50; seq++ {
		b.add(l, rec(1, seq), rec(2, seq))
	}
	b.add(l, final(rec(2, 51)))
	b.close()
	b.reopen()
	_, err := b.st.Create(b.Context(), "a", nil)
	b.want("Create again", err, stream.ErrExists)
	if b.nodes != nil {
		l = b.acquire(b.nodes[0], "a").Lease
	}
	b.has(b.st, l, 1, 1, 50, 0)
	b.has(b.st, l, 2, 1, 51, 0)
	b.add(l, rec(1, 51))
	b.want("Append after the last", b.append(l, rec(2, 52)), stream.ErrConflict)
}

func dense(b *box) {
	l := b.create("a")
	for _, seq := range []uint64{0, 2, 1 << 40} {
		b.want("not 1 first", b.append(l, rec(1, seq)), stream.ErrConflict)
	}
	b.gone(l, 1)
	for seq := uint64(1); seq <= 3; seq++ {
		b.add(l, rec(1, seq))
	}
	b.add(l, rec(2, 1)) // each stream counts for itself
	for _, seq := range []uint64{0, 5, 1 << 40} {
		b.want("not the next", b.append(l, rec(1, seq)), stream.ErrConflict)
	}
	b.has(b.st, l, 1, 1, 3, 0)
	m := b.create("b") // and so does each session
	b.add(m, rec(1, 1))
	b.has(b.st, m, 1, 1, 1, 0)
}

func repeated(b *box) {
	l := b.create("a")
	b.add(l, rec(1, 1), rec(1, 2), rec(2, 1))
	b.add(l, rec(1, 1), rec(1, 2), rec(2, 1)) // the whole append
	b.add(l, rec(1, 2))
	b.add(l, rec(1, 2), rec(1, 3)) // a part, and something new
	b.has(b.st, l, 1, 1, 3, 0)
	b.has(b.st, l, 2, 1, 1, 0)

	other := rec(1, 2)
	other.Data = []byte("{}")
	b.want("other bytes", b.append(l, other), stream.ErrConflict)
	b.want("other bytes before something new", b.append(l, other, rec(1, 4)), stream.ErrConflict)
	b.want("last where it was not", b.append(l, final(rec(1, 3))), stream.ErrConflict)
	b.has(b.st, l, 1, 1, 3, 0)

	b.add(l, final(rec(1, 4)))
	b.add(l, final(rec(1, 4)))
	b.add(l, rec(1, 3), final(rec(1, 4)))
	b.want("not last where it was", b.append(l, rec(1, 4)), stream.ErrConflict)
	b.has(b.st, l, 1, 1, 4, 0)
}

func fenced(b *box) {
	l := b.create("a")
	b.add(l, rec(1, 1))
	for _, epoch := range []uint64{l.Epoch + 1, l.Epoch - 1, l.Epoch + 1<<40} {
		old := stream.Lease{Session: l.Session, Epoch: epoch}
		b.want("another epoch", b.append(old, rec(1, 2), rec(2, 1)), stream.ErrFenced)
		b.want("another epoch, repeating", b.append(old, rec(1, 1)), stream.ErrFenced)
		b.want("another epoch, out of order", b.append(old, rec(1, 9)), stream.ErrFenced)
	}
	b.has(b.st, l, 1, 1, 1, 0)
	b.gone(l, 2)
	b.add(l, rec(1, 2))
}

func last(b *box) {
	l := b.create("a")
	b.add(l, rec(1, 1), final(rec(1, 2)))
	b.add(l, final(stream.Record{Number: 2, Entry: stream.Entry{Seq: 1}})) // empty
	b.want("after the last", b.append(l, rec(1, 3)), stream.ErrConflict)
	b.want("another last", b.append(l, final(rec(1, 3))), stream.ErrConflict)
	b.want("after an empty last", b.append(l, rec(2, 2)), stream.ErrConflict)
	b.has(b.st, l, 1, 1, 2, 0)
	got, err := read(b.Context(), b.st, at(l, 1, 0))
	if err != nil || len(got) != 2 || got[0].Last || !got[1].Last {
		b.Errorf("got %+v and %v", got, err)
	}
	got, err = read(b.Context(), b.st, at(l, 2, 0))
	if err != nil || len(got) != 1 || !got[0].Last || len(got[0].Data) != 0 {
		b.Errorf("got %+v and %v", got, err)
	}
	for number, seq := range []uint64{1: 2, 2: 1} {
		if number > 0 {
			_, err := read(b.Context(), b.st, at(l, uint64(number), seq))
			b.want("Read at the end", err, io.EOF)
		}
	}
}
