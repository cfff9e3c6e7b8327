package deferred

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/internal/journal"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A house is a session with its calls in flight.
type house struct {
	t       *testing.T
	calls   Calls
	streams reading.Streams
	store   *memory.Store
	lease   stream.Lease
	running map[uint64]*voice
	moved   bool
	taken   bool
	held    int
}

// A voice is a call in flight.
type voice struct {
	track  journal.Track
	record *Call
	asks   bool
}

func (v *voice) Track() *journal.Track       { return &v.track }
func (v *voice) AwaitsInput() (bool, uint64) { return v.asks, 1 }

var errNone = errors.New("nothing is kept of it")

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{t: t, store: memory.New(memory.Options{}), running: make(map[uint64]*voice)}
	t.Cleanup(func() { _ = h.store.Close() })
	lease, err := h.store.Create(t.Context(), "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	h.lease = lease
	h.streams.Init(nil, "s", nil, false, &reading.Options{Store: h.store})
	h.calls.Init(h, &Options{Context: t.Context(), Keep: time.Hour, NotFound: errNone, Progress: func(data []byte) (string, bool) {
		text := jsonrpc.String(jsonrpc.Field(data, "params", "message"))
		return text, text != ""
	}})
	return h
}

func (h *house) Running(number uint64) Running {
	if v := h.running[number]; v != nil {
		return v
	}
	return nil
}

func (h *house) Record(r Running, begin func(over bool) *Call) *Call {
	v := r.(*voice)
	if v.record == nil {
		v.record = begin(false)
	}
	return v.record
}

func (h *house) Hold()                     { h.held++ }
func (h *house) Moved() bool               { return h.moved }
func (h *house) Taken() bool               { return h.taken }
func (h *house) Streams() *reading.Streams { return &h.streams }

func (h *house) OpenRequests(context.Context, uint64, uint64) ([]jsonrpc.Message, error) {
	return []jsonrpc.Message{{Method: "asked"}}, nil
}

// append appends an entry of a stream to the store.
func (h *house) append(number, seq uint64, data string, last bool) {
	h.t.Helper()
	r := stream.Record{Number: number, Entry: stream.Entry{Seq: seq, Data: []byte(data), Last: last}}
	if err := h.store.Append(h.t.Context(), h.lease, []stream.Record{r}); err != nil {
		h.t.Fatal(err)
	}
}

// standing returns the result of Standing, which must succeed.
func (h *house) standing(number uint64) Standing {
	h.t.Helper()
	st, err := h.calls.Standing(h.t.Context(), number)
	if err != nil {
		h.t.Fatal(err)
	}
	return st
}

const progress = `{"method":"notifications/progress","params":{"message":"half"}}`

// Messages from before a call has a record are read from its stream. Later ones are kept in the record.
func TestStandingOfARunningCall(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	v := &voice{}
	h.running[1] = v
	if h.append(1, 1, progress, false); h.calls.WereUsed() {
		t.Error("calls were used before one was asked for")
	}
	if st := h.standing(1); !st.Running || st.Message != "half" || st.Asked != nil || st.Response != nil {
		t.Errorf("the call stands at %+v", st)
	}
	if !h.calls.WereUsed() || !v.record.IsAskedFor() {
		t.Error("it is not known that the call was asked for")
	}
	v.record.Said([]byte(`{"params":{"message":"most"}}`))
	v.asks = true
	if st := h.standing(1); st.Message != "most" || len(st.Asked) != 1 {
		t.Errorf("the call stands at %+v", st)
	}
	v.track.EndUnstored(1, []stream.Entry{{Data: []byte("end")}})
	if st := h.standing(1); st.Running || string(st.Response) != "end" {
		t.Errorf("a call whose end is not stored stands at %+v", st)
	}
}

// The end of a call is the last entry of its stream. A call counts as cancelled once its stream has ended.
func TestStandingOfAnEndedCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		if _, err := h.calls.Standing(t.Context(), 1); !errors.Is(err, errNone) {
			t.Errorf("a call of which nothing is kept: %v", err)
		}
		v := &voice{}
		h.running[1] = v
		h.standing(1)
		v.record.End(true)
		go func() {
			time.Sleep(time.Second)
			v.track.EndUnstored(1, []stream.Entry{{}})
			h.calls.Wake(1)
		}()
		began := time.Now()
		if st := h.standing(1); st.Running || st.Response != nil || st.Ended.IsZero() || time.Since(began) != time.Second || h.held != 1 {
			t.Errorf("a cancelled call stands after %v at %+v, and the session was held %d times", time.Since(began), st, h.held)
		}
		h.append(2, 1, progress, false)
		h.append(2, 2, `{"result":{}}`, true)
		if st := h.standing(2); st.Running || string(st.Response) != `{"result":{}}` {
			t.Errorf("an ended call stands at %+v", st)
		}
		h.append(3, 1, progress, false)
		if st := h.standing(3); jsonrpc.Field(st.Response, "error") == nil {
			t.Errorf("a call whose end is lost stands at %+v", st)
		}
		h.moved = true
		if _, err := h.calls.Standing(t.Context(), 3); !errors.Is(err, reading.ErrMoved) {
			t.Errorf("a call that may go on elsewhere: %v", err)
		}
	})
}

// Watchers of a call are notified until they stop. Watchers of a call that has ended are notified at once.
func TestWatch(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.running[1] = &voice{}
	ready := make(chan struct{}, 1)
	stop := h.calls.Watch(1, ready)
	if h.calls.Wake(1); len(ready) != 1 {
		t.Error("who watches a call was not told")
	}
	<-ready
	stop()
	if h.calls.Wake(1); len(ready) != 0 {
		t.Error("who watches it no more was told")
	}
	if h.calls.Watch(2, ready)(); len(ready) != 1 {
		t.Error("who watches a call that has ended was not told")
	}
}

// An ended call is forgotten a while after it can no longer be asked for.
func TestSweep(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.calls.AddEnded(1, "sum")
	if !h.calls.HasHeirs() || h.calls.Tool(1) != "sum" {
		t.Error("an heir is not known")
	}
	if h.calls.Sweep(time.Now().Add(time.Hour)); h.calls.Tool(1) == "" {
		t.Error("an heir was forgotten that can be asked for")
	}
	if h.calls.Sweep(time.Now().Add(time.Hour + 2*time.Minute)); h.calls.Tool(1) != "" {
		t.Error("an heir was not forgotten")
	}
}

// The end of a call does not answer a client that has answered the call's request.
func TestEndOf(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.append(1, 1, "asks", false)
	h.append(1, 2, "end", true)
	if end := h.calls.EndOf(t.Context(), 1, 1); string(end) != "end" {
		t.Errorf("the end is %q", end)
	}
	if h.calls.Answered(1, 1); h.calls.EndOf(t.Context(), 1, 1) != nil {
		t.Error("a client that has answered got the end")
	}
	for n := range uint64(mostAnswered) {
		h.calls.Answered(2+n, 1)
	}
	if len(h.calls.answered) != mostAnswered || h.calls.EndOf(t.Context(), 1, 1) == nil {
		t.Errorf("%d answers are kept, and the oldest is among them", len(h.calls.answered))
	}
	if h.taken = true; h.calls.EndOf(t.Context(), 1, 1) != nil {
		t.Error("a client that may have answered at another node got the end")
	}
}
