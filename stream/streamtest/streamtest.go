// Package streamtest is the test suite of the rules of package stream. Every implementation
// of [stream.Store] passes it. Call [Run] from a test of the implementation. There is a test
// for each rule, named after it, and the suite ends with random operations that are compared
// with a model.
package streamtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// Limits are the limits of the store that a test needs. A zero field stands for more than
// any test needs. Besides the bytes of the entries an engine may count up to half of a
// limit for its own overhead.
type Limits struct {
	SessionTTL   time.Duration // how long a session lives without Touch; for shared stores
	Keep         time.Duration // how long an ended stream is kept
	StreamBytes  int64         // maximum size of a stream
	SessionBytes int64         // maximum size of the streams of a session
	TotalBytes   int64         // maximum size of everything
}

// A Maker makes a new, empty store and returns a function that opens it. The suite closes
// the stores that it opens. The Maker cleans up everything else, with t.Cleanup.
type Maker func(t *testing.T, limits Limits) (open func() stream.Store)

// Options describe the store to the suite. The zero value is a store that is opened once at
// a time and keeps nothing when it is closed. The rules of shared stores are tested if the
// store is a shared.Store (internal/engine/shared).
type Options struct {
	// Nodes says that the store can be opened several times, each time as another node.
	Nodes bool
	// Durable says that a store that is opened again has the entries appended before.
	Durable bool
	// Check is called at the end of each test, to check the store's own consistency. It
	// may be nil.
	Check func(t *testing.T, st stream.Store)
	// Bubble says that the store is in this process and keeps time by package time. The
	// tests that wait for time to pass then run in bubbles of testing/synctest.
	Bubble bool
}

// Run runs the suite on the stores that mk makes. The tests run in parallel.
func Run(t *testing.T, mk Maker, o Options) {
	type test struct {
		name   string
		run    func(*box)
		limits Limits
	}
	cases := []test{
		{"1 a session is created first, once", created, Limits{}},
		{"2 an append is all or none", allOrNone, Limits{}},
		{"2 an append is seen by every later read", seenAtOnce, Limits{}},
		{"2 an append is as durable as promised", durable, Limits{}},
		{"3 sequences are dense from 1", dense, Limits{}},
		{"3 a repeated entry changes nothing", repeated, Limits{}},
		{"4 an append of another epoch is fenced", fenced, Limits{}},
		{"5 nothing follows the last entry", last, Limits{}},
		{"6 a read is in order, without gap or duplicate", inOrder, Limits{}},
		{"6 a tail has no gap and no duplicate", tails, Limits{}},
		{"6 a gap is an error", gap, Limits{StreamBytes: 32 * kib}},
		{"6 a cursor that names no entry is an error", badCursor, Limits{}},
		{"7 a stream never written is not found", neverWritten, Limits{}},
		{"8 a watcher is notified after every append", watched, Limits{}},
		{"8 an append never waits for a watcher", unwatched, Limits{}},
		{"9 a stream over its limit loses its oldest", streamLimit, Limits{StreamBytes: 32 * kib}},
		{"9 a session over its limit loses ended streams first", sessionFinished, Limits{SessionBytes: 64 * kib}},
		{"9 a session over its limit takes from no other stream", sessionLimit, Limits{SessionBytes: 64 * kib}},
		{"9 a store over its limit loses ended streams first", totalFinished, Limits{TotalBytes: 64 * kib}},
		{"9 a store over its limit takes from no unended stream", totalLimit, Limits{TotalBytes: 64 * kib}},
		{"9 a store over its limit takes from the tenant and the session that keep most", fair, Limits{TotalBytes: 64 * kib}},
		{"9 a tenant has no more than its share", share, Limits{TotalBytes: 64 * kib}},
		{"9 what was acknowledged goes first", spent, Limits{TotalBytes: 64 * kib}},
		{"9 what ends a stream is accepted by a full store", fullEnd, Limits{TotalBytes: 64 * kib}},
		{"9 a repeated entry is accepted by a full store", fullRepeat, Limits{TotalBytes: 64 * kib}},
		{"10 an ended stream is kept for a time", kept, Limits{Keep: 300 * time.Millisecond}},
		{"11 a deleted session is gone", deleted, Limits{}},
		{"11 deleting notifies the watchers", deletedWatched, Limits{}},
		{"12 a note is kept beside its stream", notes, Limits{}},
		{"12 a note is appended with entries, all or none", notesAllOrNone, Limits{}},
		{"13 a taken over session fences its old owner", takenOver, Limits{}},
		{"13 of several who acquire a session one succeeds", contested, Limits{}},
		{"13 a session is taken over again and again", passedOn, Limits{}},
		{"14 what is acquired is what was appended", acquired, Limits{}},
		{"14 what has expired is not acquired", acquiredLate, Limits{Keep: lateKeep}},
		{"14 what a stream has lost stays lost", acquiredTrimmed, Limits{StreamBytes: 32 * kib}},
		{"14 what was released is acquired", released, Limits{}},
		{"15 a lease that is lost stays lost", lostLease, Limits{}},
		{"16 a session that nobody touches is gone", untouched, Limits{SessionTTL: idleTTL}},
		{"17 a claim keeps its first value", claims, Limits{}},
		{"sessions are found", sessionsFound, Limits{}},
		{"a session deleted by another is gone", deletedElsewhere, Limits{}},
		{"all rules at once", random, Limits{}},
		{"all rules at once, concurrently", crowd, Limits{}},
	}
	waits := func(l Limits) bool { return l.Keep > 0 || l.SessionTTL > 0 } // for time to pass
	slices.SortStableFunc(cases, func(a, b test) int {                     // tests that wait go first, so that the others run meanwhile
		switch {
		case waits(a.limits) == waits(b.limits):
			return 0
		case waits(a.limits):
			return -1
		}
		return 1
	})
	for _, c := range cases {
		run := func(t *testing.T) {
			b := &box{T: t, o: o, open: mk(t, c.limits)}
			b.reopen()
			t.Cleanup(b.close)
			c.run(b)
			if o.Check != nil && !t.Failed() {
				o.Check(t, b.st)
			}
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if o.Bubble && waits(c.limits) {
				synctest.Test(t, run)
			} else {
				run(t)
			}
		})
	}
}

