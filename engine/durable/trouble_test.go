package durable_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/engine/durable"
	"holdfast/engine/durable/logtest"
	"holdfast/stream"
)

// words is what is logged.
type words struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// node is a store on an engine, with its connection.
type node struct {
	*durable.Store
	t   *testing.T
	h   *logtest.Handle
	log *words
}

func open(t *testing.T, e *logtest.Engine, o durable.Options) *node {
	t.Helper()
	n := &node{t: t, h: e.Open(), log: new(words)}
	o.Logger = slog.New(slog.NewTextHandler(n.log, nil))
	n.Store = durable.New(n.h, o)
	return n
}

func (n *node) shut() {
	n.t.Helper()
	if err := n.Close(); err != nil {
		n.t.Errorf("Close: %v", err)
	}
}

func (n *node) create(key stream.SessionKey) stream.Lease {
	n.t.Helper()
	l, err := n.Create(n.t.Context(), key, nil)
	n.want("Create", err, nil)
	return l
}

func (n *node) want(what string, got, want error) {
	n.t.Helper()
	if !errors.Is(got, want) {
		n.t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func (n *node) put(l stream.Lease, records ...stream.Record) error {
	return n.Append(n.t.Context(), l, records)
}

// take takes session a over.
func (n *node) take() stream.Taken {
	n.t.Helper()
	was, err := n.Lookup(n.t.Context(), "a")
	n.want("Lookup", err, nil)
	taken, err := n.Acquire(n.t.Context(), was)
	n.want("Acquire", err, nil)
	return taken
}

// says checks that a stream has exactly the entries from to to.
func (n *node) says(l stream.Lease, number, from, to uint64) {
	n.t.Helper()
	id := stream.ID{Session: l.Session, Number: number}
	oldest, next, err := n.Bounds(n.t.Context(), id)
	if err != nil || oldest != from || next != to+1 {
		n.t.Fatalf("stream %d: %d to %d and %v, want %d to %d", number, oldest, next-1, err, from, to)
	}
	got, err := n.Read(n.t.Context(), stream.Cursor{Stream: id, Seq: from - 1}, make([]stream.Entry, 0, to-from+1))
	if err != nil || uint64(len(got)) != to-from+1 {
		n.t.Fatalf("stream %d: %d entries and %v", number, len(got), err)
	}
	for i, e := range got {
		if want := entry(number, from+uint64(i)); e.Seq != want.Seq || !bytes.HasPrefix(e.Data, want.Data) {
			n.t.Fatalf("stream %d: %d is %.40q", number, e.Seq, e.Data)
		}
	}
}

func entry(number, seq uint64) stream.Record {
	return stream.Record{Number: number, Entry: stream.Entry{Seq: seq, Data: fmt.Appendf(nil, "%d of %d", seq, number)}}
}

func large(number, seq uint64, n int) stream.Record {
	r := entry(number, seq)
	r.Data = append(r.Data, make([]byte, n)...)
	return r
}

func last(r stream.Record) stream.Record {
	r.Last = true
	return r
}

func note(number uint64, text string) stream.Record {
	return stream.Record{Number: number, Note: true, Entry: stream.Entry{Data: []byte(text)}}
}

// An engine that is away for less than the store's patience costs time; one that is
// away for longer costs the lease.
func TestAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := logtest.New(logtest.Options{})
		n, other := open(t, e, durable.Options{}), open(t, e, durable.Options{})
		defer n.shut()
		defer other.shut()
		l := n.create("a")
		n.want("Append", n.put(l, entry(1, 1)), nil)

		n.h.Cut(true)
		back := time.AfterFunc(10*time.Second, func() { n.h.Cut(false) })
		defer back.Stop()
		start := time.Now()
		n.want("Append", n.put(l, entry(1, 2)), nil)
		if took := time.Since(start); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("an append over 10 s without the engine took %v", took)
		}
		n.says(l, 1, 1, 2)

		n.h.Cut(true)
		start = time.Now()
		n.want("Append", n.put(l, entry(1, 3)), stream.ErrUnavailable)
		if took := time.Since(start); took < 29*time.Second || took > 31*time.Second {
			t.Errorf("an append without an engine took %v", took)
		}
		n.says(l, 1, 1, 2)
		appends := e.Count("Append")
		n.want("Append", n.put(l, entry(1, 3)), stream.ErrFenced)
		n.h.Cut(false)
		n.want("Append", n.put(l, entry(1, 3)), stream.ErrFenced)
		if got := e.Count("Append"); got != appends {
			t.Errorf("%d appends under a lease that is lost", got-appends)
		}
		l = other.take().Lease
		other.says(l, 1, 1, 2)
		n.want("Lookup", lookup(n), nil)

		// What was asked for with a deadline ends with that.
		n.h.Cut(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		_, err := n.Lookup(ctx, "a")
		n.want("Lookup", err, stream.ErrUnavailable)
		_, err = n.Create(ctx, "b", nil)
		n.want("Create", err, stream.ErrUnavailable)
		if took := time.Since(start); took > 1100*time.Millisecond {
			t.Errorf("a question with a second's time took %v", took)
		}
		n.h.Cut(false)
	})
}

