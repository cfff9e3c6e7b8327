package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/feature/webhook"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// newDoors starts two workers and two doors, which know each other.
func newDoors(t *testing.T) (f *farm, doors []*farmNode) {
	t.Helper()
	f = newFarm(t, 2, config{server: server.Options{Role: server.RoleWorker}})
	for range 2 {
		doors = append(doors, f.start(config{server: server.Options{Role: server.RoleDoor}}))
	}
	for _, door := range doors {
		door.meets(2)
	}
	return f, doors
}

// wantNothing checks that the doors own no sessions.
func wantNothing(t *testing.T, doors []*farmNode) {
	t.Helper()
	for i, d := range doors {
		if n := d.sessions.Sessions(); n != 0 {
			t.Errorf("door %d has %d sessions", i, n)
		}
	}
}

// TestDoorsPost has clients of Streamable HTTP at doors: light calls, a call with a stream that
// is resumed at another door when its door is lost, and DELETE.
func TestDoorsPost(t *testing.T) {
	t.Parallel()
	f, doors := newDoors(t)
	p := doors[0].connect("2025-11-25", nil)
	for i, d := range doors {
		if r := p.at(d).post(callAs(fmt.Sprint(i), "echo", `{"text":"quick"}`)); r.status != 200 || !strings.Contains(string(r.body), "quick") {
			t.Errorf("light call at door %d: %d %s", i, r.status, r.body)
		}
	}
	w := p.at(doors[0]).open("POST", "/mcp", call("hold", `{"key":"unsafe"}`))
	first, err := w.next()
	if err != nil {
		t.Fatal(err)
	}
	mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return f.runs("unsafe") == 1 })
	doors[0].kill()
	w = p.at(doors[1]).open("GET", "/mcp", "", "Last-Event-ID: "+first.ID)
	if w.head().StatusCode != http.StatusOK {
		t.Fatalf("resumed at another door: %d", w.head().StatusCode)
	}
	for _, n := range f.nodes[:2] {
		if n.runs("unsafe") == 1 {
			n.release(1)[0].Result([]byte(`{"content":[{"type":"text","text":"held"}]}`))
		}
	}
	if text := w.rest(); !strings.Contains(text, "held") || f.runs("unsafe") != 1 {
		t.Errorf("the call ends with %q after %d runs", text, f.runs("unsafe"))
	}
	if r := p.at(doors[1]).open("DELETE", "/mcp", "").all(); r.status != http.StatusNoContent {
		t.Errorf("DELETE: %d %s", r.status, r.body)
	}
	wantNothing(t, doors[1:])
}

// TestDoorsConnections has clients of the pair of 2024-11-05 and of WebSockets at doors.
func TestDoorsConnections(t *testing.T) {
	t.Parallel()
	_, doors := newDoors(t)
	c := doors[0].pair(nil)
	c.initialize()
	for i, d := range doors {
		text := fmt.Sprint("said at door ", i)
		c.p = c.p.at(d)
		c.send(callAs(fmt.Sprintf("%q", text), "echo", fmt.Sprintf(`{"text":%q}`, text)))
		c.wants(text)
	}
	socket, _, err := doors[1].dialSocket(0, me)
	if err != nil {
		t.Fatal(err)
	}
	socket.begin("2025-11-25", resumes)
	socket.say(callAs("1", "echo", `{"text":"new session"}`))
	tells(socket, "new session")
	p := doors[0].able("2025-11-25", "me")
	if socket, _, err = doors[1].dialSocket(0, me, "Mcp-Session-Id: "+p.id); err != nil {
		t.Fatal(err)
	}
	socket.say(callAs("1", "echo", `{"text":"old session"}`))
	tells(socket, "old session")
	wantNothing(t, doors)

	joined, _, err := doors[1].dialSocket(0, me)
	if err != nil {
		t.Fatal(err)
	}
	joined.begin("2025-11-25", resumes)
	doors[1].Close()
	joined.ended(1001, "going away")
}

// tells waits for an answer. The resume policy of a long call may come first.
func tells(c *talker, text string) {
	c.t.Helper()
	for {
		switch m := c.message(); {
		case strings.Contains(string(m.Raw), text):
			return
		case m.Method != "notifications/requests/resumePolicy":
			c.t.Fatalf("%s, want %s", m.Raw, text)
		}
	}
}

// TestDoorsModern sends requests of revision 2026-07-28 to doors: calls, with and without an
// idempotency key, a question that is answered at another door, and a listen.
func TestDoorsModern(t *testing.T) {
	t.Parallel()
	f, doors := newDoors(t)
	at, other := &peer{n: doors[0].node}, &peer{n: doors[1].node}
	for i, p := range []*peer{at, other, at.under("key"), other.under("key")} {
		key := fmt.Sprint("k", min(i, 2))
		if r := p.callModern("steps", fmt.Sprintf(`{"key":%q}`, key)).all(); r.status != 200 || !strings.Contains(r.response(), `"done"`) || f.runs(key) != 1 {
			t.Errorf("call %d: %d %s, %d runs", i, r.status, r.body, f.runs(key))
		}
	}
	asked := at.callModern("ask", `{}`).all()
	result := jsonrpc.Field([]byte(asked.response()), "result")
	retry := answering(result, jsonrpc.String(jsonrpc.Field(result, "requestState")))
	if r := other.modern("tools/call", "ask", `{"name":"ask","arguments":{},`+retry+`}`, `{"elicitation":{}}`); !strings.Contains(r.response(), "accept") {
		t.Errorf("asked %s, and then: %d %s", asked.body, r.status, r.body)
	}
	w := at.modernOpen("subscriptions/listen", "", `{"notifications":{"toolsListChanged":true}}`, `{}`)
	if w.message(); w.head().StatusCode != http.StatusOK {
		t.Errorf("listen: %d", w.head().StatusCode)
	}
	wantNothing(t, doors)
}

