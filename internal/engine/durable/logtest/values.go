package logtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/stream"
)

func putCompares(b *box) {
	key := b.val("a")
	b.none(key)
	_, err := b.log.Put(b.Context(), key, 7, []byte("x"), time.Hour)
	b.want("Put over a version where there is none", err, stream.ErrConflict)
	b.none(key)
	one := b.put(b.log, key, 0, "one", time.Hour)
	b.has(key, "one", one)
	_, err = b.other.Put(b.Context(), key, 0, []byte("x"), time.Hour)
	b.want("Put where there is one", err, stream.ErrConflict)
	_, err = b.other.Put(b.Context(), key, one+1, []byte("x"), time.Hour)
	b.want("Put over another version", err, stream.ErrConflict)
	b.has(key, "one", one)
	two := b.put(b.other, key, one, "two", time.Hour)
	b.has(key, "two", two)
	_, err = b.log.Put(b.Context(), key, one, []byte("x"), time.Hour)
	b.want("Put over an old version", err, stream.ErrConflict)
	same := b.put(b.log, key, two, "two", time.Hour)
	if same == two || two == one {
		b.Errorf("versions %d, %d and %d", one, two, same)
	}
	b.has(key, "two", same)
}

func putRaces(b *box) {
	key := b.val("a")
	version := uint64(0)
	for round := range 20 {
		var won atomic.Uint64
		var wins atomic.Int32
		var wg sync.WaitGroup
		for i := range 8 {
			log := b.log
			if i%2 == 1 {
				log = b.other
			}
			wg.Go(func() {
				v, err := b.tryPut(log, key, version, fmt.Sprintf("%d of %d", i, round), time.Hour)
				switch {
				case err == nil:
					won.Store(v)
					wins.Add(1)
				case !errors.Is(err, stream.ErrConflict):
					b.Errorf("Put: %v", err)
				}
			})
		}
		wg.Wait()
		if n := wins.Load(); n != 1 {
			b.Fatalf("round %d: %d won", round, n)
		}
		if v := won.Load(); v == version {
			b.Fatalf("round %d: version %d stays", round, v)
		}
		version = won.Load()
	}
}

func getSees(b *box) {
	key := b.val("a")
	version := uint64(0)
	for i := range 100 {
		writer, value := b.log, fmt.Sprint("value ", i)
		if i%3 == 0 {
			writer = b.other
		}
		version = b.put(writer, key, version, value, time.Hour)
		b.has(key, value, version)
	}
}

func remove(b *box) {
	key := b.val("a")
	b.want("Remove of nothing", b.log.Remove(b.Context(), key, 0), nil)
	b.want("Remove of a version of nothing", b.log.Remove(b.Context(), key, 3), nil)
	one := b.put(b.log, key, 0, "one", time.Hour)
	two := b.put(b.log, key, one, "two", time.Hour)
	b.want("Remove of an old version", b.other.Remove(b.Context(), key, one), stream.ErrConflict)
	b.has(key, "two", two)
	b.want("Remove", b.other.Remove(b.Context(), key, two), nil)
	b.none(key)
	_, err := b.log.Put(b.Context(), key, two, []byte("x"), time.Hour)
	b.want("Put over what was removed", err, stream.ErrConflict)
	again := b.put(b.log, key, 0, "again", time.Hour)
	if again == one || again == two {
		b.Errorf("version %d comes again", again)
	}
	b.has(key, "again", again)
	b.want("Remove of any", b.log.Remove(b.Context(), key, 0), nil)
	b.none(key)
}

func valuesExpire(b *box) {
	var short, long, renewed string
	var start time.Time
	var first, v uint64
	for try := 0; ; try++ {
		name := func(s string) string { return b.val(fmt.Sprint(s, try)) }
		short, long, renewed = name("short"), name("long"), name("renewed")
		start = time.Now()
		b.put(b.log, long, 0, "long", time.Hour)
		v = b.put(b.log, renewed, 0, "renewed", 2*time.Second)
		first = b.put(b.log, short, 0, "short", 2*time.Second)
		b.wait(time.Second)
		var err error
		v, err = b.log.Put(b.Context(), renewed, v, []byte("renewed"), time.Hour)
		if errors.Is(err, stream.ErrConflict) && b.o.Advance == nil && time.Since(start) > 1900*time.Millisecond && try < 10 {
			continue // this machine was so slow that the value has expired
		}
		b.want("Put in time", err, nil)
		break
	}
	if _, _, _, err := b.get(b.other, short); err != nil && (b.o.Advance != nil || time.Since(start) < 1900*time.Millisecond) {
		b.Errorf("gone after a second: %v", err)
	}
	b.wait(1100 * time.Millisecond)
	b.until("a value expires", func() bool {
		_, _, _, err := b.get(b.log, short)
		return errors.Is(err, stream.ErrNotFound)
	})
	b.until("and is not listed", func() bool {
		listed := false
		err := b.log.List(b.Context(), "s.", func(key string, _ []byte, _ uint64) bool {
			listed = listed || key == short
			return true
		})
		return err == nil && !listed
	})
	b.has(renewed, "renewed", v)
	b.none(short)
	_, err := b.log.Put(b.Context(), short, first, []byte("x"), time.Hour)
	b.want("Put over what has expired", err, stream.ErrConflict)
	v = b.put(b.other, short, 0, "again", time.Hour)
	b.has(short, "again", v)
	if _, _, _, err := b.get(b.other, long); err != nil {
		b.Errorf("Get: %v", err)
	}
}