const kib = 1 << 10

// patience is how long the suite waits for something that must happen.
const patience = time.Minute

// box has the store of a test and, if Nodes is set, the same store opened by another
// node.
type box struct {
	*testing.T
	o     Options
	open  func() stream.Store
	st    stream.Store
	other stream.Store   // st itself without Options.Nodes
	nodes []shared.Store // both, if the store is shared
}

func (b *box) reopen() {
	b.st = b.open()
	b.other = b.st
	if b.o.Nodes {
		b.other = b.open()
	}
	b.nodes = nil
	if first, ok := b.st.(shared.Store); ok {
		b.nodes = []shared.Store{first, b.other.(shared.Store)}
	}
}

func (b *box) close() {
	if b.other != b.st {
		if err := b.other.Close(); err != nil {
			b.Errorf("Close: %v", err)
		}
	}
	if err := b.st.Close(); err != nil {
		b.Errorf("Close: %v", err)
	}
}

// create makes a session.
func (b *box) create(key stream.SessionKey) stream.Lease {
	b.Helper()
	l, err := b.st.Create(b.Context(), key, nil)
	if err != nil {
		b.Fatalf("Create: %v", err)
	}
	return l
}

// want checks the error of an operation.
func (b *box) want(what string, got, want error) {
	b.Helper()
	if !errors.Is(got, want) {
		b.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// text returns the text of the entry seq of a stream, padded to n bytes.
func text(number, seq uint64, n int) []byte {
	s := fmt.Appendf(nil, `{"stream":%d,"seq":%d}`, number, seq)
	return append(s, bytes.Repeat([]byte(" "), max(n-len(s), 0))...)
}

// rec returns a small record.
func rec(number, seq uint64) stream.Record { return sized(number, seq, 0) }

func sized(number, seq uint64, n int) stream.Record {
	return stream.Record{Number: number, Entry: stream.Entry{Seq: seq, Data: text(number, seq, n)}}
}

// final returns r as a record that ends its stream.
func final(r stream.Record) stream.Record {
	r.Last = true
	return r
}

func (b *box) append(l stream.Lease, records ...stream.Record) error {
	return b.st.Append(b.Context(), l, records)
}

// add appends records that must be accepted.
func (b *box) add(l stream.Lease, records ...stream.Record) {
	b.Helper()
	if err := b.append(l, records...); err != nil {
		b.Fatalf("Append: %v", err)
	}
}

// at returns a cursor under the lease's epoch.
func at(l stream.Lease, number, seq uint64) stream.Cursor {
	return stream.Cursor{Stream: stream.ID{Session: l.Session, Number: number}, Epoch: l.Epoch, Seq: seq}
}

// read reads once, with room for many.
func read(ctx context.Context, st stream.Store, after stream.Cursor) ([]stream.Entry, error) {
	return st.Read(ctx, after, make([]stream.Entry, 0, 64))
}

// has checks that the store keeps exactly the entries from from to to of a stream,
// each padded to n bytes.
func (b *box) has(st stream.Store, l stream.Lease, number, from, to uint64, n int) {
	b.Helper()
	oldest, next, err := st.Bounds(b.Context(), at(l, number, 0).Stream)
	if err != nil || oldest != from || next != to+1 {
		b.Fatalf("Bounds of stream %d: got %d, %d and %v, want %d and %d", number, oldest, next, err, from, to+1)
	}
	after := at(l, number, from-1)
	after.Epoch = 0 // it may have an older epoch
	for after.Seq < to {
		got, err := read(b.Context(), st, after)
		if err != nil || len(got) == 0 {
			b.Fatalf("Read of stream %d after %d: %d entries and %v", number, after.Seq, len(got), err)
		}
		for _, e := range got {
			after.Seq++
			after.Epoch = e.Epoch
			if e.Seq != after.Seq || !bytes.Equal(e.Data, text(number, e.Seq, n)) {
				b.Fatalf("stream %d: got %d, %.40q after %d", number, e.Seq, e.Data, after.Seq-1)
			}
		}
	}
}

// gone checks that a stream cannot be read.
func (b *box) gone(l stream.Lease, number uint64) {
	b.Helper()
	for _, st := range []stream.Store{b.st, b.other} {
		_, err := read(b.Context(), st, at(l, number, 0))
		b.want(fmt.Sprintf("Read of stream %d", number), err, stream.ErrNotFound)
		_, _, err = st.Bounds(b.Context(), at(l, number, 0).Stream)
		b.want(fmt.Sprintf("Bounds of stream %d", number), err, stream.ErrNotFound)
	}
}

// watch watches a stream until the test ends.
func (b *box) watch(st stream.Store, id stream.ID) chan struct{} {
	b.Helper()
	ready := make(chan struct{}, 1)
	stop, err := st.Watch(id, ready)
	if err != nil {
		b.Fatalf("Watch: %v", err)
	}
	b.Cleanup(stop)
	return ready
}

// notified waits for a watcher to be notified.
func (b *box) notified(ready <-chan struct{}, what string) {
	b.Helper()
	select {
	case <-ready:
	case <-time.After(patience):
		b.Fatalf("not notified of %s", what)
	}
}

// follow reads a stream to its end, waiting for entries on ready, and passes each entry
// to got. It may be called on any goroutine. It fails if no entry comes for patience.
func follow(ctx context.Context, st stream.Store, after stream.Cursor, ready <-chan struct{}, got func(stream.Entry) error) error {
	buf := make([]stream.Entry, 0, 7)
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		entries, err := st.Read(ctx, after, buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && (after.Seq > 0 || !errors.Is(err, stream.ErrNotFound)) {
			return err
		}
		for _, e := range entries {
			if err := got(e); err != nil {
				return err
			}
			after.Seq = e.Seq
		}
		if len(entries) > 0 {
			timeout.Reset(patience)
			continue
		}
		select {
		case <-ready:
		case <-timeout.C:
			return fmt.Errorf("nothing more after %d", after.Seq)
		}
	}
}