// TestDoorsAlone has clients at a door without a worker, and at a worker: both answer 503 with
// Retry-After. The door serves once it has a worker.
func TestDoorsAlone(t *testing.T) {
	testlong.Only(t, "a door waits a while for workers, and for one to be lost")
	t.Parallel()
	f := newFarm(t, 1, config{server: server.Options{Role: server.RoleDoor}})
	door := f.nodes[0]
	astray := &peer{n: door.node}
	for what, r := range map[string]reply{
		"legacy": astray.open("POST", "/mcp", initialize).all(),
		"modern": astray.callModern("steps", `{"key":"k"}`).all(),
		"pair":   astray.open("GET", "/sse", "").all(),
	} {
		if r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" || !strings.Contains(string(r.body), "no worker") {
			t.Errorf("%s: %d %v %s", what, r.status, r.header, r.body)
		}
	}
	worker := f.start(config{server: server.Options{Role: server.RoleWorker}})
	for _, path := range []string{"/mcp", "/sse"} {
		r := (&peer{n: worker.node}).open("GET", path, "").all()
		if r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" || !strings.Contains(string(r.body), "door") {
			t.Errorf("%s at a worker: %d %v %s", path, r.status, r.header, r.body)
		}
	}
	door.meets(1)
	p := door.connect("2025-11-25", nil)
	if r := p.post(callAs("1", "echo", `{"text":"quick"}`)); !strings.Contains(string(r.body), "quick") {
		t.Errorf("%d %s", r.status, r.body)
	}
	worker.kill()
	mcptest.Eventually(t, "the worker to be gone", time.Minute, func() bool { return len(door.member.Peers()) == 0 })
	if r := p.post(callAs("2", "echo", `{"text":"x"}`)); r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
		t.Errorf("after its worker was lost: %d %v %s", r.status, r.header, r.body)
	}
	other := f.start(config{server: server.Options{Role: server.RoleWorker}})
	door.meets(1)
	if r := p.post(callAs("3", "echo", `{"text":"taken over"}`)); !strings.Contains(string(r.body), "taken over") || other.sessions.Sessions() != 1 {
		t.Errorf("with another worker: %d %s", r.status, r.body)
	}
	wantNothing(t, f.nodes[:1])
}

// TestDoorToldLost loses the worker of a call with a webhook, of revision 2026-07-28 and of a tool that may be called again: another worker
// takes the call over, and makes it again. The door does not make it a third time, as the webhook would get a message for each.
func TestDoorToldLost(t *testing.T) {
	testlong.Only(t, "the webhook waits for a client that comes back")
	t.Parallel()
	var told atomic.Int32
	safe := func(tool string) bool { return tool == "safe_hold" }
	worker := config{server: server.Options{Role: server.RoleWorker}, silence: time.Second}
	worker.session = session.Options{Safe: safe, OnEnded: func(webhook.Ended) bool { told.Add(1); return true }}
	door := worker
	door.server.Role = server.RoleDoor
	f := newFarm(t, 2, worker)
	at := f.start(door)
	mcptest.Eventually(t, "the door to know the workers", time.Minute, func() bool { return len(at.member.Peers()) == 2 })
	w := (&peer{n: at.node}).modernOpen("tools/call", "safe_hold", `{"name":"safe_hold","arguments":{"key":"k"}}`, `{},"holdfast/webhook":{"url":"https://h"}`)
	mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return f.runs("k") == 1 })
	lost, other := f.nodes[0], f.nodes[1]
	if other.runs("k") == 1 {
		lost, other = other, lost
	}
	lost.kill()
	answered := make(chan reply)
	go func() { answered <- w.all() }()
	var r *reply
	mcptest.Eventually(t, "an answer and a webhook", time.Minute, func() bool {
		other.script.mu.Lock()
		held := other.script.held
		other.script.held = nil
		other.script.mu.Unlock()
		for _, x := range held {
			x.Result([]byte(`{"content":[]}`))
		}
		select {
		case got := <-answered:
			r = &got
		default:
		}
		return r != nil && told.Load() > 0
	})
	if !strings.Contains(r.response(), fmt.Sprint(codeUnknown)) {
		t.Errorf("%d %s", r.status, r.body)
	}
	if runs := f.runs("k"); runs != 2 || told.Load() != 1 {
		t.Errorf("it ran %d times; the webhook was told %d times", runs, told.Load())
	}
}
