package memory

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"holdfast/stream"
	"holdfast/stream/streamtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	t.Parallel()
	streamtest.Run(t, func(_ *testing.T, l streamtest.Limits) func() stream.Store {
		return func() stream.Store {
			return New(Options{Keep: l.Keep, StreamBytes: l.StreamBytes, SessionBytes: l.SessionBytes, TotalBytes: l.TotalBytes})
		}
	}, streamtest.Options{
		Check:  func(t *testing.T, st stream.Store) { consistent(t, st.(*Store)) },
		Bubble: true,
	})
}

// consistent checks that each byte and each stream is counted once.
func consistent(t *testing.T, st *Store) {
	t.Helper()
	st.mu.RLock()
	defer st.mu.RUnlock()
	total, held, finished := int64(0), int64(0), 0
	for key, s := range st.sessions {
		s.mu.Lock()
		kept := s.beside
		held, total = held+s.held, total+s.held
		for number, l := range s.logs {
			n := int64(0)
			if l.next > 1 {
				n = streamCost
			}
			for _, e := range l.entries {
				n += int64(len(e.Data)) + entryCost
			}
			if n != l.bytes {
				t.Errorf("stream %d of %s keeps %d bytes and counts %d", number, key, n, l.bytes)
			}
			kept += n
		}
		if kept != s.bytes {
			t.Errorf("session %s keeps %d bytes and counts %d", key, kept, s.bytes)
		}
		total += kept
		finished += s.finished.count(inSession)
		s.mu.Unlock()
	}
	if got, _ := st.Kept(); got != total {
		t.Errorf("the store keeps %d bytes and counts %d", total, got)
	}
	if got := st.Held(); got != held {
		t.Errorf("sessions hold %d bytes, and %d are counted", held, got)
	}
	st.fin.Lock()
	defer st.fin.Unlock()
	if got := st.finished.count(inStore) + st.spent.count(inStore); got != finished {
		t.Errorf("%d streams are finished, and %d known", finished, got)
	}
	spares := make(map[*tenant]int64)
	tenants := map[*tenant]int64{st.nobody: 0}
	counted := make(map[*tenant]int)
	ranked := 0
	for key, s := range st.sessions {
		tenants[s.tenant] += s.bytes + s.held
		for l := s.finished.oldest; l != nil; l = l.places[inSession].newer {
			spares[s.tenant] += l.bytes
			spares[nil] += l.bytes
		}
		counted[s.tenant]++
		if has := s.finished.oldest != nil; has != (s.at >= 0) {
			t.Errorf("session %s has finished streams: %v, and its place is %d", key, has, s.at)
		} else if has {
			ranked++
		}
	}
	for o, kept := range tenants {
		if got := o.bytes.Load(); got != kept {
			t.Errorf("tenant %q keeps %d bytes and counts %d", o.name, kept, got)
		}
		if got := o.spare.Load(); got != spares[o] {
			t.Errorf("tenant %q may lose %d bytes and counts %d", o.name, spares[o], got)
		}
		if o != st.nobody && (st.tenants[o.name] != o || o.sessions != counted[o]) {
			t.Errorf("tenant %q has %d sessions and counts %d", o.name, counted[o], o.sessions)
		}
		if (o.at >= 0) != (len(o.ranked.heap) > 0) {
			t.Errorf("tenant %q has %d sessions with finished streams, and its place is %d", o.name, len(o.ranked.heap), o.at)
		}
		ranked -= len(o.ranked.heap)
		inOrder(t, &o.ranked)
	}
	if n := len(st.tenants) + 1; n != len(tenants) {
		t.Errorf("%d tenants have sessions, and %d are known", len(tenants), n)
	}
	if got := st.spare.Load(); got != spares[nil] {
		t.Errorf("%d bytes may be dropped, and %d are counted", spares[nil], got)
	}
	if ranked != 0 {
		t.Errorf("%d sessions with finished streams have no place", ranked)
	}
	inOrder(t, &st.ranked)
}

func inOrder[T ranker](t *testing.T, r *ranking[T]) {
	t.Helper()
	for i, x := range r.heap {
		if x.place().at != i || i > 0 && r.heap[(i-1)/2].place().kept < x.place().kept {
			t.Errorf("place %d of %d is wrong", i, len(r.heap))
		}
	}
}

func (q *queue) count(in int) (n int) {
	for l := q.oldest; l != nil; l = l.places[in].newer {
		n++
	}
	return n
}

