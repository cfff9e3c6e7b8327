package durable_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/mcptest"
	"holdfast/stream"
)

// A stream that has not ended lives for as long as its session, however short the
// engine keeps a frame. A stream that has ended does not.
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
			// The session goes on with its new owner.
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

// Frames that are already old at a takeover are appended again at once, also by a
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

// A process that slept until all its frames had expired goes on if it still owns its
// session. If not, it is fenced.
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
			e.Advance(2 * time.Hour) // its frame has expired, too
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

// A session that goes on and on does not keep unneeded frames.
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
	mcptest.Eventually(t, "a third of the frames to be trimmed", time.Minute, func() bool { return e.Kept("e.a") <= rounds*2/3 })
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

// Deleted sessions leave no frames, however few entries they have, and however many are deleted at once.
// Nearly all of them are deleted as they fall asleep.
func TestDeleteTrims(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	n := open(t, e, durable.Options{})
	defer n.shut()
	const many = 1000
	keys := make([]stream.SessionKey, many)
	for i := range keys {
		keys[i] = stream.SessionKey(fmt.Sprintf("a%d", i))
		l := n.create(keys[i])
		n.want("Append", n.put(l, note(0, "about")), nil)
	}
	large := n.create("large")
	for i := range uint64(20) {
		n.want("Append", n.put(large, last(entry(i, 1))), nil)
	}
	var all sync.WaitGroup
	for _, key := range append(keys, "large") {
		all.Go(func() { n.want("Delete", n.Delete(t.Context(), key), nil) })
	}
	all.Wait()
	for _, key := range append(keys, "large") {
		for end := time.Now().Add(time.Minute); e.Kept("e."+string(key)) > 0; {
			if time.Now().After(end) {
				t.Fatalf("%d frames are kept of %s, which was deleted", e.Kept("e."+string(key)), key)
			}
			time.Sleep(time.Millisecond) // polling
		}
	}
}

// A session that begins again while the frames of its earlier life are being dropped keeps its new frames, on each node.
func TestDeleteTrimsOnlyWhatWas(t *testing.T) {
	t.Parallel()
	for _, faults := range []logtest.Faults{{}, {Before: 0.05, After: 0.05, Late: 0.05}} {
		e := logtest.New(logtest.Options{Seed: 5, Faults: faults})
		n, other := open(t, e, durable.Options{}), open(t, e, durable.Options{})
		defer n.shut()
		defer other.shut()
		l := n.create("a")
		for i := range uint64(50) {
			n.want("Append", n.put(l, note(0, "about"), entry(1, 1)), nil)
			n.want("Delete", n.Delete(t.Context(), "a"), nil)
			epoch := uint64(1)
			if i%2 != 0 {
				epoch = 1000 * i
			}
			var err error
			for l, err = n.Revive(t.Context(), "a", nil, epoch); errors.Is(err, stream.ErrExists); l, err = n.Revive(t.Context(), "a", nil, epoch) {
				// A late request of the earlier life has created the session a second time.
				n.want("Delete", n.Delete(t.Context(), "a"), nil)
			}
			n.want("Revive", err, nil)
			n.want("Append", n.put(l, note(0, "anew"), entry(2, 1)), nil)
			n.want("Append", n.put(l, entry(2, 2)), nil)
			if i%5 != 0 {
				continue
			}
			taken := other.take()
			other.says(taken.Lease, 2, 1, 2)
			if len(taken.Streams) != 2 || string(taken.Streams[0].Note) != "anew" {
				t.Fatalf("acquired %+v", taken.Streams)
			}
			l = n.take().Lease
		}
	}
}
