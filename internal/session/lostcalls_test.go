package session

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// scene has a client's connections to one session: they read the standalone
// stream and calls, until the test breaks them.
type scene struct {
	t     *testing.T
	s     *Session
	desk  *desk
	aside *reading.Reader // the reader of the standalone stream
}

const client = "192.0.2.1:1234"

func newScene(t *testing.T) *scene {
	h := newHouse(t, Options{}, nil)
	t.Cleanup(h.close)
	sc := &scene{t: t, s: h.open(""), desk: h.desk}
	sc.aside = attach(t, sc.s, standalone)
	t.Cleanup(func() { sc.aside.Detach(false, false, false) })
	return sc
}

// call begins a call, which its client reads.
func (sc *scene) call() *reading.Reader {
	sc.t.Helper()
	defer time.Sleep(time.Millisecond) // later events have later times
	return attach(sc.t, sc.s, begin(sc.t, sc.s, false, request(1+int(sc.s.streams.Last()))).Number())
}

// pinged returns the reader of a connection to which a ping was written.
func (sc *scene) pinged() *reading.Reader {
	sc.t.Helper()
	r := sc.call()
	r.Ping()
	r.Ping() // a second Ping does nothing
	var got []stream.Entry
	for len(got) == 0 {
		var err error
		if got, err = r.Next(sc.t.Context(), make([]stream.Entry, 0, 2)); err != nil {
			sc.t.Fatal(err)
		}
	}
	if len(got) != 1 || !strings.Contains(string(got[0].Data), `"ping"`) {
		sc.t.Fatalf("got %d entries, first %s", len(got), got[0].Data)
	}
	return r
}

