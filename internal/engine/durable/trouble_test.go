package durable_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// If the engine is away for less than the store's patience, appends wait. If it is
// away for longer, the lease is lost.
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

		// An operation with a deadline ends at that deadline.
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

// Close does not wait for operations on an engine that is away: they fail.
func TestCloseEndsWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := logtest.New(logtest.Options{})
		n := open(t, e, durable.Options{})
		l := n.create("a")
		n.h.Cut(true)
		done := make(chan error)
		go func() { done <- n.put(l, entry(1, 1)) }()
		time.Sleep(time.Second)
		start := time.Now()
		n.shut()
		n.want("Append", <-done, stream.ErrUnavailable)
		if took := time.Since(start); took > 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// The first fenced append costs one operation, and later ones cost none.
func TestFencedCost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		synctest.Wait() // until the other store has written all that it writes after a take-over
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
	})
}

// A refused append has no effect on other records.
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

// When an engine has lost its data, its sessions are gone.
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

// Data that an engine has lost is reported.
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
	e.Lose("e.a", 4) // it has entry 5 of stream 1
	taken := other.take()
	if !strings.Contains(other.log.String(), "frames of a session are missing") || !strings.Contains(other.log.String(), "entries of a stream are missing") {
		t.Errorf("logged: %s", other.log)
	}
	other.says(taken.Lease, 1, 6, 10)
	other.says(taken.Lease, 2, 1, 5)
	_, err := other.Read(t.Context(), stream.Cursor{Stream: stream.ID{Session: "a", Number: 1}, Seq: 3}, make([]stream.Entry, 0, 9))
	other.want("Read over the gap", err, stream.ErrTrimmed)
}

// Garbage in the engine is reported, and costs no more than the data that it replaces.
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
	err = n.Sessions(t.Context(), func(shared.Session) bool {
		found++
		return true
	})
	if err != nil || found != 1 || !strings.Contains(n.log.String(), "session can't be read") {
		t.Errorf("%d sessions and %v, logged: %s", found, err, n.log)
	}
}

// A new session under a used key has nothing of the earlier session.
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