func lookup(n *node) error {
	_, err := n.Lookup(n.t.Context(), "a")
	return err
}

// A fenced append is one operation, and those after it are none.
func TestFencedCost(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	n, other := open(t, e, durable.Options{}), open(t, e, durable.Options{})
	defer n.shut()
	defer other.shut()
	l := n.create("a")
	n.want("Append", n.put(l, entry(1, 1)), nil)
	other.take()
	ops := func() (sum int) {
		for _, op := range []string{"Append", "Put", "Get", "Frames", "Remove", "List", "Trim"} {
			sum += e.Count(op)
		}
		return sum
	}
	before := ops()
	n.want("Append", n.put(l, entry(1, 2)), stream.ErrFenced)
	if got := ops() - before; got != 1 {
		t.Errorf("a fenced append is %d operations", got)
	}
	for range 100 {
		n.want("Append", n.put(l, entry(1, 2)), stream.ErrFenced)
	}
	if got := ops() - before; got != 1 {
		t.Errorf("those after it are %d", got-1)
	}
	n.says(l, 1, 1, 1)
}

// What has not ended lives for as long as its session, however short the engine
// keeps a frame, and what has ended does not.
func TestFramesExpire(t *testing.T) {
	t.Parallel()
	for _, faults := range []logtest.Faults{{}, {Before: 0.05, After: 0.05, Late: 0.05}} {
		synctest.Test(t, func(t *testing.T) {
			e := logtest.New(logtest.Options{Retention: 15 * time.Minute, Faults: faults, Seed: 3})
			n, other := open(t, e, durable.Options{}), open(t, e, durable.Options{})
			defer n.shut()
			defer other.shut()
			l := n.create("a")
			for seq := uint64(1); seq <= 100; seq++ {
				n.want("Append", n.put(l, entry(1, seq), large(2, seq, 10_000)), nil)
			}
			n.want("Append", n.put(l, note(1, "one"), note(3, "three"), last(entry(4, 1))), nil)
			for i := range uint64(60) {
				time.Sleep(5 * time.Minute)
				n.want("Touch", n.Touch(t.Context(), l), nil)
				n.want("Append", n.put(l, entry(5, i+1), last(entry(10+i, 1))), nil)
			}
			if kept := e.Kept("e.a"); kept > 60 {
				t.Errorf("%d frames are kept", kept)
			}
			taken := other.take()
			l = taken.Lease
			other.says(l, 1, 1, 100)
			other.says(l, 2, 1, 100)
			other.says(l, 5, 1, 60)
			for _, x := range taken.Streams {
				switch {
				case x.Number == 1 && string(x.Note) != "one", x.Number == 3 && string(x.Note) != "three",
					x.Number == 4, x.Number >= 10 && !x.Ended:
					t.Errorf("acquired %+v", x)
				}
			}
			if len(taken.Streams) > 7 {
				t.Errorf("%d streams", len(taken.Streams))
			}
			got, err := other.Read(t.Context(), stream.Cursor{Stream: stream.ID{Session: "a", Number: 1}}, make([]stream.Entry, 0, 1))
			if err != nil || got[0].Epoch != 1 {
				t.Errorf("the first entry is %+v: %v", got, err)
			}
			// And goes on with its new owner.
			for range 12 {
				time.Sleep(10 * time.Minute)
				other.want("Touch", other.Touch(t.Context(), l), nil)
			}
			taken = n.take()
			n.says(taken.Lease, 1, 1, 100)
			n.says(taken.Lease, 2, 1, 100)
			if n := len(taken.Streams); n != 4 {
				t.Errorf("%d streams", n)
			}
			if said := n.log.String() + other.log.String(); said != "" {
				t.Error(said)
			}
		})
	}
}

