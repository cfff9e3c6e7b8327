package session

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"holdfast/stream"
)

// A lateStore returns its result a moment later, after another event.
type lateStore struct {
	stream.Store
	meanwhile atomic.Pointer[func()]
}

func (st *lateStore) Read(ctx context.Context, after stream.Cursor, buf []stream.Entry) ([]stream.Entry, error) {
	buf, err := st.Store.Read(ctx, after, buf)
	if errors.Is(err, stream.ErrNotFound) && after.Stream.Number != standalone {
		if f := st.meanwhile.Swap(nil); f != nil {
			(*f)()
		}
	}
	return buf, err
}

// A call may begin and end between a reader's look at the store and its look at the
// call. The reader reads it: it does not take the call for a dropped one.
func TestReadAsItEnds(t *testing.T) {
	t.Parallel()
	late := &lateStore{}
	h := newHouse(t, Options{}, func(st stream.Store) stream.Store {
		late.Store = st
		return late
	})
	defer h.close()
	s := h.open("")
	c := begin(t, s, false, request(1))
	conn := h.desk.last()
	<-conn.in
	end := func() { conn.say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`) }
	late.meanwhile.Store(&end)
	r, err := s.Read(t.Context(), c.Number(), 0, 0, make(chan struct{}, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Detach(false, true, false)
	if late.meanwhile.Load() != nil {
		t.Fatal("the store was not asked before the call ended")
	}
	got, err := r.Next(t.Context(), make([]stream.Entry, 0, 4))
	if err != nil || len(got) != 1 || !got[0].Last {
		t.Errorf("read %d entries, %v; want the answer", len(got), err)
	}
}
