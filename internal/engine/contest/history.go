package contest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// A history has all operations on a session, with their results. A clock that only counts
// gives the order.
type history struct {
	key   stream.SessionKey
	clock atomic.Int64

	mu       sync.Mutex
	attempts []*attempt
	acquired []*acquisition
	read     []sight
	cursors  map[uint64]stream.Cursor
}

// An attempt is an append, with its outcome.
type attempt struct {
	lease      stream.Lease
	node       string
	records    []stream.Record
	call, done int64
	err        error
}

type acquisition struct {
	node       string
	was        uint64 // epoch
	taken      shared.Taken
	streams    map[uint64]shared.Stream
	call, done int64
}

// A sight is an entry that was read after another.
type sight struct {
	number, after uint64
	entry         stream.Entry
}

// place is the stream and the sequence of an entry.
type place struct{ number, seq uint64 }

func (h *history) now() int64 { return h.clock.Add(1) }

func (h *history) add(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *history) shown(number, after uint64, e stream.Entry) {
	h.add(func() { h.read = append(h.read, sight{number, after, e}) })
}

// began creates the session, before anything happens to it. The engine may be
// faulty already: an attempt of unknown outcome may have created it.
func (h *history) began(t *testing.T, st shared.Store) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		_, err := st.Create(t.Context(), h.key, nil)
		switch {
		case err == nil, errors.Is(err, stream.ErrExists):
			return
		case !errors.Is(err, stream.ErrUnavailable) || time.Now().After(end):
			t.Fatalf("Create: %v", err)
		}
	}
}

// check acquires the session for the last time and compares its streams with the
// history.
func (h *history) check(t *testing.T, st shared.Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	final, err := h.finally(ctx, st)
	if err != nil {
		t.Errorf("%s: %v", h.key, err)
		return
	}
	h.checkLeases(t)
	h.checkAppends(t, final)
	h.checkOrder(t, final)
	h.checkNotes(t) // sorts h.acquired
	for _, s := range h.read {
		e, ok := final[place{s.number, s.entry.Seq}]
		if !ok || !equal(e, s.entry) || s.entry.Seq != s.after+1 {
			t.Errorf("%s: stream %d: %s was read after %d, and there is %s", h.key, s.number, show(s.entry), s.after, show(e))
		}
	}
	for number, after := range h.cursors {
		if after.Seq == 0 {
			continue
		}
		if _, err := st.Read(ctx, after, make([]stream.Entry, 0, 1)); err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("%s: stream %d can't be read on after %d of epoch %d: %v", h.key, number, after.Seq, after.Epoch, err)
		}
	}
}

// finally acquires the session and returns all entries of its streams.
func (h *history) finally(ctx context.Context, st shared.Store) (map[place]stream.Entry, error) {
	p := &player{h: h, st: st}
	for {
		was, err := st.Lookup(ctx, h.key)
		if err == nil && p.take(ctx, was) {
			break
		}
		if errors.Is(err, stream.ErrNotFound) || ctx.Err() != nil {
			return nil, fmt.Errorf("can't be acquired in the end: %w", errors.Join(err, ctx.Err()))
		}
		time.Sleep(time.Millisecond) // polling: the last of the others may not be done
	}
	all := make(map[place]stream.Entry)
	taken := h.acquired[len(h.acquired)-1].taken
	for _, x := range taken.Streams {
		if x.Oldest != 1 {
			return nil, fmt.Errorf("stream %d has lost what was before %d", x.Number, x.Oldest)
		}
		after := stream.Cursor{Stream: stream.ID{Session: h.key, Number: x.Number}}
		for after.Seq+1 < x.Next {
			got, err := st.Read(ctx, after, make([]stream.Entry, 0, 64))
			if err != nil || len(got) == 0 {
				return nil, fmt.Errorf("stream %d after %d: %d entries and %w", x.Number, after.Seq, len(got), err)
			}
			for _, e := range got {
				after.Seq, after.Epoch = e.Seq, e.Epoch
				all[place{x.Number, e.Seq}] = e
			}
		}
	}
	return all, nil
}

// checkLeases checks that each epoch is given once, that only one of several nodes that acquire
// with the same look-up succeeds, and that no entry is appended under an older epoch then.
func (h *history) checkLeases(t *testing.T) {
	t.Helper()
	given, from := make(map[uint64]string), make(map[uint64]string)
	for _, a := range h.acquired {
		if who, ok := given[a.taken.Epoch]; ok {
			t.Errorf("%s: %s and %s both have epoch %d", h.key, who, a.node, a.taken.Epoch)
		}
		if who, ok := from[a.was]; ok {
			t.Errorf("%s: %s and %s both took over what was epoch %d", h.key, who, a.node, a.was)
		}
		if a.taken.Epoch <= a.was {
			t.Errorf("%s: epoch %d after %d", h.key, a.taken.Epoch, a.was)
		}
		given[a.taken.Epoch], from[a.was] = a.node, a.node
	}
	for _, x := range h.attempts {
		for _, a := range h.acquired {
			if x.err == nil && x.lease.Epoch < a.taken.Epoch && x.call > a.done {
				t.Errorf("%s: %s appended under epoch %d after %s had got %d", h.key, x.node, x.lease.Epoch, a.node, a.taken.Epoch)
			}
		}
	}
}

