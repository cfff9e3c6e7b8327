package logtest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/stream"
)

func appendCompares(b *box) {
	key := b.seq("a")
	at, err := b.log.Append(b.Context(), key, 5, []byte("x"))
	b.want("Append after a frame where there is none", err, stream.ErrConflict)
	if at != 0 {
		b.Errorf("the last frame of none is at %d", at)
	}
	b.sees(key, 0)
	one := b.add(b.log, key, 0, "one")
	for _, last := range []uint64{0, one + 1, one + 1<<32} {
		at, err = b.other.Append(b.Context(), key, last, []byte("x"))
		b.want("Append out of place", err, stream.ErrConflict)
		if at != one {
			b.Errorf("the last frame is at %d, and told to be at %d", one, at)
		}
	}
	two := b.add(b.other, key, one, "two")
	at, err = b.log.Append(b.Context(), key, one, []byte("x"))
	b.want("Append after a frame that is not the last", err, stream.ErrConflict)
	if at != two {
		b.Errorf("the last frame is at %d, and told to be at %d", two, at)
	}
	b.sees(key, 0, kept{one, []byte("one")}, kept{two, []byte("two")})
}

// appendRaces has several writers append after the last frame that each knows.
func appendRaces(b *box) {
	const writers, each = 6, 40
	key := b.seq("a")
	var mu sync.Mutex
	won := make(map[uint64]string) // frames, by the places that they follow
	var wg sync.WaitGroup
	for i := range writers {
		log := b.log
		if i%2 == 1 {
			log = b.other
		}
		wg.Go(func() {
			last := uint64(0)
			for n := 0; n < each; {
				frame := fmt.Sprintf("%d of writer %d", n, i)
				at, err := b.tryAppend(log, key, last, frame)
				switch {
				case err == nil:
					mu.Lock()
					if other, ok := won[last]; ok {
						b.Errorf("%q and %q both follow %d", other, frame, last)
					}
					won[last] = frame
					mu.Unlock()
					n++
				case !errors.Is(err, stream.ErrConflict):
					b.Errorf("Append: %v", err)
					return
				case at == last:
					b.Errorf("conflict with %d after %d", at, last)
					return
				}
				last = at
			}
		})
	}
	wg.Wait()
	all := b.frames(b.other, key, 0)
	if len(all) != writers*each {
		b.Fatalf("%d frames of %d", len(all), writers*each)
	}
	last := uint64(0)
	for _, f := range all {
		if won[last] != string(f.data) {
			b.Fatalf("%q follows %d, and %q was told so", f.data, last, won[last])
		}
		last = f.at
	}
}

func framesSees(b *box) {
	key := b.seq("a")
	last := uint64(0)
	for i := range 100 {
		writer, frame := b.log, fmt.Sprint("frame ", i)
		if i%3 == 0 {
			writer = b.other
		}
		before := last
		last = b.add(writer, key, last, frame)
		b.sees(key, before, kept{last, []byte(frame)})
	}
}

func framesInOrder(b *box) {
	const n = 700
	key, beside := b.seq("a"), b.seq("b")
	var all []kept
	last, lastBeside := uint64(0), uint64(0)
	for i := range n {
		f := kept{data: fmt.Appendf(nil, "frame %d", i)}
		f.at = b.add(b.log, key, last, string(f.data))
		all = append(all, f)
		last = f.at
		if i%50 == 0 {
			lastBeside = b.add(b.log, beside, lastBeside, "beside")
		}
	}
	for _, from := range []int{0, 1, 2, n / 2, n - 1, n} {
		after := uint64(0)
		if from > 0 {
			after = all[from-1].at
		}
		b.sees(key, after, all[from:]...)
	}
	b.sees(key, last+1<<32)
	for _, most := range []int{1, 5, 300} {
		var got []uint64
		err := b.other.Frames(b.Context(), key, 0, func(at uint64, _ time.Duration, _ []byte) bool {
			got = append(got, at)
			return len(got) < most
		})
		if err != nil || len(got) != most || got[most-1] != all[most-1].at {
			b.Errorf("Frames that is ended after %d: got %d and %v", most, len(got), err)
		}
	}
	// yield may call all methods, also Frames.
	err := b.log.Frames(b.Context(), key, last-1, func(at uint64, _ time.Duration, _ []byte) bool {
		b.add(b.log, key, at, "within")
		return false
	})
	b.want("Frames", err, nil)
	b.sees(b.seq("none"), 0)
}

func frameSizes(b *box) {
	most := b.log.MaxFrame()
	key := b.seq("a")
	var all []kept
	last := uint64(0)
	for _, n := range []int{0, 1, 1000, most, most, 1, most} {
		f := kept{data: pattern(n)}
		f.at = b.add(b.log, key, last, string(f.data))
		all = append(all, f)
		last = f.at
	}
	_, err := b.log.Append(b.Context(), key, last, pattern(most+1))
	b.want("Append of too much", err, stream.ErrTooLarge)
	b.sees(key, 0, all...)
}

