package streamtest

import (
	"errors"
	"time"

	"holdfast/stream"
)

// big is the size of an entry in the cases about limits, which are much larger.
const big = 4 * kib

// fill appends entries to stream 1, until one is refused or they have more than
// most bytes, and returns the number of accepted ones.
func (b *box) fill(l stream.Lease, most int) uint64 {
	b.Helper()
	for seq := uint64(1); ; seq++ {
		err := b.append(l, sized(1, seq, big))
		switch {
		case errors.Is(err, stream.ErrFull):
			return seq - 1
		case err != nil:
			b.Fatalf("Append: %v", err)
		case int(seq)*big > most:
			return seq
		}
	}
}

func streamLimit(b *box) {
	const limit = 32 * kib
	l := b.create("a")
	b.add(l, sized(2, 1, big))
	n := b.fill(l, 2*limit)
	if n*big <= 2*limit {
		b.Fatalf("refused after %d entries", n)
	}
	oldest, next, err := b.st.Bounds(b.Context(), at(l, 1, 0).Stream)
	if err != nil || next != n+1 {
		b.Fatalf("Bounds: %d, %d and %v", oldest, next, err)
	}
	if kept := int(next-oldest) * big; kept > limit || kept < limit/2-big {
		b.Errorf("%d bytes are kept", kept)
	}
	b.has(b.st, l, 1, oldest, n, big)
	b.has(b.st, l, 2, 1, 1, big)
	b.add(l, sized(1, n, big)) // repeated
	b.has(b.st, l, 1, oldest, n, big)
}

func sessionFinished(b *box) {
	l := b.create("a")
	b.add(l, sized(1, 1, big), final(sized(1, 2, big)))
	b.add(l, sized(2, 1, big), sized(2, 2, big))
	b.add(l, final(sized(3, 1, big)))
	m := b.create("b")
	b.add(m, final(sized(1, 1, big)))
	// The finished streams go, the oldest first.
	gone := []bool{1: false, 3: false}
	for seq := uint64(1); !gone[3]; seq++ {
		if seq > 100 {
			b.Fatal("what was finished is still there")
		}
		b.add(l, sized(4, seq, big))
		if oldest, _, err := b.st.Bounds(b.Context(), at(l, 4, 0).Stream); err != nil || oldest != 1 {
			b.Fatalf("unfinished stream starts at %d: %v", oldest, err)
		}
		for _, number := range []uint64{1, 3} {
			_, _, err := b.st.Bounds(b.Context(), at(l, number, 0).Stream)
			gone[number] = errors.Is(err, stream.ErrNotFound)
		}
		if gone[3] && !gone[1] {
			b.Fatal("the newer one went first")
		}
	}
	b.gone(l, 1)
	b.gone(l, 3)
	b.has(b.st, l, 2, 1, 2, big)
	b.has(b.st, m, 1, 1, 1, big) // another session's finished stream
}

func sessionLimit(b *box) {
	const limit = 64 * kib
	l := b.create("a")
	m := b.create("b")
	b.add(m, sized(1, 1, big))
	b.add(l, sized(2, 1, big), sized(2, 2, big))
	n := b.fill(l, 2*limit)
	oldest, next, err := b.st.Bounds(b.Context(), at(l, 1, 0).Stream)
	if err != nil || next != n+1 {
		b.Fatalf("Bounds: %d, %d and %v", oldest, next, err)
	}
	if kept := int(next-oldest+2) * big; kept > limit || kept < limit/2-big {
		b.Errorf("%d bytes are kept", kept)
	}
	b.has(b.st, l, 1, oldest, n, big)
	b.has(b.st, l, 2, 1, 2, big)
	b.has(b.st, m, 1, 1, 1, big)
	// An entry that could never fit drops no other entries.
	err = b.append(l, sized(1, n+1, 2*limit))
	b.want("an entry over the limit", err, stream.ErrFull)
	b.has(b.st, l, 1, oldest, n, big)
	// Nor does an entry of a new stream, which has no old entries to drop.
	for number := uint64(3); ; number++ {
		if err := b.append(l, sized(number, 1, big)); errors.Is(err, stream.ErrFull) {
			break
		} else if err != nil || number > 100 {
			b.Fatalf("stream %d: %v", number, err)
		}
	}
	b.has(b.st, l, 1, oldest, n, big)
	b.has(b.st, l, 2, 1, 2, big)
}

func totalFinished(b *box) {
	const limit = 64 * kib
	l, m := b.create("a"), b.create("b")
	b.add(m, sized(1, 1, big))
	b.add(m, final(sized(2, 1, big)))
	b.add(l, final(sized(2, 1, big)))
	n := b.fill(l, 2*limit)
	b.gone(m, 2)
	b.gone(l, 2)
	b.has(b.st, m, 1, 1, 1, big)
	oldest, next, err := b.st.Bounds(b.Context(), at(l, 1, 0).Stream)
	if err != nil || next != n+1 {
		b.Fatalf("Bounds: %d, %d and %v", oldest, next, err)
	}
	if kept := int(next-oldest+1) * big; kept > limit || kept < limit/2-big {
		b.Errorf("%d bytes are kept", kept)
	}
}

