package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/observe"
	"holdfast/internal/observe/observetest"
	"holdfast/internal/reading"
	"holdfast/stream"
)

// wantEnd checks how the only call of a method ended.
func wantEnd(t *testing.T, l *observetest.Ledger, want observe.Outcome, code int, stored bool) *observetest.Entry {
	t.Helper()
	all := l.Calls("tools/call")
	if len(all) == 0 {
		t.Fatal("no call began")
	}
	e := all[len(all)-1]
	end, ended := e.End()
	if !ended || end.Outcome != want || end.Code != code || (e.Number() != 0) != stored {
		t.Errorf("ended: %v, %v %d, stream %d; want %v %d, stored: %v", ended, end.Outcome, end.Code, e.Number(), want, code, stored)
	}
	return e
}

// Observers are told how each call ends.
func TestObservedOutcomes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		response string // without its id; "": the client cancels
		want     observe.Outcome
		code     int
	}{
		"result":     {`"result":{"content":[]}`, observe.Result, 0},
		"tool error": {`"result":{"content":[],"isError":true}`, observe.ToolError, 0},
		"error":      {`"error":{"code":-32602,"message":"no"}`, observe.Error, -32602},
		"unknown":    {`"error":{"code":-32010,"message":"outcome unknown: gone"}`, observe.Unknown, -32010},
		"cancelled":  {"", observe.Cancelled, 0},
	} {
		for _, light := range []bool{true, false} {
			l := observetest.New(t).Recording()
			h := newHouse(t, Options{Shared: Shared{Observers: observe.Observers{l}}}, nil)
			s := h.open("alice")
			c := begin(t, s, light, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x","_meta":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}}`)
			if test.response == "" {
				if err := s.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`), nil); err != nil {
					t.Fatal(err)
				}
			} else {
				h.desk.last().say(c, `{"jsonrpc":"2.0","id":7,`+test.response+`}`)
			}
			e := wantEnd(t, l, test.want, test.code, !light)
			if e.Tool != "x" || e.ID != "7" || e.Principal != "alice" || e.Session != s.Name() || e.Revision != "2025-11-25" ||
				e.Trace.ID() != "0af7651916cd43dd8448eb211c80319c" || e.BytesIn == 0 || e.Again || e.Carrier || e.Connections() != 1 {
				t.Errorf("%s: %+v", name, e.Call)
			}
			if said := test.response != ""; (e.BytesOut() > 0) != said {
				t.Errorf("%s: %d bytes out", name, e.BytesOut())
			}
			h.close()
		}
	}
}

// Observers are told of all events of a call, and of each of its readers.
func TestObservedLife(t *testing.T) {
	t.Parallel()
	l := observetest.New(t).Recording()
	h := newHouse(t, Options{Shared: Shared{Observers: observe.Observers{l}}}, nil)
	defer h.close()
	s := h.open("")
	c := begin(t, s, true, request(1))
	h.desk.last().say(c, `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`)
	e := l.Calls("tools/call")[0]
	read := func(door observe.Door, after uint64) *reading.Reader {
		r, err := s.Read(t.Context(), c.Number(), 0, after, make(chan struct{}, 1))
		if err != nil {
			t.Fatal(err)
		}
		r.Through(door, (*Call)(nil).Like())
		return r
	}
	first := read(observe.DoorPost, 0)
	_ = some(t, first, nil, 1)
	first.Detach(true, true, false)
	h.desk.last().say(c, `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`)
	second := read(observe.DoorReplay, 1)
	third := read(observe.DoorURL, 0)
	second.Detach(false, true, false)
	h.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	_ = some(t, third, nil, 3)
	third.Detach(false, true, false)
	late := read(observe.DoorResume, 1)
	late.Detach(true, true, false)

	var got []string
	for _, x := range e.Events() {
		switch x := x.(type) {
		case observe.Promoted:
			got = append(got, "promoted")
		case observe.Appended:
			got = append(got, "appended")
		case observe.ReaderCame:
			got = append(got, "came by "+x.Door.String())
		case observe.ReaderRead:
			got = append(got, "read")
		case observe.ReaderWent:
			got = append(got, x.Why.String())
			if want := map[observe.Door]uint64{observe.DoorURL: 2}[x.Door]; x.Replayed != want {
				t.Errorf("%v: %d entries replayed, want %d", x.Door, x.Replayed, want)
			}
		}
	}
	wantTexts(t, "events", got, "promoted", "appended", "came by post", "read", "cut", "appended", "came by last_event_id",
		"came by stream_url", "superseded", "appended", "read", "finished")
	if e.Connections() != 3 || e.Entries() != 3 {
		t.Errorf("%d connections, %d entries", e.Connections(), e.Entries())
	}
	wantEnd(t, l, observe.Result, 0, true)
	var opened, came, went int
	for _, x := range l.Events() {
		switch x := x.(type) {
		case observe.SessionBegan, observe.BackendOpened:
			opened++
		case observe.ReaderCame:
			came++
		case observe.ReaderWent:
			if went++; x.Call != nil || x.Why != observe.Cut || x.Number != c.Number() {
				t.Errorf("the late reader: %+v", x)
			}
		}
	}
	if opened != 2 || came != 1 || went != 1 {
		t.Errorf("%d opened, %d came late, %d went late", opened, came, went)
	}
}

// A call that is made again at another node has left this node, and goes on there. A call that
// may not be made again ends there with its outcome unknown.
func TestObservedTakeOver(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]observe.Outcome{"safe": observe.Result, "x": observe.Unknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newShelf()
			la, lb := observetest.New(t), observetest.New(t).Recording()
			o := safeTools()
			o.Observers = observe.Observers{la}
			a := f.add(t, "a", o)
			o.Observers = observe.Observers{lb}
			b := f.add(t, "b", o)
			s := a.open("")
			text := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `"}}`
			begin(t, s, false, text)
			a.desk.last().next(t, "tools/call")
			a.kill()
			b.take(s)
			if want == observe.Result {
				mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
				b.desk.last().say(b.desk.last().next(t, "tools/call").Call, `{"jsonrpc":"2.0","id":1,"result":{}}`)
			}
			all := lb.Calls("tools/call")
			if len(all) != 1 || !all[0].Again || all[0].Tool != name {
				t.Fatalf("%s: %d calls at the new owner", name, len(all))
			}
			if end, ok := all[0].End(); !ok || end.Outcome != want {
				t.Errorf("%s: %v %v", name, ok, end)
			}
			a.Close()
			// The node lives, but reaches no store: there a reader of the unsafe call gets "outcome unknown".
			if end, ok := la.Calls("tools/call")[0].End(); !ok || end.Outcome != observe.Left && end.Outcome != want {
				t.Errorf("%s at the node that was lost: %v %v", name, ok, end)
			}
			takenOver := 0
			for _, x := range lb.Events() {
				if x, ok := x.(observe.TakenOver); ok && x.Name == s.Name() && x.From == "a" {
					takenOver++
				}
			}
			if takenOver != 1 {
				t.Errorf("%s: %d take-overs were told of", name, takenOver)
			}
		})
	}
}