// noPlaceTwice checks that no place is used again: a writer that was away for long
// must not take another's frame for its own last one.
func noPlaceTwice(b *box) {
	key := b.seq("a")
	seen := make(map[uint64]bool)
	for range 5 {
		last := uint64(0)
		for range 3 {
			last = b.add(b.log, key, last, "x")
			if seen[last] {
				b.Fatalf("place %d comes twice", last)
			}
			seen[last] = true
		}
		b.want("Trim", b.log.Trim(b.Context(), key, 0), nil)
		if left := b.frames(b.log, key, 0); len(left) > 0 {
			b.Skip("Trim does not happen at once")
		}
		for old := range seen {
			at, err := b.other.Append(b.Context(), key, old, []byte("x"))
			b.want("Append after a frame that is gone", err, stream.ErrConflict)
			if at != 0 {
				b.Errorf("the last frame of none is at %d", at)
			}
		}
	}
}

func trim(b *box) {
	key, beside := b.seq("a"), b.seq("b")
	b.want("Trim of nothing", b.log.Trim(b.Context(), key, 0), nil)
	var all []kept
	last := uint64(0)
	for i := range 20 {
		f := kept{data: fmt.Appendf(nil, "frame %d", i)}
		f.at = b.add(b.log, key, last, string(f.data))
		all = append(all, f)
		last = f.at
	}
	other := b.add(b.log, beside, 0, "beside")
	b.want("Trim", b.other.Trim(b.Context(), key, all[10].at), nil)
	got := b.frames(b.log, key, 0)
	if len(got) < 10 || got[len(got)-10].at != all[10].at || got[len(got)-1].at != last {
		b.Fatalf("after Trim before %d: %v", all[10].at, got)
	}
	last = b.add(b.log, key, last, "more") // nothing changes for the writer
	b.sees(key, all[19].at, kept{last, []byte("more")})
	b.want("Trim of all", b.log.Trim(b.Context(), key, 0), nil)
	b.sees(beside, 0, kept{other, []byte("beside")})
	if left := b.frames(b.log, key, 0); len(left) > 0 {
		b.Logf("%d frames are left, which Trim may do", len(left))
		return
	}
	at, err := b.log.Append(b.Context(), key, last, []byte("x"))
	b.want("Append after a frame that was trimmed", err, stream.ErrConflict)
	if at != 0 {
		b.Errorf("the last frame of none is at %d", at)
	}
	b.sees(key, 0, kept{b.add(b.log, key, 0, "anew"), []byte("anew")})
}

func framesExpire(b *box) {
	retention := b.log.Retention()
	if retention < time.Second {
		b.Fatalf("Retention is %v", retention)
	}
	if b.o.Advance == nil && retention > 10*time.Second {
		b.Skipf("frames are kept for %v", retention)
	}
	key := b.seq("a")
	start := time.Now()
	one := b.add(b.log, key, 0, "one")
	b.wait(retention / 2)
	two := b.add(b.log, key, one, "two")
	got := b.frames(b.other, key, 0)
	if (len(got) != 2 || got[0].at != one) && (b.o.Advance != nil || time.Since(start) < retention) {
		b.Fatalf("%d frames before their time", len(got))
	}
	b.wait(retention)
	b.until("frames expire", func() bool { return len(b.frames(b.log, key, 0)) == 0 })
	at, err := b.log.Append(b.Context(), key, two, []byte("x"))
	b.want("Append after a frame that has expired", err, stream.ErrConflict)
	if at != 0 {
		b.Errorf("the last frame of none is at %d", at)
	}
	if three := b.add(b.other, key, 0, "three"); three <= two {
		b.Errorf("place %d after %d", three, two)
	}
}

func keysApart(b *box) {
	long := make([]byte, 200-len(b.seq("")))
	for i := range long {
		long[i] = "abcXYZ019-_"[i%11]
	}
	names := []string{"a", "aa", "A", "a-", "a_", "a-b", string(long), string(long[1:])}
	for i, name := range names {
		b.put(b.log, b.val(name), 0, fmt.Sprint("value ", i), time.Hour)
		b.add(b.log, b.seq(name), 0, fmt.Sprint("frame ", i))
		b.add(b.log, b.seq("x.y."+name[:min(len(name), 100)]), 0, fmt.Sprint("below ", i))
	}
	for i, name := range names {
		for _, log := range []durable.Log{b.log, b.other} {
			got, _, _, err := b.get(log, b.val(name))
			if err != nil || string(got) != fmt.Sprint("value ", i) {
				b.Errorf("value of %s: %q and %v", name, got, err)
			}
			if all := b.frames(log, b.seq(name), 0); len(all) != 1 || string(all[0].data) != fmt.Sprint("frame ", i) {
				b.Errorf("frames of %s: %v", name, all)
			}
		}
	}
}

func reopens(b *box) {
	if !b.o.Reopen || !b.o.OneNode {
		b.Skip("other handles are open all the time")
	}
	v := b.put(b.log, b.val("a"), 0, "value", time.Hour)
	at := b.add(b.log, b.seq("a"), 0, "frame")
	if err := b.log.Close(); err != nil {
		b.Fatalf("Close: %v", err)
	}
	b.log = b.open()
	b.other = b.log
	defer b.log.Close()
	b.has(b.val("a"), "value", v)
	b.sees(b.seq("a"), 0, kept{at, []byte("frame")})
	next := b.add(b.log, b.seq("a"), at, "next")
	b.sees(b.seq("a"), at, kept{next, []byte("next")})
}
