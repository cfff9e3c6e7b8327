package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
)

// plainFarm returns two nodes that answer with JSON.
func plainFarm(t *testing.T) *farm {
	t.Helper()
	return newFarm(t, 2, config{server: server.Options{Response: server.ResponseJSON, Retry: 10 * time.Millisecond}})
}

// TestPlain makes calls that are stored and answered with JSON, at the owner of their session and
// at another node.
func TestPlain(t *testing.T) {
	t.Parallel()
	f := plainFarm(t)
	a := f.nodes[0]
	for i, n := range f.nodes {
		p, old := a.connect("2025-11-25", nil).at(n), a.connect("2025-03-26", nil).at(n)
		one, two := fmt.Sprint("one", i), fmt.Sprint("two", i)
		quick := fmt.Sprintf(`{"key":%q}`, one)
		r := p.post(callAs("1", "steps", quick))
		if r.status != 200 || r.header.Get("Content-Type") != "application/json" || !strings.Contains(string(r.body), "done") || f.runs(one) != 1 {
			t.Errorf("node %d: %d %v %s, %d runs", i, r.status, r.header, r.body, f.runs(one))
		}
		// A client that can resume requests gets JSON, too.
		if r := a.able("2025-11-25", "").at(n).post(callAs("1", "steps", quick)); r.header.Get("Content-Type") != "application/json" {
			t.Errorf("node %d: who can resume is told %v %s", i, r.header, r.body)
		}
		batch := "[" + callAs("1", "steps", fmt.Sprintf(`{"key":%q}`, two)) + `,{"jsonrpc":"2.0","id":2,"method":"ping"}]`
		if r := old.post(batch); r.header.Get("Content-Type") != "application/json" || r.body[0] != '[' || strings.Count(string(r.body), `"jsonrpc"`) != 2 {
			t.Errorf("batch at node %d: %d %v %s", i, r.status, r.header, r.body)
		}
		// A call with more messages than its response has a stream, which can be resumed.
		fl := &follower{p: p, seen: map[string]bool{}}
		r = p.post(callAs("2", "steps", `{"key":"spoken","n":2}`))
		if err := fl.take(r); err != nil || fl.check(2) != nil || len(fl.seen) == 0 || fl.link == "" {
			t.Errorf("spoken at node %d: %v %v: %v %s", i, err, fl.check(2), r.header, r.body)
		}
		// A call with a connection that its server ends has a stream, too.
		w := p.open("POST", "/mcp", callAs("3", "hold", `{}`))
		held := a.release(1)[0]
		held.Call.Disconnect(7 * time.Millisecond)
		fl = &follower{p: p, seen: map[string]bool{}}
		if err := fl.take(w.all()); err != nil || fl.last == "" {
			t.Errorf("sent away at node %d: %v", i, err)
		}
		held.Result(result("later"))
		if err := fl.rest(fl.again()); err != nil {
			t.Errorf("sent away at node %d: %v", i, err)
		}
		// A call that its client cancels has no answer.
		w = p.open("POST", "/mcp", callAs("4", "hold", `{}`))
		a.release(1)
		p.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}`)
		if r := w.all(); r.status != http.StatusAccepted || len(r.body) > 0 {
			t.Errorf("cancelled at node %d: %d %s", i, r.status, r.body)
		}
		// A client that leaves can come back for its call with its session id alone.
		w = p.open("POST", "/mcp", callAs("5", "hold", `{}`))
		held = a.release(1)[0]
		w.c.Close()
		mcptest.Eventually(t, "the reader to be gone", time.Minute, func() bool { return a.sessions.Readers() == 0 })
		held.Result(result("kept"))
		w = p.open("GET", "/mcp", "")
		if ev := w.message(); !strings.Contains(string(ev.Data), "kept") {
			t.Errorf("come back at node %d: %s", i, ev.Data)
		}
		w.c.Close()
	}
}

// TestPlainLeft has a client at another node that leaves in the middle of a call, and waits on a
// GET stream that it opened before. It gets the answer there.
func TestPlainLeft(t *testing.T) {
	t.Parallel()
	f := plainFarm(t)
	a, b := f.nodes[0], f.nodes[1]
	p := a.connect("2025-11-25", nil).at(b)
	get := p.open("GET", "/mcp", "") // opened before the call, so that only the broken connection shows that the client has left
	mcptest.Eventually(t, "the GET stream to be there", time.Minute, func() bool { return a.sessions.Readers() == 1 })
	w := p.open("POST", "/mcp", callAs("1", "hold", `{}`))
	held := a.release(1)[0]
	w.c.Close()
	mcptest.Eventually(t, "the session's node to know", time.Minute, func() bool { return a.HasLeft(w.c.LocalAddr().String()) })
	s, err := a.sessions.Find(p.id, caller.Principal{})
	if err != nil {
		t.Fatal(err)
	}
	mcptest.Eventually(t, "the call to be stored", time.Minute, func() bool { return s.CallFrom("", []byte("1")).Number() != 0 })
	held.Result(result("kept"))
	if ev := get.message(); !strings.Contains(string(ev.Data), "kept") {
		t.Errorf("on the GET stream: %s", ev.Data)
	}
}

// TestPlainLightLeft does the same with a light call: its owner learns that the client has left,
// and stores the call's messages.
func TestPlainLightLeft(t *testing.T) {
	t.Parallel()
	f := plainFarm(t)
	a, b := f.nodes[0], f.nodes[1]
	p := a.connect("2025-11-25", nil).at(b)
	p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
	w := p.open("POST", "/mcp", callAs("1", "safe_hold", `{}`))
	held := a.release(1)[0]
	w.c.Close()
	mcptest.Eventually(t, "the session's node to know", time.Minute, func() bool { return a.HasLeft(w.c.LocalAddr().String()) })
	s, err := a.sessions.Find(p.id, caller.Principal{})
	if err != nil {
		t.Fatal(err)
	}
	mcptest.Eventually(t, "the call to be stored", time.Minute, func() bool { return s.CallFrom("", []byte("1")).Number() != 0 })
	held.Result(result("kept"))
	if ev := p.open("GET", "/mcp", "").message(); !strings.Contains(string(ev.Data), "kept") {
		t.Errorf("on the GET stream: %s", ev.Data)
	}
}

// TestPlainTaken has another node take over a session while a call runs for a client of the first
// node. The client gets "outcome unknown", as JSON.
func TestPlainTaken(t *testing.T) {
	t.Parallel()
	f := plainFarm(t)
	a, b := f.nodes[0], f.nodes[1]
	p := a.connect("2025-11-25", nil)
	w := p.open("POST", "/mcp", callAs("1", "hold", `{"key":"k"}`))
	held := a.release(1)[0]
	a.handle.Cut(true)
	mcptest.Eventually(t, "the other node to have the session", time.Minute, func() bool { return p.at(b).post(callAs("2", "echo", `{}`)).status == 200 })
	a.handle.Cut(false)
	r := w.all()
	if r.header.Get("Content-Type") != "application/json" || !strings.Contains(string(r.body), `"id":1`) ||
		!strings.Contains(string(r.body), nobodyKnows) || f.runs("k") != 1 {
		t.Errorf("%d %s, %d runs", r.status, r.body, f.runs("k"))
	}
	held.Result(result("too late"))
}

// TestPlainRoams has a call that is made again on a second and a third node, as each node before
// is lost: its tool becomes retry-safe meanwhile. The client, at the second node, gets one
// answer, as JSON.
func TestPlainRoams(t *testing.T) {
	t.Parallel()
	var safe atomic.Bool
	c := config{server: server.Options{Response: server.ResponseJSON}}
	c.session.Safe = func(tool string) bool { return tool == "hold" && safe.Load() }
	f := newFarm(t, 3, c)
	first, second, third := f.nodes[0], f.nodes[1], f.nodes[2]
	p := first.connect("2025-11-25", nil).at(second)
	w := p.open("POST", "/mcp", callAs("1", "hold", `{"key":"k"}`)) // the call is stored before it runs
	first.release(1)
	safe.Store(true) // from now on the operator says that the tool is retry-safe
	first.kill()
	late := second.release(1)[0]
	second.handle.Cut(true)
	mcptest.Eventually(t, "the third node to have the session", time.Minute, func() bool { return p.at(third).post(callAs("2", "echo", `{}`)).status == 200 })
	last := third.release(1)[0]
	second.handle.Cut(false)
	late.Result(result("too late"))
	mcptest.Eventually(t, "the second node to ask the third", time.Minute, func() bool { return third.sessions.Readers() > 0 })
	last.Result(result("at last"))
	if r := w.all(); r.status != 200 || r.header.Get("Content-Type") != "application/json" || !strings.Contains(string(r.body), "at last") || f.runs("k") != 3 {
		t.Errorf("%d %v %s, %d runs", r.status, r.header, r.body, f.runs("k"))
	}
}
