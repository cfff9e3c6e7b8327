package reading

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/internal/journal"
	"holdfast/internal/likeness"
	"holdfast/internal/observe"
	"holdfast/stream"
)

// A house is a session with the state that a test sets. It records the events that it hears.
type house struct {
	t       *testing.T
	streams Streams
	store   *memory.Store
	writers map[uint64]*voice
	lives   Life
	first   uint64 // the epoch in which the session began again
	heard   []Event
	arrived []uint64
	lost    func() // called at the event Lost
	always  func() // called at each event; may be nil
}

const epoch = 7

func newHouse(t *testing.T) *house {
	st := memory.New(memory.Options{})
	t.Cleanup(func() { _ = st.Close() })
	if _, err := st.CreateUnder(t.Context(), "s", epoch); err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, store: st, writers: make(map[uint64]*voice)}
	h.writers[Standalone] = &voice{}
	h.streams.Init(h, "s", h.writers[Standalone], false, &Options{Store: st, Shared: true, IsOld: func(data []byte) bool { return string(data) == "old" }})
	return h
}

func (h *house) Life() Life                                { return h.lives }
func (h *house) Epochs() (now, first uint64)               { return epoch, h.first }
func (h *house) Server() string                            { return "" }
func (h *house) Missed(_ context.Context, err error) error { return err }
func (h *house) IsAlone(Call) bool                         { return true }
func (h *house) Arrived(number uint64)                     { h.arrived = append(h.arrived, number) }
func (h *house) Sent(*Reader, bool) Sent                   { return nil }
func (h *house) Observed(observe.Event)                    {}
func (h *house) Heard(r *Reader, e Event) {
	h.heard = append(h.heard, e)
	if h.always != nil {
		h.always()
	}
	if e == Lost && h.lost != nil {
		h.lost()
	}
	if v, _ := r.Call().(*voice); v != nil && e == Told {
		v.told = r.Cursor().Seq
	}
}

// A voice is a call.
type voice struct {
	track      journal.Track
	said, told uint64
	asks       bool
	parked     *Disconnect
}

func (v *voice) Track() *journal.Track       { return &v.track }
func (v *voice) Progress() Progress          { return Progress{Said: v.said, Told: v.told, Asks: v.asks} }
func (v *voice) Came(uint64) *Disconnect     { k := v.parked; v.parked = nil; return k }
func (v *voice) Likeness() likeness.Likeness { return likeness.Likeness{} }
func (v *voice) Observe() *observe.Watch     { return nil }
func (v *voice) Ping()                       {}

// begin begins a call.
func (h *house) begin() (number uint64) {
	v := &voice{}
	number = h.streams.Add(v)
	h.writers[number] = v
	return number
}

// say appends entries to a call's stream; "": the end.
func (h *house) say(number uint64, words ...string) {
	h.t.Helper()
	v := h.writers[number]
	for _, text := range words {
		v.said++
		r := stream.Record{Number: number, Entry: stream.Entry{Seq: v.said, Data: []byte(text), Last: text == ""}}
		if err := h.store.Append(h.t.Context(), stream.Lease{Session: "s", Epoch: epoch}, []stream.Record{r}); err != nil {
			h.t.Fatal(err)
		}
		if text == "" {
			h.streams.Remove(number, true)
		}
	}
}

// read attaches a reader after an entry.
func (h *house) read(kind Kind, number, after uint64) (*Reader, error) {
	return h.streams.Read(h.t.Context(), kind, stream.Cursor{Stream: stream.ID{Number: number}, Seq: after}, make(chan struct{}, 1))
}

// must is read for a case that must succeed.
func (h *house) must(kind Kind, number uint64) *Reader {
	h.t.Helper()
	r, err := h.read(kind, number, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// tell delivers all available entries to a reader's client.
func (h *house) tell(r *Reader) (words []string) {
	h.t.Helper()
	got, err := r.Next(h.t.Context(), make([]stream.Entry, 0, 16))
	if err != nil && !errors.Is(err, io.EOF) {
		h.t.Fatal(err)
	}
	for i := range got {
		words = append(words, string(got[i].Data))
	}
	r.Delivered()
	return words
}

// The owner hears the events of a reader in order.
func TestHeard(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	number := h.begin()
	h.say(number, "a", "")
	r := h.must(Says, number)
	r.Through(observe.DoorReplay, likeness.Likeness{})
	h.tell(r)
	r.Detach(true, true, false)
	if want := []Event{Comes, Came, Back, Told, Leaves, Lost, Left}; !slices.Equal(h.heard, want) {
		t.Errorf("heard %v, want %v", h.heard, want)
	}
	if read := h.streams.TakeRead(); !slices.Equal(read, []uint64{number}) || h.streams.TakeRead() != nil {
		t.Errorf("read to their end: %v", read)
	}
	if !h.streams.IsUnused() || !h.streams.IsLost(number) {
		t.Errorf("used %v, lost %v", !h.streams.IsUnused(), h.streams.IsLost(number))
	}
}

// A client may come back, read all and leave before the owner hears that the stream was lost.
func TestBackAtOnce(t *testing.T) {
	t.Parallel()
	for _, comes := range []bool{false, true} {
		for _, cut := range []bool{false, true} { // before any write
			h := newHouse(t)
			number := h.begin()
			var back bool
			lost := func() {
				if comes {
					h.say(number, "b", "")
					r := h.must(Says, number)
					h.tell(r)
					r.Detach(false, true, false)
				}
				back = h.streams.ReadBesides(number, nil)
			}
			if cut {
				h.streams.Cut(number, likeness.Likeness{}, lost)
			} else {
				h.say(number, "a")
				r := h.must(Says, number)
				h.tell(r)
				h.lost = lost
				r.Detach(true, true, false)
			}
			if back != comes || h.streams.ReadBesides(number, nil) {
				t.Errorf("cut %v: its client is back: %v, want %v; later: %v", cut, back, comes, h.streams.ReadBesides(number, nil))
			}
		}
	}
}

// The standalone stream may continue a call before the owner hears that the call's connection broke: the client has not come back for it.
func TestContinuedAtOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	number := h.begin()
	on := &Outlet{On: h.must(Stays, Standalone), Arrived: func() bool { return true }}
	asked := 0
	ask := func() {
		if asked++; h.streams.ReadBesides(number, nil) {
			t.Error("the client counts as back")
		}
	}
	h.streams.Cut(number, likeness.Likeness{}, func() {
		h.always = ask
		at := stream.Cursor{Stream: stream.ID{Number: number}}
		if _, err := h.streams.ReadOn(t.Context(), Says, at, make(chan struct{}, 1), on); err != nil {
			t.Error(err)
		}
		ask()
	})
	if want := []Event{Comes, Came, Lost}; asked != 4 || !slices.Equal(h.heard[len(h.heard)-3:], want) {
		t.Errorf("heard %v, want %v at last; asked %d times", h.heard, want, asked)
	}
}

// A client that resumes after the last entry has all entries: no gap is left, and Arrived is called.
func TestArrived(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	number := h.begin()
	h.say(number, "a", "")
	r := h.must(Says, number)
	h.tell(r)
	r.Detach(true, true, false)
	if _, err := h.read(Says, number, 2); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	if !slices.Equal(h.arrived, []uint64{number}) || h.streams.IsLost(number) {
		t.Errorf("arrived %v, lost %v", h.arrived, h.streams.IsLost(number))
	}
}

// Old entries that were written to a client are not written again when the call goes on on another connection.
func TestPastOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		number := h.begin()
		h.say(number, "old", "old", "new")
		r := h.must(Says, number)
		h.tell(r)
		r.Detach(true, true, false)
		time.Sleep(awayFor)
		if at, _ := h.streams.Lost(t.Context(), 0); len(at) != 1 || at[0].Seq != 2 {
			t.Errorf("continued at %v", at)
		}
	})
}