// checkAppends checks that acknowledged entries are in final, and were there for every
// node that acquired the session later; that refused ones are not; and that every
// entry in final was appended.
func (h *history) checkAppends(t *testing.T, final map[place]stream.Entry) {
	t.Helper()
	known := make(map[place]bool)
	for _, x := range h.attempts {
		refused := x.err != nil && !errors.Is(x.err, stream.ErrUnavailable)
		there := 0
		entries := 0
		for _, r := range x.records {
			if r.Note {
				continue
			}
			entries++
			at := place{r.Number, r.Seq}
			e, ok := final[at]
			r.Epoch = x.lease.Epoch
			if ok && equal(e, r.Entry) {
				known[at] = true
				there++
			} else if x.err == nil {
				t.Errorf("%s: stream %d: %s was acknowledged, and there is %s", h.key, r.Number, show(r.Entry), show(e))
			}
		}
		if there > 0 && refused || there != 0 && there != entries {
			t.Errorf("%s: %d entries of %d are there of an append by %s, epoch %d: %v", h.key, there, entries, x.node, x.lease.Epoch, x.err)
		}
		if x.err == nil {
			h.checkTaken(t, x)
		}
	}
	for at, e := range final {
		if !known[at] {
			t.Errorf("%s: stream %d: nobody appended %s", h.key, at.number, show(e))
		}
	}
}

// checkTaken checks that every later acquisition returned the streams of an acknowledged append.
func (h *history) checkTaken(t *testing.T, x *attempt) {
	t.Helper()
	for _, a := range h.acquired {
		if a.taken.Epoch <= x.lease.Epoch {
			continue
		}
		for _, r := range x.records {
			s, ok := a.streams[r.Number]
			switch {
			case !ok:
				t.Errorf("%s: stream %d was not there for epoch %d", h.key, r.Number, a.taken.Epoch)
			case !r.Note && s.Next <= r.Seq:
				t.Errorf("%s: stream %d: %s was not there for epoch %d", h.key, r.Number, show(r.Entry), a.taken.Epoch)
			}
		}
	}
}

// checkOrder checks that the streams are dense, that each ends once, and that epochs grow.
func (h *history) checkOrder(t *testing.T, final map[place]stream.Entry) {
	t.Helper()
	for at, e := range final {
		before, ok := final[place{at.number, at.seq - 1}]
		if at.seq > 1 && (!ok || before.Last || before.Epoch > e.Epoch) {
			t.Errorf("%s: stream %d: %s follows %s", h.key, at.number, show(e), show(before))
		}
	}
}

// checkNotes checks that acquiring a session returns the last note that was acknowledged,
// or one of a later attempt.
func (h *history) checkNotes(t *testing.T) {
	t.Helper()
	tried := slices.DeleteFunc(slices.Clone(h.attempts), func(x *attempt) bool {
		return x.err != nil && !errors.Is(x.err, stream.ErrUnavailable)
	})
	slices.SortStableFunc(tried, func(x, y *attempt) int { // those of one lease are in order
		return int(x.lease.Epoch) - int(y.lease.Epoch)
	})
	slices.SortFunc(h.acquired, func(x, y *acquisition) int { return int(x.taken.Epoch) - int(y.taken.Epoch) })
	must, may := make(map[uint64]string), make(map[uint64][]string)
	for _, a := range h.acquired {
		for ; len(tried) > 0 && tried[0].lease.Epoch < a.taken.Epoch; tried = tried[1:] {
			for _, r := range tried[0].records {
				switch {
				case !r.Note:
				case tried[0].err == nil:
					must[r.Number], may[r.Number] = string(r.Data), nil
				default:
					may[r.Number] = append(may[r.Number], string(r.Data))
				}
			}
		}
		for n, s := range a.streams {
			if !s.Ended && string(s.Note) != must[n] && !slices.Contains(may[n], string(s.Note)) {
				t.Errorf("%s: stream %d had note %q for epoch %d, and last it was %q, or maybe %q", h.key, n, s.Note, a.taken.Epoch, must[n], may[n])
			}
		}
	}
}

func equal(x, y stream.Entry) bool {
	return x.Seq == y.Seq && x.Epoch == y.Epoch && x.Last == y.Last && bytes.Equal(x.Data, y.Data)
}

func show(e stream.Entry) string {
	if e.Seq == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%d of epoch %d (%.40q, last %v)", e.Seq, e.Epoch, e.Data, e.Last)
}

// A tally counts the operations in histories.
type tally struct{ stored, fenced, unknown, refused, acquired, read int }

func (s *tally) add(h *history) {
	for _, x := range h.attempts {
		switch {
		case x.err == nil:
			s.stored++
		case errors.Is(x.err, stream.ErrFenced):
			s.fenced++
		case errors.Is(x.err, stream.ErrUnavailable):
			s.unknown++
		default:
			s.refused++
		}
	}
	s.acquired += len(h.acquired)
	s.read += len(h.read)
}

// note returns a record that is a note.
func note(number uint64, text string) stream.Record {
	return stream.Record{Number: number, Note: true, Entry: stream.Entry{Data: []byte(text)}}
}