// fair checks that the tenant that keeps most loses streams first.
func fair(b *box) {
	const limit = 64 * kib
	one, few, many := b.create("one"), b.create("few"), b.create("many")
	again := b.create("again")
	for lease, tenant := range map[stream.Lease]string{one: "modest", few: "greedy", many: "greedy", again: "busy"} {
		b.st.Count(lease, tenant)
	}
	b.add(one, final(sized(1, 1, big))) // the oldest of all
	b.add(few, final(sized(1, 1, big)))
	b.add(few, final(sized(2, 1, big)))
	for number := uint64(1); number <= 4*limit/big; number++ {
		b.add(many, final(sized(number, 1, big)))
		b.has(b.st, one, 1, 1, 1, big)
	}
	// The session of that tenant that keeps most loses them, also to another
	// tenant.
	for number := uint64(1); number <= limit/4/big; number++ {
		b.add(again, final(sized(number, 1, big)))
	}
	b.has(b.st, one, 1, 1, 1, big)
	b.has(b.st, few, 1, 1, 1, big)
	b.has(b.st, few, 2, 1, 1, big)
}

// share checks that unended streams of one tenant leave room to the others.
func share(b *box) {
	const limit = 64 * kib
	l, m, o := b.create("a"), b.create("b"), b.create("c")
	b.st.Count(l, "greedy")
	b.st.Count(m, "greedy")
	b.st.Count(o, "modest")
	had := 0
	for number := uint64(1); ; number++ {
		if err := b.append([]stream.Lease{l, m}[number%2], sized(number, 1, big)); errors.Is(err, stream.ErrFull) {
			break
		} else if err != nil || number > 100 {
			b.Fatalf("stream %d: %v", number, err)
		}
		had += big
	}
	if had < limit/2-big || had > limit*3/4 {
		b.Errorf("one tenant keeps %d bytes", had)
	}
	for number := uint64(1); number <= limit/8/big; number++ {
		b.add(o, sized(number, 1, big))
	}
	for number := uint64(1); number <= uint64(had/big); number++ {
		b.has(b.st, []stream.Lease{l, m}[number%2], number, 1, 1, big)
	}
}

// spent checks that acknowledged streams of any tenant are dropped first.
func spent(b *box) {
	const limit = 64 * kib
	l, m := b.create("a"), b.create("b")
	b.st.Count(l, "greedy")
	b.st.Count(m, "modest")
	b.add(m, final(sized(1, 1, big)))
	b.add(m, final(sized(2, 1, big)))
	b.add(m, sized(3, 1, big))
	for number := uint64(5); number < 5+limit/3/big; number++ {
		b.add(m, sized(number, 1, big))
	}
	b.add(l, final(sized(1, 1, big)))
	for _, id := range []stream.ID{at(m, 2, 0).Stream, at(m, 3, 0).Stream, at(m, 4, 0).Stream, {Session: "nobody", Number: 1}} {
		b.st.Acknowledge(id) // has no effect on streams that have not ended or do not exist
	}
	b.has(b.st, m, 2, 1, 1, big)
	for number := uint64(2); ; number++ {
		b.add(l, final(sized(number, 1, big)))
		_, _, err := b.st.Bounds(b.Context(), at(m, 2, 0).Stream)
		_, _, other := b.st.Bounds(b.Context(), at(l, 1, 0).Stream)
		if errors.Is(err, stream.ErrNotFound) && other == nil {
			break
		}
		if err != nil || other != nil || number > 2*limit/big {
			b.Fatalf("what was acknowledged: %v; what was not: %v", err, other)
		}
	}
	b.has(b.st, m, 1, 1, 1, big)
	b.has(b.st, m, 3, 1, 1, big)
}

func totalLimit(b *box) {
	const limit = 64 * kib
	l, m := b.create("a"), b.create("b")
	n := b.fill(l, limit/2)
	had := b.fill(m, 2*limit)
	oldest, _, err := b.st.Bounds(b.Context(), at(m, 1, 0).Stream)
	b.want("Bounds", err, nil)
	// A session that needs more room takes none from another.
	b.has(b.st, l, 1, 1, n, big)
	b.has(b.st, m, 1, oldest, had, big)
	o := b.create("c")
	b.want("a newcomer", b.append(o, sized(1, 1, 2*big)), stream.ErrFull)
	b.gone(o, 1)
	b.has(b.st, l, 1, 1, n, big)
	// An append that was refused succeeds when there is room again.
	if err := b.st.Delete(b.Context(), m.Session); err != nil {
		b.Fatal(err)
	}
	b.add(o, sized(1, 1, 2*big))
	b.has(b.st, l, 1, 1, n, big)
}