func open(t *testing.T, o Options) *Store {
	t.Helper()
	st := New(o)
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

func create(t *testing.T, st *Store, key stream.SessionKey) stream.Lease {
	t.Helper()
	l, err := st.Create(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func add(st *Store, l stream.Lease, number, seq uint64, size int, last bool) error {
	return st.Append(context.Background(), l, []stream.Record{
		{Number: number, Entry: stream.Entry{Seq: seq, Data: make([]byte, size), Last: last}},
	})
}

// Ended streams are dropped after Keep, not before, and not much later.
func TestKeep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := New(Options{}) // 10 minutes
		defer st.Close()
		l := create(t, st, "a")
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(add(st, l, 1, 1, 100, false))
		must(add(st, l, 2, 1, 100, true))
		time.Sleep(5 * time.Minute)
		must(add(st, l, 3, 1, 100, true))
		kept := func(numbers ...uint64) {
			t.Helper()
			synctest.Wait()
			found := make(map[uint64]bool)
			for _, n := range numbers {
				found[n] = true
			}
			for n := uint64(1); n <= 3; n++ {
				_, _, err := st.Bounds(t.Context(), stream.ID{Session: "a", Number: n})
				if found[n] != (err == nil) {
					t.Fatalf("after %v: stream %d: %v", time.Now(), n, err)
				}
			}
			if got := st.Bytes(); got != int64(len(numbers))*(100+entryCost+streamCost) {
				t.Fatalf("%d bytes for %d streams", got, len(numbers))
			}
			consistent(t, st)
		}
		time.Sleep(5*time.Minute - time.Second)
		kept(1, 2, 3)
		time.Sleep(time.Second + 10*time.Minute/8)
		kept(1, 3)
		time.Sleep(5 * time.Minute)
		kept(1)
		time.Sleep(24 * time.Hour)
		kept(1)
		must(add(st, l, 1, 2, 100, true))
		time.Sleep(12 * time.Minute)
		kept()
	})
}

// Sessions that write concurrently stay within the store's limit together, and take
// no room from each other.
func TestTotalBytesTogether(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	st := open(t, Options{TotalBytes: limit})
	var writers sync.WaitGroup
	stored := make([]uint64, 32)
	leases := make([]stream.Lease, len(stored))
	for i := range stored {
		leases[i] = create(t, st, stream.SessionKey(fmt.Sprint(i)))
		writers.Go(func() {
			for {
				err := add(st, leases[i], stored[i]+1, 1, 512, false)
				if errors.Is(err, stream.ErrFull) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				stored[i]++
				if n := st.Bytes(); n > limit {
					t.Errorf("%d bytes are kept", n)
					return
				}
			}
		})
	}
	writers.Wait()
	entry := int64(512 + entryCost + streamCost)
	if n := st.Bytes(); n > limit || n <= limit-entry {
		t.Errorf("full with %d bytes", n)
	}
	for i, n := range stored {
		if n == 0 {
			continue
		}
		for number := range n {
			if _, _, err := st.Bounds(t.Context(), stream.ID{Session: leases[i].Session, Number: number + 1}); err != nil {
				t.Errorf("session %d stored %d, of which stream %d is gone: %v", i, n, number+1, err)
			}
		}
	}
	consistent(t, st)
}