// What was old already when it was taken over is appended again at once, also by a
// node that has just begun.
func TestOldWhenTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := logtest.New(logtest.Options{Retention: 15 * time.Minute})
		n := open(t, e, durable.Options{})
		l := n.create("a")
		n.want("Append", n.put(l, entry(1, 1), note(1, "note")), nil)
		time.Sleep(time.Minute)
		n.want("Append", n.put(l, entry(1, 2)), nil)
		n.shut()
		time.Sleep(13 * time.Minute)
		for range 3 {
			n = open(t, e, durable.Options{})
			x := n.take().Streams[0]
			if x.Oldest != 1 || x.Next != 3 || string(x.Note) != "note" {
				t.Fatalf("acquired %+v", x)
			}
			time.Sleep(time.Minute)
			n.shut()
			time.Sleep(13 * time.Minute)
		}
	})
}

// A process that slept until all its frames had expired goes on if its session is
// still its own, and does not if it isn't.
func TestSleeper(t *testing.T) {
	t.Parallel()
	for _, stolen := range []bool{false, true} {
		e := logtest.New(logtest.Options{})
		o := durable.Options{SessionTTL: 24 * time.Hour}
		n, other := open(t, e, o), open(t, e, o)
		defer n.shut()
		defer other.shut()
		l := n.create("a")
		n.want("Append", n.put(l, entry(1, 1), entry(1, 2), note(1, "note"), last(entry(2, 1))), nil)
		n.want("Append", n.put(l, entry(3, 1)), nil)
		e.Advance(2 * time.Hour)
		if kept := e.Kept("e.a"); kept != 0 {
			t.Fatalf("%d frames are kept", kept)
		}
		if stolen {
			other.take()
			e.Advance(2 * time.Hour) // and its frame is gone, too
			n.want("Append", n.put(l, entry(1, 3)), stream.ErrFenced)
			continue
		}
		n.want("Append", n.put(l, entry(1, 3)), nil)
		taken := other.take()
		other.says(taken.Lease, 1, 1, 3)
		other.says(taken.Lease, 3, 1, 1)
		if x := taken.Streams[0]; string(x.Note) != "note" {
			t.Errorf("acquired %+v", x)
		}
		n.want("Append", n.put(l, entry(1, 4)), stream.ErrFenced)
	}
}