// A call that is handed off goes on, in another stream, until its tool has answered.
func TestObservedHandOff(t *testing.T) {
	t.Parallel()
	for _, light := range []bool{true, false} {
		l := observetest.New(t).Recording()
		h := newHouse(t, Options{
			Shared:   Shared{Observers: observe.Observers{l}},
			Addition: passAfter(time.Millisecond),
		}, nil)
		h.desk.tools = `{"name":"x"}`
		s := h.open("")
		begin(t, s, light, request(1))
		in := h.desk.last().next(t, "tools/call")
		e := l.Calls("tools/call")[0]
		handed := func() (is observe.HandedOff, ok bool) {
			for _, x := range e.Events() {
				if is, ok = x.(observe.HandedOff); ok {
					return is, ok
				}
			}
			return is, false
		}
		mcptest.Eventually(t, "a hand-off", time.Minute, func() bool { _, ok := handed(); return ok })
		is, _ := handed()
		if _, ended := e.End(); ended || is.Number != e.Number() || (is.Was != 0) == light {
			t.Errorf("light %v: handed off as %+v, in stream %d, ended: %v", light, is, e.Number(), ended)
		}
		h.desk.last().say(in.Call, `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`)
		h.desk.last().say(in.Call, `{"jsonrpc":"2.0","id":1,"result":{"isError":true}}`)
		wantEnd(t, l, observe.ToolError, 0, true)
		if n := len(l.Calls("tools/call")); n != 1 {
			t.Errorf("%d calls began", n)
		}
		h.close()
	}
}

// late is a store that confirms only later that it has a call's last entry.
type late struct {
	stream.Store
	has  chan struct{} // receives when the store has a last entry
	says chan struct{} // closed to let the store confirm
}

func (l *late) Append(ctx context.Context, lease stream.Lease, records []stream.Record) error {
	err := l.Store.Append(ctx, lease, records)
	if records[len(records)-1].Last {
		l.has <- struct{}{}
		<-l.says
	}
	return err
}

// Observers hear the outcome of a call if its node ends, or its client ends the session, before the store has confirmed the call's
// last entry: either waits for that.
func TestObservedAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(h *house, s *Session){
		"node":   func(h *house, _ *Session) { h.Close() },
		"client": func(h *house, s *Session) { h.End(s) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := observetest.New(t)
				store := &late{has: make(chan struct{}), says: make(chan struct{})}
				h := newHouse(t, Options{Shared: Shared{Observers: observe.Observers{l}}}, func(s stream.Store) stream.Store { store.Store = s; return store })
				defer h.close()
				s := h.open("")
				c := begin(t, s, false, request(1))
				go h.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
				<-store.has
				time.AfterFunc(100*time.Millisecond, func() { close(store.says) })
				end(h, s)
				wantEnd(t, l, observe.Result, 0, true)
			})
		})
	}
}