func fullEnd(b *box) {
	const limit = 64 * kib
	l, m := b.create("a"), b.create("b")
	b.add(m, rec(1, 1), rec(2, 1), rec(3, 1), rec(4, 1))
	n := b.fill(l, 2*limit)
	oldest, _, err := b.st.Bounds(b.Context(), at(l, 1, 0).Stream)
	b.want("Bounds", err, nil)
	for number := uint64(5); ; number++ { // streams without older entries to drop
		if err := b.append(m, sized(number, 1, 16)); errors.Is(err, stream.ErrFull) {
			break
		} else if err != nil || number > 10_000 {
			b.Fatalf("stream %d: %v", number, err)
		}
	}
	// Now there is no room at all.
	b.want("an end that is large", b.append(m, final(sized(1, 2, 2*stream.Reserve))), stream.ErrFull)
	b.want("no end", b.append(m, sized(1, 2, stream.Reserve)), stream.ErrFull)
	b.want("an end and no end", b.append(m, final(sized(1, 2, stream.Reserve)), sized(2, 2, stream.Reserve)), stream.ErrFull)
	b.add(m, final(sized(1, 2, stream.Reserve)))
	b.want("after the end", b.append(m, rec(1, 3)), stream.ErrConflict)
	b.has(b.st, l, 1, oldest, n, big)
	// An append that ends several streams, in several entries.
	b.add(m, sized(2, 2, stream.Reserve), sized(3, 2, stream.Reserve), final(sized(2, 3, stream.Reserve)), final(rec(3, 3)))
	_, next, err := b.st.Bounds(b.Context(), at(m, 2, 0).Stream)
	if err != nil || next != 4 {
		b.Errorf("next is %d and %v", next, err)
	}
	b.has(b.st, l, 1, oldest, n, big)
}

func fullRepeat(b *box) {
	const limit = 64 * kib
	l := b.create("a")
	n := b.fill(l, 2*limit)
	oldest, _, err := b.st.Bounds(b.Context(), at(l, 1, 0).Stream)
	b.want("Bounds", err, nil)
	b.add(l, sized(1, n, big))
	b.has(b.st, l, 1, oldest, n, big)
}

func kept(b *box) {
	l := b.create("a")
	b.add(l, rec(2, 1), rec(0, 1))
	start := time.Now()
	b.add(l, rec(1, 1), final(rec(1, 2)))
	for {
		_, err := read(b.Context(), b.st, at(l, 1, 0))
		passed := time.Since(start)
		if errors.Is(err, stream.ErrNotFound) {
			if passed < 300*time.Millisecond {
				b.Errorf("gone after %v", passed)
			}
			break
		}
		if err != nil || passed > patience {
			b.Fatalf("after %v: %v", passed, err)
		}
		time.Sleep(5 * time.Millisecond) // polling: there is no event to wait for
	}
	b.gone(l, 1)
	b.has(b.st, l, 0, 1, 1, 0) // unfinished ones stay
	b.has(b.st, l, 2, 1, 1, 0)
	b.add(l, rec(2, 2), final(rec(0, 2)))
}

func deleted(b *box) {
	l, m := b.create("a"), b.create("b")
	b.add(l, rec(1, 1), final(rec(2, 1)))
	b.add(m, rec(1, 1))
	if err := b.st.Delete(b.Context(), "a"); err != nil {
		b.Fatal(err)
	}
	b.gone(l, 1)
	b.gone(l, 2)
	b.want("Append", b.append(l, rec(1, 2)), stream.ErrNotFound)
	_, err := b.st.Watch(at(l, 1, 0).Stream, make(chan struct{}, 1))
	b.want("Watch", err, stream.ErrNotFound)
	b.has(b.st, m, 1, 1, 1, 0)
	for _, key := range []stream.SessionKey{"a", "nobody"} {
		if err := b.st.Delete(b.Context(), key); err != nil {
			b.Errorf("Delete of %q: %v", key, err)
		}
	}
	l = b.create("a") // another one
	b.gone(l, 1)
	b.add(l, rec(1, 1))
}

func deletedWatched(b *box) {
	l := b.create("a")
	b.add(l, rec(1, 1), final(rec(2, 1)))
	for number := uint64(1); number <= 3; number++ { // unfinished, finished, not written
		defer func(ready <-chan struct{}) { b.notified(ready, "the deletion") }(b.watch(b.st, at(l, number, 0).Stream))
	}
	if err := b.st.Delete(b.Context(), "a"); err != nil {
		b.Fatal(err)
	}
}