// A session that goes on and on does not keep what nobody needs.
func TestTrims(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	o := durable.Options{SessionBytes: 256 << 10, StreamBytes: 64 << 10, Keep: time.Millisecond}
	n, other := open(t, e, o), open(t, e, o)
	defer n.shut()
	defer other.shut()
	l := n.create("a")
	n.want("Append", n.put(l, entry(0, 1), note(1, "one")), nil)
	const rounds = 2000
	for i := range uint64(rounds) {
		if i%10 == 0 {
			n.want("Append", n.put(l, entry(1, i/10+1)), nil)
		}
		n.want("Append", n.put(l, large(2, i+1, 4000), last(large(10+i, 1, 1000))), nil)
	}
	for end := time.Now().Add(10 * time.Second); e.Count("Trim") == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // polling
	}
	if kept := e.Kept("e.a"); kept > rounds*2/3 {
		t.Errorf("%d frames are kept", kept)
	}
	if trims := e.Count("Trim"); trims == 0 || trims > 25 {
		t.Errorf("trimmed %d times", trims)
	}
	taken := other.take()
	other.says(taken.Lease, 0, 1, 1)
	other.says(taken.Lease, 1, 1, rounds/10)
	oldest, _, err := other.Bounds(t.Context(), stream.ID{Session: "a", Number: 2})
	other.want("Bounds", err, nil)
	other.says(taken.Lease, 2, oldest, rounds)
	if x := taken.Streams[1]; string(x.Note) != "one" {
		t.Errorf("acquired %+v", x)
	}
	if said := n.log.String() + other.log.String(); said != "" {
		t.Error(said)
	}
}

// A large session that is deleted leaves nothing for long.
func TestDeleteTrims(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	n := open(t, e, durable.Options{})
	defer n.shut()
	l := n.create("a")
	for i := range uint64(20) {
		n.want("Append", n.put(l, last(large(i, 1, 60_000))), nil)
	}
	n.want("Delete", n.Delete(t.Context(), "a"), nil)
	for end := time.Now().Add(10 * time.Second); e.Kept("e.a") > 0; {
		if time.Now().After(end) {
			t.Fatalf("%d frames are kept of what was deleted", e.Kept("e.a"))
		}
		time.Sleep(time.Millisecond) // polling
	}
}

// What the engine refuses has no effect, and costs nothing else.
func TestRefused(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{MaxFrame: 64 << 10})
	n, other := open(t, e, durable.Options{}), open(t, e, durable.Options{})
	defer n.shut()
	defer other.shut()
	l := n.create("a")
	n.want("Append", n.put(l, entry(1, 1)), nil)
	e.SetFull(true)
	n.want("Append", n.put(l, entry(1, 2), note(1, "x")), stream.ErrFull)
	n.says(l, 1, 1, 1)
	e.SetFull(false)
	n.want("Append of too much", n.put(l, large(1, 2, 64<<10), note(1, "x")), stream.ErrTooLarge)
	n.want("Append of too much together", n.put(l, large(1, 2, 40<<10), large(2, 1, 40<<10)), stream.ErrTooLarge)
	n.says(l, 1, 1, 1)
	n.want("Append", n.put(l, large(1, 2, 40<<10)), nil)
	n.want("Append", n.put(l, large(2, 1, 40<<10)), nil)
	_, err := n.Create(t.Context(), "b", make([]byte, 65<<10))
	n.want("Create with too much", err, stream.ErrTooLarge)
	for _, key := range []stream.SessionKey{"", "a.b", "a b", "ä", "a*", "a>", stream.SessionKey(strings.Repeat("x", 201))} {
		if _, err := n.Create(t.Context(), key, nil); err == nil {
			t.Errorf("created %q", key)
		}
		_, err := n.Lookup(t.Context(), key)
		n.want("Lookup", err, stream.ErrNotFound)
	}
	taken := other.take()
	other.says(taken.Lease, 1, 1, 2)
	other.says(taken.Lease, 2, 1, 1)
	if x := taken.Streams[0]; x.Note != nil {
		t.Errorf("acquired %+v", x)
	}
}