// If a call has had several clients, one of them may come back for FollowFor, and no longer.
func TestFollowers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		number := h.begin()
		first := h.must(Says, number)
		if h.streams.HasFollowers() {
			t.Error("one client follows itself")
		}
		second := h.must(Says, number)
		if !first.Gone() || second.Gone() || !h.streams.HasFollowers() {
			t.Errorf("gone %v and %v, followed %v", first.Gone(), second.Gone(), h.streams.HasFollowers())
		}
		first.Detach(false, true, false)
		second.Detach(false, true, false)
		time.Sleep(FollowFor)
		if !h.streams.HasFollowers() {
			t.Error("forgotten too soon")
		}
		time.Sleep(time.Second)
		if h.streams.HasFollowers() {
			t.Error("waited for too long")
		}
	})
}

// A disconnect that was requested before the reader came applies to the reader, once it has read to the entry of the request.
func TestDisconnectBefore(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	number := h.begin()
	h.say(number, "a")
	h.writers[number].parked = &Disconnect{Retry: time.Second, After: 1}
	r := h.must(Says, number)
	defer r.Detach(false, true, false)
	if _, ok := r.DisconnectRequest(); ok || !r.HasDisconnectRequest() {
		t.Error("asked to go before it has read what was said before")
	}
	h.tell(r)
	if retry, ok := r.DisconnectRequest(); !ok || retry != time.Second {
		t.Errorf("asked %v, to come back in %v", ok, retry)
	}
}

// A reader of the standalone stream that has stepped aside continues after the entries that the newer reader has told.
func TestAside(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var readers []*Reader
	for range endedAtFirst + 2 {
		readers = append(readers, h.must(Stays, Standalone))
	}
	for i, r := range readers[:endedAtFirst] {
		if !r.Gone() {
			t.Errorf("reader %d stays", i)
		}
	}
	older, newest := readers[endedAtFirst], readers[endedAtFirst+1]
	if older.Gone() || !older.Aside(t.Context()) || newest.Aside(t.Context()) {
		t.Fatal("the older one does not step aside")
	}
	h.say(Standalone, "a", "b")
	h.tell(newest)
	for _, r := range readers {
		if r != older {
			r.Detach(false, true, false)
		}
	}
	if older.Aside(t.Context()) || older.Cursor().Seq != 2 {
		t.Errorf("goes on after %d", older.Cursor().Seq)
	}
	older.Detach(false, true, false)
	if !h.streams.IsUnused() {
		t.Error("a reader is left")
	}
}

// A cursor from an earlier life of the session is forgotten.
func TestForgotten(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for _, tc := range []struct {
		first, at uint64
		want      bool
	}{{0, 3, false}, {5, 3, true}, {5, 0, false}, {5, 5, false}, {5, epoch, false}, {5, epoch + 1, true}} {
		h.first = tc.first
		if got := h.streams.IsForgotten(stream.Cursor{Epoch: tc.at}); got != tc.want {
			t.Errorf("epoch %d of a session that began again with %d: %v", tc.at, tc.first, got)
		}
	}
}

// If a session has moved, further entries are at its new owner: Next returns ErrMoved.
func TestMoved(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	number := h.begin()
	h.say(number, "a")
	r := h.must(Says, number)
	defer r.Detach(false, true, false)
	h.lives = Moved
	if words := h.tell(r); !slices.Equal(words, []string{"a"}) {
		t.Errorf("read %q", words)
	}
	if _, err := r.Next(t.Context(), make([]stream.Entry, 0, 1)); !errors.Is(err, ErrMoved) {
		t.Errorf("then %v", err)
	}
}