// Streams that end, are evicted, expire and are deleted concurrently are counted
// once.
func TestChurn(t *testing.T) {
	t.Parallel()
	st := open(t, Options{Keep: time.Millisecond, StreamBytes: 4 << 10, SessionBytes: 16 << 10, TotalBytes: 64 << 10})
	var sessions sync.WaitGroup
	for i := range 16 {
		key := stream.SessionKey(fmt.Sprint(i))
		sessions.Go(func() {
			for range 20 {
				l, err := st.Create(t.Context(), key, nil)
				if err != nil {
					t.Error(err)
					return
				}
				st.Count(l, []string{"", "x", "y"}[i%3])
				for number := uint64(0); number < 20; number++ {
					for seq := uint64(1); seq <= 8; seq++ {
						err := add(st, l, number, seq, 700, seq == 8 && number > 0)
						if err != nil && !errors.Is(err, stream.ErrFull) {
							t.Error(err)
						}
						if err != nil {
							break
						}
					}
					if number%3 == 0 {
						st.Acknowledge(stream.ID{Session: key, Number: number})
					}
				}
				if err := st.Delete(t.Context(), key); err != nil {
					t.Error(err)
				}
			}
		})
	}
	sessions.Wait()
	if n := st.Bytes(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
	consistent(t, st)
}

// A refused append has no effect, also none on streams that could be dropped for it.
func TestRefusedTakesNothing(t *testing.T) {
	t.Parallel()
	st := open(t, Options{SessionBytes: 4 << 10, TotalBytes: 8 << 10})
	l, m := create(t, st, "a"), create(t, st, "b")
	for _, lease := range []stream.Lease{l, m} {
		if err := add(st, lease, 1, 1, 3000, true); err != nil {
			t.Fatal(err)
		}
	}
	before := st.Bytes()
	for what, act := range map[string]struct {
		err, want error
	}{
		"fenced":    {add(st, stream.Lease{Session: "a", Epoch: 2}, 2, 1, 3000, false), stream.ErrFenced},
		"a gap":     {add(st, l, 2, 2, 3000, false), stream.ErrConflict},
		"repeated":  {add(st, l, 1, 1, 3000, true), nil},
		"unknown":   {add(st, stream.Lease{Session: "c", Epoch: 1}, 2, 1, 3000, false), stream.ErrNotFound},
		"too large": {add(st, l, 2, 1, 5000, false), stream.ErrFull},
	} {
		if !errors.Is(act.err, act.want) {
			t.Errorf("%s: got %v, want %v", what, act.err, act.want)
		}
	}
	if got := st.Bytes(); got != before {
		t.Errorf("%d bytes became %d", before, got)
	}
	consistent(t, st)
}

// Streams that are watched and never written leave nothing in the store.
func TestWatchLeavesNothing(t *testing.T) {
	t.Parallel()
	st := open(t, Options{})
	l := create(t, st, "a")
	if err := add(st, l, 1, 1, 1, false); err != nil {
		t.Fatal(err)
	}
	var stops []func()
	for number := range uint64(100) {
		for range 2 {
			stop, err := st.Watch(stream.ID{Session: "a", Number: number}, make(chan struct{}, 1))
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, stop)
		}
	}
	for _, stop := range stops {
		stop()
	}
	if n := len(st.find("a").logs); n != 1 {
		t.Errorf("%d streams are known", n)
	}
}

// Deleted and expired streams are no longer in memory.
func TestMemoryIsReturned(t *testing.T) { // not parallel: it looks at the whole heap
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const sessions, size = 500, 64 << 10
	for _, how := range []string{"deleted", "expired", "trimmed"} {
		t.Run(how, func(t *testing.T) {
			before := heap()
			o := Options{Keep: time.Nanosecond, StreamBytes: size / 2}
			if how == "deleted" {
				o = Options{}
			}
			st := open(t, o)
			for i := range sessions {
				l := create(t, st, stream.SessionKey(fmt.Sprint(i)))
				for seq := uint64(1); seq <= 2; seq++ {
					if err := add(st, l, 1, seq, size/2, seq == 2 && how != "trimmed"); err != nil {
						t.Fatal(err)
					}
				}
			}
			switch how {
			case "deleted":
				if held := heap() - before; held < sessions*size*9/10 {
					t.Errorf("only %d bytes are held", held)
				}
				for i := range sessions {
					if err := st.Delete(t.Context(), stream.SessionKey(fmt.Sprint(i))); err != nil {
						t.Fatal(err)
					}
				}
			case "expired":
				for end := time.Now().Add(time.Minute); st.Bytes() > 0; {
					if time.Now().After(end) {
						t.Fatalf("%d bytes are left", st.Bytes())
					}
					time.Sleep(time.Millisecond) // polling: the store does not report the removal
				}
			}
			left := int64(sessions * size / 10)
			if how == "trimmed" {
				left += sessions * size / 2
			}
			if got := heap() - before; got > left {
				t.Errorf("%d bytes are still held", got)
			}
			runtime.KeepAlive(st)
		})
	}
}