// An engine that has lost its data has lost its sessions.
func TestWiped(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	n := open(t, e, durable.Options{})
	defer n.shut()
	l := n.create("a")
	n.want("Append", n.put(l, entry(1, 1)), nil)
	m := n.create("b")
	e.Wipe()
	n.want("Append", n.put(l, entry(1, 2)), stream.ErrFenced)
	n.want("Touch", n.Touch(t.Context(), m), stream.ErrNotFound)
	n.want("Lookup", lookup(n), stream.ErrNotFound)
	l = n.create("a")
	n.want("Append", n.put(l, entry(1, 1)), nil)
	n.says(l, 1, 1, 1)
}

// What an engine has lost is never passed over in silence.
func TestMissingFrame(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	n, other := open(t, e, durable.Options{}), open(t, e, durable.Options{})
	defer n.shut()
	defer other.shut()
	l := n.create("a")
	for seq := uint64(1); seq <= 10; seq++ {
		r := []stream.Record{entry(1, seq)}
		if seq%2 == 0 {
			r = append(r, entry(2, seq/2))
		}
		n.want("Append", n.put(l, r...), nil)
	}
	e.Lose("e.a", 4) // entry 5 of stream 1
	taken := other.take()
	if !strings.Contains(other.log.String(), "frames of a session are missing") || !strings.Contains(other.log.String(), "entries of a stream are missing") {
		t.Errorf("logged: %s", other.log)
	}
	other.says(taken.Lease, 1, 6, 10)
	other.says(taken.Lease, 2, 1, 5)
	_, err := other.Read(t.Context(), stream.Cursor{Stream: stream.ID{Session: "a", Number: 1}, Seq: 3}, make([]stream.Entry, 0, 9))
	other.want("Read over the gap", err, stream.ErrTrimmed)
}

// Garbage in the engine is said, and no more than what it took the place of is lost.
func TestGarbage(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	n, other := open(t, e, durable.Options{}), open(t, e, durable.Options{})
	defer n.shut()
	defer other.shut()
	l := n.create("a")
	n.want("Append", n.put(l, entry(1, 1)), nil)
	var at uint64
	_ = n.h.Frames(t.Context(), "e.a", 0, func(place uint64, _ time.Duration, _ []byte) bool {
		at = place
		return true
	})
	_, err := n.h.Append(t.Context(), "e.a", at, []byte("garbage"))
	n.want("Append of garbage", err, nil)
	n.want("Append", n.put(l, entry(1, 2)), stream.ErrFenced)
	taken := other.take()
	other.says(taken.Lease, 1, 1, 1)
	if !strings.Contains(other.log.String(), "can't be read") {
		t.Errorf("logged: %s", other.log)
	}
	_, err = n.h.Put(t.Context(), "s.b", 0, []byte("garbage"), time.Hour)
	n.want("Put of garbage", err, nil)
	if _, err := n.Lookup(t.Context(), "b"); err == nil || errors.Is(err, stream.ErrNotFound) {
		t.Errorf("Lookup of garbage: %v", err)
	}
	found := 0
	err = n.Sessions(t.Context(), func(stream.Session) bool {
		found++
		return true
	})
	if err != nil || found != 1 || !strings.Contains(n.log.String(), "session can't be read") {
		t.Errorf("%d sessions and %v, logged: %s", found, err, n.log)
	}
}

// A session of a key that was used before has nothing of the earlier one.
func TestBornAnew(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	n, other := open(t, e, durable.Options{}), open(t, e, durable.Options{})
	defer n.shut()
	defer other.shut()
	old := n.create("a")
	n.want("Append", n.put(old, entry(1, 1), entry(2, 1), note(3, "old")), nil)
	n.want("Delete", n.Delete(t.Context(), "a"), nil)
	if e.Kept("e.a") == 0 {
		t.Fatal("the frames are gone")
	}
	l := other.create("a")
	other.want("Append", other.put(l, entry(1, 1), entry(1, 2)), nil)
	taken := n.take()
	n.says(taken.Lease, 1, 1, 2)
	if len(taken.Streams) != 1 {
		t.Errorf("acquired %+v", taken.Streams)
	}
	other.want("Append", other.put(l, entry(1, 3)), stream.ErrFenced)
}