// pong answers the ping of r.
func (sc *scene) pong(r *reading.Reader) {
	sc.t.Helper()
	for _, id := range []string{"holdfast-ping-", "holdfast-ping--1", "holdfast-ping-zz", "ping-1", "holdfast-ping-" + strconv.FormatUint(r.Cursor().Stream.Number, 36)} {
		m, err := jsonrpc.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"result":{}}`, id))
		if err == nil {
			err = sc.s.Send(sc.t.Context(), m, nil)
		}
		if err != nil {
			sc.t.Errorf("%s: %v", id, err)
		}
	}
}

// cameBack lets the client come back with nothing but its session.
func (sc *scene) cameBack() {
	sc.s.CameBack(0, nil)
	time.Sleep(time.Millisecond) // later events have later times
}

// whole lets a connection write a whole call.
func whole(r *reading.Reader, from string) { wholeAt(r, from, time.Now()) }

// wholeAt is whole with the time of the write.
func wholeAt(r *reading.Reader, from string, wrote time.Time) {
	r.Completed(from, wrote, false, nil)
	r.Detach(false, true, false)
}

const (
	awayFor    = 3 * time.Second  // how long to wait for a client that may come back with an event id
	resumesFor = 45 * time.Second // how long to wait for a client that has come back with event ids before
	mostGaps   = 64               // how many calls are remembered that a client may have lost
)

// TestLost checks which calls a client that comes with nothing but its session has
// lost. The client's acts and the node's observations of them may come in any
// order, and any time apart, where the result is no guess.
func TestLost(t *testing.T) {
	const long = time.Hour
	for what, tc := range map[string]struct {
		do    func(sc *scene)
		given bool
		wait  bool          // whether Lost waits for the client to come back with an id
		old   time.Duration // how long the call is waited for, where the client has only connections that it had before
	}{
		"broke before an id": {given: true, do: func(sc *scene) {
			sc.call().Detach(true, false, false)
			sc.cameBack()
		}},
		"broke before an id, noticed late": {given: true, do: func(sc *scene) {
			r := sc.call()
			sc.cameBack()
			r.Detach(true, false, false)
		}},
		"broke after an id": {given: true, wait: true, do: func(sc *scene) {
			sc.call().Detach(true, true, false)
			sc.cameBack()
		}},
		"broke after an id, noticed late": {given: true, wait: true, do: func(sc *scene) {
			r := sc.call()
			time.Sleep(long)
			sc.cameBack()
			time.Sleep(long)
			r.Detach(true, true, false)
		}},
		"broke before an id, and not asked for": {given: true, do: func(sc *scene) {
			sc.call().Detach(true, false, false)
		}},
		"broke after an id, asked before it began": {old: awayFor, do: func(sc *scene) {
			sc.cameBack()
			sc.call().Detach(true, true, false)
		}},
		"broke after an id, and not asked for": {old: awayFor, do: func(sc *scene) {
			sc.call().Detach(true, true, false)
		}},
		"broke after an id, and the client knows ids": {old: resumesFor, do: func(sc *scene) {
			sc.s.CameBack(1<<40, nil)
			sc.call().Detach(true, true, false)
		}},
		"broke after a message, and not asked for": {old: awayFor, do: func(sc *scene) {
			r := sc.call()
			sc.desk.last().say(sc.s.CallAt(r.Cursor().Stream.Number), `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
			if got, err := r.Next(sc.t.Context(), make([]stream.Entry, 0, 2)); len(got) != 1 {
				sc.t.Fatal(got, err)
			}
			r.Delivered()
			r.Detach(true, true, false)
		}},
		"broke after a ping": {old: awayFor, do: func(sc *scene) {
			sc.pinged().Detach(true, true, false)
		}},
		"broke after a ping that was answered": {old: awayFor, do: func(sc *scene) {
			r := sc.pinged()
			sc.pong(r)
			r.Detach(true, true, false)
		}},
		"broke after a ping that was answered late": {old: awayFor, do: func(sc *scene) {
			r := sc.pinged()
			r.Detach(true, true, false)
			sc.pong(r)
		}},
		"ended on a node that is lost": {do: func(sc *scene) {
			sc.s.streams.Restored(1, true)
		}},
		"given up, and overtaken": {given: true, do: func(sc *scene) {
			sc.cameBack()
			sc.call().Detach(true, false, false)
		}},
		"given up, long after": {given: true, do: func(sc *scene) {
			sc.cameBack()
			time.Sleep(long)
			sc.call().Detach(true, false, false)
		}},
		"read again": {do: func(sc *scene) {
			r := sc.call()
			r.Detach(true, false, false)
			sc.cameBack()
			attach(sc.t, sc.s, r.Cursor().Stream.Number).Detach(false, true, false)
		}},
		"read besides": {given: true, do: func(sc *scene) { sc.call().Detach(true, false, true) }},
		"all written": {do: func(sc *scene) {
			whole(sc.call(), client)
			sc.cameBack()
		}},
		"all written, and reset": {given: true, wait: true, do: func(sc *scene) {
			whole(sc.call(), client)
			sc.s.streams.Disconnected(client, time.Time{})
			sc.cameBack()
		}},
		"all written, and reset late": {given: true, wait: true, do: func(sc *scene) {
			whole(sc.call(), client)
			sc.cameBack()
			sc.s.streams.Disconnected(client, time.Time{})
		}},
		"all written, and another reset": {do: func(sc *scene) {
			whole(sc.call(), client)
			sc.cameBack()
			sc.s.streams.Disconnected(client+"0", time.Time{})
		}},
		"all written, and left later": {do: func(sc *scene) {
			whole(sc.call(), client)
			sc.cameBack()
			sc.s.streams.Disconnected(client, time.Now())
		}},
		"all written, just after the client came": {given: true, wait: true, do: func(sc *scene) {
			r := sc.call()
			sc.cameBack()
			whole(r, client)
			sc.s.streams.Disconnected(client, time.Time{})
		}},
		"all written, some seconds after the client came": {given: true, wait: true, do: func(sc *scene) {
			r := sc.call()
			time.Sleep(long)
			sc.cameBack()
			time.Sleep(4 * time.Second)
			whole(r, client)
			sc.s.streams.Disconnected(client, time.Time{})
		}},
		"all written, long after the client came": {do: func(sc *scene) {
			r := sc.call()
			time.Sleep(long)
			sc.cameBack()
			time.Sleep(long)
			whole(r, client)
			sc.s.streams.Disconnected(client, time.Time{})
		}},
		"all written, noted long after, and the client came meanwhile": {given: true, wait: true, do: func(sc *scene) {
			r := sc.call()
			time.Sleep(long)
			wrote := time.Now()
			sc.cameBack()
			time.Sleep(long)
			wholeAt(r, client, wrote)
			sc.s.streams.Disconnected(client, time.Time{})
		}},
		"all written, and another request": {do: func(sc *scene) {
			whole(sc.call(), client)
			sc.s.streams.ConfirmArrival(client)
			sc.s.streams.Disconnected(client, time.Time{})
			sc.cameBack()
		}},
		"all written to who had lost it before": {given: true, wait: true, do: func(sc *scene) {
			whole(sc.call(), "")
			sc.cameBack()
		}},
		"all written, long ago": {do: func(sc *scene) {
			whole(sc.call(), "")
			time.Sleep(long)
			sc.cameBack()
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sc := newScene(t)
				sc.aside.LostChanged()
				tc.do(sc)
				if at, due := sc.s.streams.Lost(t.Context(), long); tc.given && !tc.wait && len(at) != 1 || tc.wait && (len(at) > 0 || due.IsZero()) {
					t.Errorf("at first %v, and at %v", at, due)
				}
				at, due := sc.s.streams.Lost(t.Context(), 0)
				if len(at) == 1 != tc.given || due.IsZero() != (tc.old == 0) {
					t.Errorf("got %v, and at %v", at, due)
				}
				if tc.old == 0 {
					return
				}
				time.Sleep(tc.old - time.Second)
				if at, due := sc.s.streams.Lost(t.Context(), 0); len(at) != 0 || due.IsZero() {
					t.Errorf("a second before %v: got %v, and at %v", tc.old, at, due)
				}
				time.Sleep(time.Second)
				if at, due := sc.s.streams.Lost(t.Context(), 0); len(at) != 1 || !due.IsZero() {
					t.Errorf("after %v: got %v, and at %v", tc.old, at, due)
				}
			})
		})
	}
}