// Prepared records reserve their room, and become visible when they are committed.
// If they are abandoned, the room is free again.
func TestPrepare(t *testing.T) {
	t.Parallel()
	st := open(t, Options{TotalBytes: 4 << 10})
	l := create(t, st, "a")
	records := func(seq uint64, n int) []stream.Record {
		return []stream.Record{{Number: 1, Entry: stream.Entry{Seq: seq, Data: make([]byte, n)}}}
	}
	p, err := st.Prepare(l, records(1, 2000), 0)
	if err != nil || len(p.Fresh()) != 1 {
		t.Fatalf("prepared %d: %v", len(p.Fresh()), err)
	}
	if _, _, err := st.Bounds(t.Context(), stream.ID{Session: "a", Number: 1}); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("it is there already: %v", err)
	}
	m := create(t, st, "b")
	if err := add(st, m, 1, 1, 2100, false); !errors.Is(err, stream.ErrFull) {
		t.Errorf("its room was taken: %v", err)
	}
	if err := st.Commit(p); err != nil {
		t.Fatal(err)
	}
	if p, err = st.Prepare(l, records(1, 2000), 0); err != nil || len(p.Fresh()) != 0 {
		t.Errorf("repeated: %d and %v", len(p.Fresh()), err)
	}
	if err := st.Commit(p); err != nil {
		t.Error(err)
	}
	if p, err = st.Prepare(l, records(2, 1000), 0); err != nil || len(p.Fresh()) != 1 {
		t.Fatalf("prepared %d: %v", len(p.Fresh()), err)
	}
	st.Abandon(p)
	consistent(t, st)
	if _, next, err := st.Bounds(t.Context(), stream.ID{Session: "a", Number: 1}); err != nil || next != 2 {
		t.Errorf("next is %d: %v", next, err)
	}
	p, err = st.Prepare(m, []stream.Record{{Number: 1, Entry: stream.Entry{Seq: 1}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Delete(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if err := st.Commit(p); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("committed to a session that is gone: %v", err)
	}
	consistent(t, st)
}

// A session that was kept in another store replaces an older one, within the limits.
func TestLoad(t *testing.T) {
	t.Parallel()
	st := open(t, Options{StreamBytes: 4 << 10, SessionBytes: 8 << 10})
	old := create(t, st, "a")
	if err := add(st, old, 1, 1, 100, true); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{}, 1)
	if _, err := st.Watch(stream.ID{Session: "a", Number: 1}, ready); err != nil {
		t.Fatal(err)
	}
	log := func(number, from uint64, n int, ended time.Time) Loaded {
		l := Loaded{Number: number, Ended: ended}
		for i := range n {
			l.Entries = append(l.Entries, stream.Entry{Seq: from + uint64(i), Epoch: 1, Data: make([]byte, 1000)})
		}
		l.Entries[n-1].Last = !ended.IsZero()
		return l
	}
	logs := func() []Loaded {
		now := time.Now()
		return []Loaded{log(3, 1, 3, now), log(1, 5, 2, time.Time{}), log(2, 1, 8, time.Time{}), log(4, 1, 3, now.Add(-time.Minute))}
	}
	lease := stream.Lease{Session: "a", Epoch: 1}
	if st.Load(lease, logs()) {
		t.Error("loaded under the epoch that is known")
	}
	if len(ready) > 0 {
		t.Error("watchers were told")
	}
	lease.Epoch = 7
	if !st.Load(lease, logs()) {
		t.Fatal("not loaded")
	}
	if len(ready) == 0 {
		t.Error("watchers were not told")
	}
	consistent(t, st)
	for number, want := range map[uint64][2]uint64{1: {5, 7}, 2: {6, 9}, 3: {}, 4: {}} {
		oldest, next, err := st.Bounds(t.Context(), stream.ID{Session: "a", Number: number})
		if want[0] > 0 && (err != nil || oldest != want[0] || next != want[1]) || want[0] == 0 && !errors.Is(err, stream.ErrNotFound) {
			t.Errorf("stream %d: %d to %d and %v, want %v", number, oldest, next, err, want)
		}
	}
	if err := add(st, old, 2, 9, 1, false); !errors.Is(err, stream.ErrFenced) {
		t.Errorf("appended under the old epoch: %v", err)
	}
	if err := add(st, lease, 2, 9, 1, false); err != nil {
		t.Error(err)
	}
	st.Drop(old)
	if _, _, err := st.Bounds(t.Context(), stream.ID{Session: "a", Number: 2}); err != nil {
		t.Errorf("dropped under another lease: %v", err)
	}
	st.Drop(lease)
	if n := st.Bytes(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
	consistent(t, st)
}

func BenchmarkAppend(b *testing.B) {
	st := New(Options{})
	defer st.Close()
	l, _ := st.Create(b.Context(), "a", nil)
	data := make([]byte, 256)
	seq := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		seq++
		if err := st.Append(b.Context(), l, []stream.Record{{Number: 1, Entry: stream.Entry{Seq: seq, Data: data}}}); err != nil {
			b.Fatal(err)
		}
	}
}