func list(b *box) {
	const n = 300
	versions := make(map[string]uint64)
	for i := range n {
		key := b.val(fmt.Sprint(i))
		versions[key] = b.put(b.log, key, 0, fmt.Sprint("old ", i), time.Hour)
	}
	for i := range n / 2 {
		key := b.val(fmt.Sprint(i))
		versions[key] = b.put(b.other, key, versions[key], "new", time.Hour)
	}
	gone := b.val("0")
	b.want("Remove", b.log.Remove(b.Context(), gone, 0), nil)
	delete(versions, gone)
	b.put(b.log, "k."+b.own+"-elsewhere", 0, "x", time.Hour)
	b.add(b.log, "s."+b.own+"-frames", 0, "a frame under a like key")
	for _, log := range []durable.Log{b.log, b.other} {
		b.until("all are listed as they are, and once", func() bool {
			found := make(map[string]uint64)
			calls := 0
			err := log.List(b.Context(), "s.", func(key string, value []byte, version uint64) bool {
				if !strings.HasPrefix(key, b.val("")) {
					return true // another case's
				}
				if string(value) != "new" && !strings.HasPrefix(string(value), "old ") {
					b.Errorf("%s: got %q", key, value)
				}
				found[key] = version
				calls++
				return true
			})
			if err != nil {
				b.Fatalf("List: %v", err)
			}
			for key, version := range versions {
				if found[key] != version {
					b.Errorf("%s: version %d comes last, want %d", key, found[key], version)
				}
			}
			return calls == len(versions) && len(found) == calls
		})
		calls := 0
		err := log.List(b.Context(), "s.", func(string, []byte, uint64) bool {
			calls++
			return calls < 3
		})
		if err != nil || calls != 3 {
			b.Errorf("List that is ended after 3: %d and %v", calls, err)
		}
	}
	err := b.log.List(b.Context(), "x"+b.own+".", func(key string, _ []byte, _ uint64) bool {
		b.Errorf("%s is listed", key)
		return true
	})
	b.want("List of nothing", err, nil)
}

func valueSizes(b *box) {
	most := b.log.MaxFrame()
	if most < 64<<10 {
		b.Fatalf("MaxFrame is %d", most)
	}
	for _, n := range []int{0, 1, 1000, most} {
		value := string(pattern(n))
		key := b.val(fmt.Sprint(n))
		b.has(key, value, b.put(b.log, key, 0, value, time.Hour))
	}
	key := b.val("large")
	_, err := b.log.Put(b.Context(), key, 0, pattern(most+1), time.Hour)
	b.want("Put of too much", err, stream.ErrTooLarge)
	b.none(key)
}

// pattern returns n bytes, of all values in turn.
func pattern(n int) []byte {
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	return bytes.Repeat(all[:], n/256+1)[:n]
}

func contextDone(b *box) {
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	key := b.val("a")
	_, err := b.log.Put(ctx, key, 0, []byte("x"), time.Hour)
	b.want("Put", err, stream.ErrUnavailable)
	_, _, _, err = b.log.Get(ctx, key)
	b.want("Get", err, stream.ErrUnavailable)
	b.want("Remove", b.log.Remove(ctx, key, 0), stream.ErrUnavailable)
	_, err = b.log.Append(ctx, b.seq("a"), 0, []byte("x"))
	b.want("Append", err, stream.ErrUnavailable)
	b.want("Frames", b.log.Frames(ctx, b.seq("a"), 0, func(uint64, time.Duration, []byte) bool { return true }), stream.ErrUnavailable)
	b.want("List", b.log.List(ctx, "s.", func(string, []byte, uint64) bool { return true }), stream.ErrUnavailable)
	// And the log works on.
	b.put(b.log, b.val("b"), 0, "x", time.Hour)
	b.add(b.log, b.seq("b"), 0, "x")
}

func ping(b *box) {
	b.want("Ping", b.log.Ping(b.Context()), nil)
	b.want("Ping", b.other.Ping(b.Context()), nil)
}
