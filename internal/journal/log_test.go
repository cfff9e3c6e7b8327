package journal_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"holdfast/internal/engine/memory"
	"holdfast/internal/journal"
	"holdfast/stream"
)

// writer has the entries of one stream.
type writer struct{ track journal.Track }

func (w *writer) Track() *journal.Track { return &w.track }

// owner records its calls.
type owner struct {
	log     journal.Log[*writer]
	lease   stream.Lease
	instead []stream.Entry
	told    []string
	moved   bool
}

func (o *owner) Lease() (stream.Lease, bool) { return o.lease, !o.moved }

func (o *owner) Stored(_ *writer, r *stream.Record) {
	o.told = append(o.told, fmt.Sprintf("stored %d %s", r.Seq, r.Data))
}

func (o *owner) Refused(x *journal.Entry[*writer], _ error) []stream.Entry {
	text := fmt.Sprintf("refused %s:", x.Data)
	o.log.EachUnstored(x.By, func(x *journal.Entry[*writer]) { text += " " + string(x.Data) })
	o.told = append(o.told, text)
	return slices.Clone(o.instead)
}

func (o *owner) Unkept(x *journal.Entry[*writer], instead []stream.Entry, _ error) {
	o.told = append(o.told, fmt.Sprintf("unkept %s %d", x.Data, instead[0].Seq))
}

func (o *owner) Lost(unstored []journal.Entry[*writer], err error) {
	o.told = append(o.told, fmt.Sprintf("lost %d %v", len(unstored), err))
	o.moved = true
}

// newOwner makes a log over a store in memory. refuse returns the error with which an append is refused, or nil.
func newOwner(t *testing.T, refuse func([]stream.Record) error) *owner {
	t.Helper()
	st := memory.New(memory.Options{})
	t.Cleanup(func() { _ = st.Close() })
	lease, err := st.Create(t.Context(), "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{lease: lease}
	o.log.Init(o, &journal.Options{
		Append: func(ctx context.Context, l stream.Lease, records []stream.Record) error {
			if err := refuse(records); err != nil {
				return err
			}
			return st.Append(ctx, l, records)
		},
		Context:    t.Context(),
		MostQueued: 100,
		Loses:      func(err error) bool { return errors.Is(err, stream.ErrFenced) },
		Go:         func(func()) bool { return false },
	})
	return o
}

// say queues texts of a writer, as one append.
func (o *owner) say(w *writer, texts ...string) {
	o.log.InOneAppend(func() {
		for _, text := range texts {
			o.log.Queue(journal.Entry[*writer]{By: w, Number: 1, Data: []byte(text)})
		}
	})
}

// refusing refuses, with an error, each append that has one of some texts.
func refusing(err error, texts ...string) func([]stream.Record) error {
	return func(records []stream.Record) error {
		for i := range records {
			if slices.Contains(texts, string(records[i].Data)) {
				return err
			}
		}
		return nil
	}
}

// The owner learns the outcome of each entry, in order.
func TestLog(t *testing.T) {
	t.Parallel()
	full, end := stream.ErrFull, []stream.Entry{{Data: []byte("end"), Last: true}}
	for name, c := range map[string]struct {
		refuse  func([]stream.Record) error
		instead []stream.Entry
		want    []string
		seq     uint64
	}{
		"all stored":   {refusing(nil), nil, []string{"stored 1 a", "stored 2 b", "stored 3 c"}, 3},
		"one lost":     {refusing(full, "b"), nil, []string{"stored 1 a", "refused b: b c", "stored 2 c"}, 2},
		"ended":        {refusing(full, "b"), end, []string{"stored 1 a", "refused b: b c", "stored 2 end"}, 2},
		"not even so":  {refusing(full, "b", "end"), end, []string{"stored 1 a", "refused b: b c", "unkept b 2"}, 1},
		"fenced":       {refusing(stream.ErrFenced, "b"), nil, []string{"lost 3 " + stream.ErrFenced.Error()}, 0},
		"fenced later": {fencedAfter("b", "end"), end, []string{"stored 1 a", "refused b: b c", "lost 2 " + stream.ErrFenced.Error()}, 1},
		"unknown":      {refusing(stream.ErrNotFound, "b"), nil, []string{"stored 1 a", "refused b: b c"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, w := newOwner(t, c.refuse), &writer{}
			o.instead = c.instead
			o.say(w, "a", "b", "c")
			if !slices.Equal(o.told, c.want) || w.track.Seq() != c.seq {
				t.Errorf("told %q at %d, want %q at %d", o.told, w.track.Seq(), c.want, c.seq)
			}
			if !o.log.IsIdle() || o.log.Queued() != 0 {
				t.Errorf("%d bytes are queued", o.log.Queued())
			}
		})
	}
}

// fencedAfter refuses an append with one text, and loses the session at an append with the other.
func fencedAfter(refused, fenced string) func([]stream.Record) error {
	return func(records []stream.Record) error {
		if err := refusing(stream.ErrFenced, fenced)(records); err != nil {
			return err
		}
		return refusing(stream.ErrFull, refused)(records)
	}
}

// No entry of a session that has moved is appended.
func TestMoved(t *testing.T) {
	t.Parallel()
	o := newOwner(t, refusing(nil))
	o.moved = true
	o.say(&writer{}, "a", "b")
	if want := []string{"lost 2 <nil>"}; !slices.Equal(o.told, want) {
		t.Errorf("told %q, want %q", o.told, want)
	}
}

// While the store blocks, writers go on until too much is queued, and then wait.
func TestFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release, third := make(chan struct{}), make(chan struct{})
		o := newOwner(t, func([]stream.Record) error {
			<-release
			return nil
		})
		w := &writer{}
		var all sync.WaitGroup
		all.Go(func() { o.say(w, "first") })
		synctest.Wait()
		o.say(w, "second") // the call returns at once
		all.Go(func() {
			o.say(w, fmt.Sprintf("%0200d", 3))
			close(third)
		})
		synctest.Wait()
		select {
		case <-third:
			t.Errorf("a writer goes on, with %d bytes queued", o.log.Queued())
		default:
		}
		close(release)
		all.Wait()
		if len(o.told) != 3 || !o.log.IsIdle() {
			t.Errorf("told %q", o.told)
		}
	})
}

// If the store has not taken the end of a stream, the end is read from memory, after the stored entries.
func TestUnstored(t *testing.T) {
	t.Parallel()
	var track journal.Track
	track.Resume(2)
	if _, ok, err := track.Unstored(2, nil); ok || err != nil || track.End() != nil {
		t.Errorf("before the end: %v, %v, %v", ok, err, track.End())
	}
	track.EndUnstored(7, []stream.Entry{{Data: []byte("a")}, {Data: []byte("b"), Last: true}})
	for seq, want := range []string{1: "store", 2: "3 a ", 3: "4 b ", 4: "EOF", 5: "EOF"} {
		if want == "" {
			continue
		}
		got, ok, err := track.Unstored(uint64(seq), make([]stream.Entry, 0, 1))
		said := ""
		for _, e := range got {
			said += fmt.Sprintf("%d %s ", e.Seq, e.Data)
		}
		switch {
		case !ok:
			said = "store"
		case errors.Is(err, io.EOF):
			said = "EOF"
		}
		if said != want {
			t.Errorf("after %d: %q, want %q", seq, said, want)
		}
	}
	if e := track.End(); e.Seq != 4 || e.Epoch != 7 || !e.Last {
		t.Errorf("ends with %+v", e)
	}
}
