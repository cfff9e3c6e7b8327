package client_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"holdfast/client"
	"holdfast/jsonrpc"
)

// A busy server refuses some handshakes of a WebSocket with 429.
type busy struct {
	refuses func(n int32) bool // whether the nth handshake is refused
	after   string             // the Retry-After header
	dials   atomic.Int32       // all handshakes
	next    http.Handler
}

func (b *busy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !b.refuses(b.dials.Add(1)) {
		b.next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Retry-After", b.after)
	w.WriteHeader(http.StatusTooManyRequests)
}

// A server that takes no more WebSockets for now is tried again when it says, for as long as over
// HTTP. A request that was not sent does not get "outcome unknown".
func TestWebSocketBusy(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		times int32 // how many handshakes it refuses
		after string
		want  string // the error of initialize; "": it succeeds
		dials int32
		took  time.Duration // the least time that it takes
	}{
		{"once", 1, "3", "", 2, 3 * time.Second},
		{"for longer than a server that is not there", 4, "4", "", 5, 16 * time.Second},
		{"once, for long", 1, "25", "", 2, 25 * time.Second},
		{"always", 100, "4", "the server has been out of reach for 3", 9, 30 * time.Second},
		{"for ever", 100, "2000000000", "the server asks to come back in ", 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &busy{refuses: func(n int32) bool { return n <= test.times }, after: test.after}
				b.next = &sockets{t: t, say: func(*websocket.Conn, int32, jsonrpc.Message) bool { return true }}
				url, hc := serveInside(t, b)
				began := time.Now()
				r := newRaw(t, "ws"+strings.TrimPrefix(url, "http"), client.Options{HTTPClient: hc})
				e := r.tryOpen()
				if took := time.Since(began); took < test.took || took > test.took+10*time.Second {
					t.Errorf("it took %v, want %v or a little more", took, test.took)
				}
				if n := b.dials.Load(); n != test.dials {
					t.Errorf("%d handshakes, want %d", n, test.dials)
				}
				switch {
				case e == nil && test.want != "", e != nil && (test.want == "" || !strings.HasPrefix(e.Message, test.want)):
					t.Errorf("got %v, want %q", e, test.want)
				}
			})
		})
	}
}

// A call over a WebSocket that was cut waits until the busy server takes it.
func TestWebSocketBusyAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		b := &busy{refuses: func(n int32) bool { return n > 1 && n <= 4 }, after: "10"}
		b.next = &sockets{t: t, say: func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool {
			if m.Method != "tools/call" {
				return true
			}
			if n == 1 {
				return false
			}
			runs.Add(1)
			utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
			return true
		}}
		url, hc := serveInside(t, b)
		r := newRaw(t, "ws"+strings.TrimPrefix(url, "http"), client.Options{HTTPClient: hc})
		r.open()
		began := time.Now()
		r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
		if m := r.answer("1"); m.Error != nil {
			t.Errorf("%s", m.Raw)
		}
		if took := time.Since(began); took < 30*time.Second || took > 40*time.Second {
			t.Errorf("it took %v", took)
		}
		if n := runs.Load(); n != 1 || b.dials.Load() != 5 {
			t.Errorf("%d runs, %d handshakes", n, b.dials.Load())
		}
	})
}

// The wait for a busy server ends with its context, or with the client.
func TestWebSocketBusyClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &busy{refuses: func(int32) bool { return true }, after: "20"}
		url, hc := serveInside(t, b)
		r := newRaw(t, "ws"+strings.TrimPrefix(url, "http"), client.Options{HTTPClient: hc})
		r.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`)
		synctest.Wait()
		began := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		if _, err := r.Status(ctx, client.CallState{Token: "t"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		_ = r.Close()
		if took := time.Since(began); took != 5*time.Second || b.dials.Load() != 1 {
			t.Errorf("it took %v, %d handshakes", took, b.dials.Load())
		}
	})
}

// When the client gives a busy server up, only a call that was sent has an unknown outcome.
func TestWebSocketBusyOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &busy{refuses: func(n int32) bool { return n > 1 }, after: "20"}
		b.next = &sockets{t: t, say: func(_ *websocket.Conn, _ int32, m jsonrpc.Message) bool {
			return m.Method != "tools/call"
		}}
		url, hc := serveInside(t, b)
		r := newRaw(t, "ws"+strings.TrimPrefix(url, "http"), client.Options{HTTPClient: hc, GiveUp: 30 * time.Second})
		r.open()
		r.send(`{"jsonrpc":"2.0","id":"sent","method":"tools/call","params":{"name":"x"}}`)
		for b.dials.Load() < 2 {
			time.Sleep(time.Second) // a second of the bubble
		}
		r.send(`{"jsonrpc":"2.0","id":"unsent","method":"tools/call","params":{"name":"x"}}`)
		for range 2 {
			m := r.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Response })
			e := errorIn(t, m)
			if e == nil {
				t.Fatalf("%s", m.Raw)
			}
			if sent := jsonrpc.String(m.ID) == "sent"; strings.HasPrefix(e.Message, unknown) != sent || !strings.Contains(e.Message, "429") {
				t.Errorf("%s", m.Raw)
			}
		}
	})
}