// TestLostIsSaid checks that the reader of the standalone stream, which may have to
// continue a call, is told when a call is lost, also when the loss is noticed late.
func TestLostIsSaid(t *testing.T) {
	sc := newScene(t)
	for what, lose := range map[string]func(*reading.Reader){
		"broken":  func(r *reading.Reader) { r.Detach(true, true, false) },
		"written": func(r *reading.Reader) { whole(r, client) },
		"light": func(r *reading.Reader) {
			begin(t, sc.s, true, request(1000)).ConnectionLost()
			r.Detach(false, true, false)
		},
	} {
		lose(sc.call())
		if !sc.aside.LostChanged() {
			t.Errorf("%s: not said", what)
		}
		if sc.aside.LostChanged() {
			t.Errorf("%s: said twice", what)
		}
	}
	sc.s.streams.Disconnected(client, time.Time{})
	if !sc.aside.LostChanged() {
		t.Error("reset: not said")
	}
}

// TestLostForgotten loses more calls of a client than are remembered. A call that
// is lost for certain is remembered longer than one that has probably arrived.
func TestLostForgotten(t *testing.T) {
	t.Parallel()
	sc := newScene(t)
	lost := sc.call()
	lost.Detach(true, false, false)
	for i := range 2 * mostGaps {
		whole(sc.call(), fmt.Sprint(i))
	}
	sc.cameBack()
	at, _ := sc.s.streams.Lost(t.Context(), 0)
	if len(at) != 1 || at[0].Stream.Number != lost.Cursor().Stream.Number {
		t.Errorf("got %v", at)
	}
	for range mostGaps {
		sc.call().Detach(true, false, false)
	}
	at, _ = sc.s.streams.Lost(t.Context(), 0)
	if len(at) != mostGaps || at[0].Stream.Number == lost.Cursor().Stream.Number {
		t.Errorf("%d are remembered, from %v", len(at), at[0])
	}
}

// TestLostOfNode looks at a client to which a node has written a message. The client has the message for
// certain if it asks for the messages after that one itself, but not if a node goes on reading for it.
func TestLostOfNode(t *testing.T) {
	t.Parallel()
	for what, asks := range map[string]bool{"the client goes on": true, "the node goes on": false} {
		t.Run(what, func(t *testing.T) {
			sc := newScene(t)
			before := sc.pinged()
			defer before.Detach(false, true, false) // its connection ends; the closing session waits for that
			number := before.Cursor().Stream.Number
			kind, want := reading.GoesOn, uint64(0)
			if asks {
				kind, want = reading.Says, 1
			}
			r, err := sc.s.streams.Read(t.Context(), kind, stream.Cursor{Stream: stream.ID{Number: number}, Seq: 1}, make(chan struct{}, 1))
			if err != nil {
				t.Fatal(err)
			}
			r.Detach(true, true, false)
			sc.cameBack()
			if at, _ := sc.s.streams.Lost(t.Context(), 0); len(at) != 1 || at[0].Seq != want {
				t.Errorf("continued at %v, want %d", at, want)
			}
		})
	}
}
