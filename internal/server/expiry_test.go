package server_test

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/testlong"
)

// TestExpiry has sessions with a short time to live: the idle one ends, and those with a reader
// or a call in flight do not.
func TestExpiry(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	var n *node
	var idle, calling *peer
	var get *wire
	var ev sse.Event
	for {
		n = newNode(t, config{session: session.Options{TTL: ttl}})
		began := time.Now()
		var all [3]*peer
		var failed error
		for i := range all {
			var err error
			all[i], err = n.begin("2025-11-25", nil)
			failed = errors.Join(failed, err)
		}
		if failed == nil {
			idle, calling = all[0], all[1]
			get = all[2].open("GET", "/mcp", "")
			w := calling.open("POST", "/mcp", call("hold", `{}`)) // its client leaves then
			if get.head().StatusCode == http.StatusOK && w.head().StatusCode == http.StatusOK {
				ev, failed = w.next()
				w.c.Close()
			}
		}
		if time.Since(began) < ttl/2 { // else a busy machine took longer than idle sessions live
			if failed != nil {
				t.Fatal(failed)
			}
			break
		}
	}
	held := n.release(1)
	mcptest.Eventually(t, "the idle session to end", time.Minute, func() bool { return n.sessions.Sessions() == 2 })
	if r := idle.post(call("echo", `{}`)); r.status != 404 {
		t.Errorf("an expired session answers %d", r.status)
	}
	// The other sessions outlive the idle one by far.
	pass(t, 2*ttl)
	if n.sessions.Sessions() != 2 {
		t.Fatal("a busy session was counted as idle")
	}
	held[0].Result(result("kept"))
	if ev := calling.open("GET", "/mcp", "", "Last-Event-ID: "+ev.ID).message(); !strings.Contains(string(ev.Data), "kept") {
		t.Errorf("got %s", ev.Data)
	}
	get.c.Close()
	mcptest.Eventually(t, "all sessions to end", time.Minute, func() bool { return n.sessions.Sessions() == 0 })
}

// TestChurn is failure 12: sessions are opened, used once and left. The store is empty
// afterwards, and the goroutines have ended.
func TestChurn(t *testing.T) {
	ttl, each := testlong.Either(time.Second, 2*time.Second), testlong.Either(25, 100)
	n := newNode(t, config{
		session: session.Options{TTL: ttl},
		memory:  memory.Options{Keep: 50 * time.Millisecond},
	})
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range each {
				began := time.Now()
				p, err := n.begin("2025-11-25", nil)
				if err != nil && time.Since(began) >= ttl {
					continue // a busy machine took longer to use the session than it lives
				}
				if err != nil {
					t.Error(err)
					return
				}
				r := p.post(call("steps", `{"n":1}`))
				if r.status == http.StatusNotFound && time.Since(began) >= ttl {
					continue // here too
				}
				if r.status != 200 {
					t.Errorf("got %d %s", r.status, r.body)
					return
				}
			}
		}()
	}
	wg.Wait()
	mcptest.Eventually(t, "sessions to end", time.Minute, func() bool { return n.sessions.Sessions() == 0 })
	mcptest.Eventually(t, "what they kept to go", time.Minute, func() bool { return n.store.Bytes() == 0 })
	mcptest.Eventually(t, "goroutines to end", time.Minute, func() bool { return runtime.NumGoroutine() <= before+2 })
}

// TestGoroutines counts goroutines: an idle session with a GET stream has the two of its
// connection, and a call without a connected client has none.
func TestGoroutines(t *testing.T) {
	n := newNode(t, config{})
	const many = 50
	var peers []*peer
	for range many {
		peers = append(peers, n.connect("2025-11-25", nil))
	}
	settled := func(want int) {
		t.Helper()
		got := 0
		defer func() {
			if t.Failed() {
				t.Logf("%d goroutines, want %d", got, want)
			}
		}()
		mcptest.Eventually(t, "goroutines to settle", time.Minute, func() bool { got = runtime.NumGoroutine(); return got <= want })
	}
	mcptest.Eventually(t, "connections to end", time.Minute, func() bool { return n.sessions.Readers() == 0 })
	runtime.GC()
	base := runtime.NumGoroutine()
	for _, p := range peers {
		p.open("GET", "/mcp", "").head()
	}
	settled(base + 2*many)
	var calls []*wire
	for _, p := range peers {
		w := p.open("POST", "/mcp", call("hold", `{}`))
		w.head()
		calls = append(calls, w)
	}
	n.release(many)
	for _, w := range calls {
		w.c.Close()
	}
	mcptest.Eventually(t, "call connections to end", time.Minute, func() bool { return n.sessions.Readers() == many })
	settled(base + 2*many)
}

// TestDrain drains a node: it ends quiet streams with a retry field, waits for calls in flight,
// and refuses new calls.
func TestDrain(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
	p := n.connect("2025-11-25", nil)
	get := p.open("GET", "/mcp", "")
	get.head()
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.head()
	held := n.release(1)
	drained := make(chan error)
	go func() { drained <- n.Drain(context.Background()) }()
	away := get.all()
	if events := (reply{body: away.body}).events(); !away.whole || events[len(events)-1].Retry < 20*time.Millisecond {
		t.Errorf("the quiet stream ended with %q", away.body)
	}
	if r := p.post(callAs("8", "echo", `{}`)); r.status != 503 || r.header.Get("Retry-After") == "" {
		t.Errorf("a call while draining: %d %s", r.status, r.body)
	}
	select {
	case err := <-drained:
		t.Fatalf("drained (%v) with a call in flight", err)
	default:
	}
	held[0].Result(result("in time"))
	if ev := w.message(); !strings.Contains(string(ev.Data), "in time") {
		t.Errorf("got %s", ev.Data)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}

	n = newNode(t, config{})
	p = n.connect("2025-11-25", nil)
	p.open("POST", "/mcp", call("hold", `{}`)).head()
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	if err := n.Drain(ctx); err == nil {
		t.Error("drained with a call in flight")
	}
}

// TestDrainContinued drains a node while a client listens on a connection that has continued a
// call, which has ended: the stream is ended.
func TestDrainContinued(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
	p := n.connect("2025-06-18", nil)
	p.open("POST", "/mcp", call("hold", `{}`)).atMost(0, rst)
	held := n.release(1)
	n.sessionsQuiet()
	w := p.open("GET", "/mcp", "")
	w.head()
	mcptest.Eventually(t, "the call to be continued", time.Minute, func() bool { return n.sessions.Readers() == 2 })
	held[0].Result(result("late"))
	if ev := w.message(); !strings.Contains(string(ev.Data), "late") {
		t.Errorf("got %s", ev.Data)
	}
	mcptest.Eventually(t, "the call to be let go of", time.Minute, func() bool { return n.sessions.Readers() == 1 })
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := n.Drain(ctx); err != nil {
		t.Error(err)
	}
	if r := w.all(); !r.whole {
		t.Errorf("the listener was not sent away: %q", r.body)
	}
}

// TestClosedSession deletes a session: its call in flight gets an answer, and its streams end.
func TestClosedSession(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	get := p.open("GET", "/mcp", "")
	get.head()
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.head()
	n.release(1)
	n.end(p)
	if ev := w.message(); !strings.Contains(string(ev.Data), "outcome unknown") {
		t.Errorf("got %s", ev.Data)
	}
	w.all()
	get.all()
	for _, method := range []string{"GET", "DELETE"} {
		if r := p.open(method, "/mcp", "").all(); r.status != 404 {
			t.Errorf("%s after DELETE: %d", method, r.status)
		}
	}
}
