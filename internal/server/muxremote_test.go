package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/jsonrpc"
)

// note makes the backend of p's session send a message that belongs to no call.
func (p *peer) note(text string) {
	p.n.t.Helper()
	p.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":%q}}`, text))
}

// elsewhere returns a farm, a client with a session at its first node, and a WebSocket
// of that client at the second.
func elsewhere(t *testing.T, c config, nodes int) (*farm, *peer, *talker) {
	t.Helper()
	f := newFarm(t, nodes, c)
	p := f.nodes[0].connect("2025-11-25", nil)
	p.post(listTools)
	d := openSocket(f.nodes[1].node, 0, "Mcp-Session-Id: "+p.id)
	if d.id != p.id {
		t.Errorf("attached to %q, and not to %q", d.id, p.id)
	}
	return f, p, d
}

// TestSocketElsewhere is a WebSocket at a node that does not own its session: requests in both
// directions are answered, and the session's other messages arrive.
func TestSocketElsewhere(t *testing.T) {
	t.Parallel()
	f, p, c := elsewhere(t, config{server: server.Options{UpgradeAfter: 50 * time.Millisecond, KeepAlive: time.Hour}}, 2)
	p.note("one")
	c.hears("one")
	c.say(callAs("1", "echo", `{"text":"light"}`))
	c.hears(`"id":1`, "light")
	c.say(callAs("2", "steps", `{"key":"k","n":3}`))
	for i := range 3 {
		c.hears(fmt.Sprintf(`"progress":%d,`, i+1))
	}
	c.hears(`"id":2`, "done")
	c.say(callAs("3", "ask", `{}`))
	var question struct{ ID json.RawMessage }
	if err := json.Unmarshal(c.hears("elicitation/create"), &question); err != nil {
		t.Fatal(err)
	}
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, question.ID))
	c.hears(`"id":3`, "accept")
	c.say(`{"jsonrpc":"2.0","id":4,"method":"nothing/here"}`)
	c.fails("4", jsonrpc.CodeMethodNotFound, "nothing/here")
	c.say(`{"jsonrpc":"2.0","id":5,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	c.fails("5", codeInvalid, "initialized already")
	c.say(`[{"jsonrpc":"2.0","id":6,"method":"ping"}]`)
	c.fails("6", codeInvalid, "has no batches")
	c.say(callAs("7", "hold", `{}`), callAs("7", "echo", `{}`))
	c.fails("7", codeInvalid, "use an id once")
	f.nodes[0].release(1)[0].Result(result("held"))
	c.hears(`"id":7`, "held")
	if f.runs("k") != 1 {
		t.Errorf("the tool ran %d times", f.runs("k"))
	}
	f.nodes[0].end(p)
	c.ended(websocket.StatusNormalClosure, "the session ended")
}

// TestSocketElsewhereOrder has a client that sends a cancellation after each of many calls,
// without waiting: no cancellation overtakes its call.
func TestSocketElsewhereOrder(t *testing.T) {
	t.Parallel()
	f, _, c := elsewhere(t, config{server: server.Options{UpgradeAfter: time.Minute}}, 2)
	for i := range 40 {
		tool := []string{"hold", "safe_hold"}[i%2]
		c.say(callAs(fmt.Sprint(i), tool, `{"key":"k"}`),
			fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, i))
	}
	c.say(callAs(`"last"`, "echo", `{"text":"answered"}`))
	c.hears(`"last"`, "answered")
	mcptest.Eventually(t, "the calls to end", time.Minute, func() bool { return f.nodes[0].sessions.Calls() == 0 })
	if n := f.runs("k"); n != 40 {
		t.Errorf("%d calls ran", n)
	}
}

// TestSocketElsewhereOwnerLost kills the owner of the session of a WebSocket at another node. The
// connection goes on: a retry-safe call is made again, and each message arrives once.
func TestSocketElsewhereOwnerLost(t *testing.T) {
	t.Parallel()
	f, p, c := elsewhere(t, config{server: server.Options{UpgradeAfter: time.Minute}}, 3)
	p.note("one")
	c.hears("one")
	c.say(callAs("1", "safe_steps", `{"key":"k","n":20,"pause":50}`))
	c.hears(`"progress":1,`)
	f.nodes[0].kill()
	for next := 2; ; next++ {
		m := c.message()
		if m.Kind == jsonrpc.Response {
			if m.Error != nil || next != 21 {
				t.Errorf("before step %d: %s", next, m.Raw)
			}
			break
		}
		if !strings.Contains(string(m.Raw), fmt.Sprintf(`"progress":%d,`, next)) {
			t.Fatalf("got %s, want step %d", m.Raw, next)
		}
	}
	c.say(callAs("2", "echo", `{"text":"still served"}`))
	c.hears(`"id":2`, "still served")
	p = p.at(f.nodes[2])
	p.note("two")
	c.hears("two")
	p.open("DELETE", "/mcp", "").all()
	c.ended(websocket.StatusNormalClosure, "the session ended")
}

// TestSocketElsewhereAttached opens a WebSocket again at a node that does not own the session:
// messages of no call arrive once, after the client's event id, or after the last message
// written; until another connection supersedes it.
func TestSocketElsewhereAttached(t *testing.T) {
	t.Parallel()
	f, p, c := elsewhere(t, config{server: server.Options{KeepAlive: 4 * time.Second}}, 2)
	p.note("one")
	c.hears("one")
	c.cut(fin)
	mcptest.Eventually(t, "the reading to end", time.Minute, func() bool { return f.nodes[0].sessions.Readers() == 0 })
	p.note("two")
	d := openSocket(f.nodes[1].node, 0, "Mcp-Session-Id: "+p.id)
	d.reads()
	d.hears("two")
	get := p.open("GET", "/mcp", "")
	first, err := get.next()
	if err != nil {
		t.Fatal(err)
	}
	p.note("three")
	if ev := get.message(); !strings.Contains(string(ev.Data), "three") {
		t.Errorf("got %s", ev.Data)
	}
	get.c.Close()
	d.say(callAs("1", "echo", `{"text":"still here"}`))
	d.hears("still here")
	again := openSocket(f.nodes[1].node, 0, "Mcp-Session-Id: "+p.id, "Last-Event-ID: "+first.ID)
	again.reads()
	again.hears("three")
	w := p.open("POST", "/mcp", call("hold", `{}`))
	of, err := w.next()
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(first.ID, ".")
	for _, id := range []string{of.ID, name + ".!.!", "nonsense"} {
		if _, res, err := f.nodes[1].dialSocket(0, "Mcp-Session-Id: "+p.id, "Last-Event-ID: "+id); err == nil || res.StatusCode != http.StatusBadRequest {
			t.Errorf("after %s: %v", id, err)
		}
	}
	if _, res, err := f.nodes[1].dialSocket(0, "Mcp-Session-Id: "+p.id+"x"); err == nil || res.StatusCode != http.StatusNotFound {
		t.Errorf("no session: %v", err)
	}
	f.nodes[0].end(p)
	again.ended(websocket.StatusNormalClosure, "the session ended")
	d.ended(websocket.StatusNormalClosure, "the session ended")
}

// TestSocketElsewhereDrained drains the owner of the session of a WebSocket at another node: the
// WebSocket goes on. Then it drains the WebSocket's node, which closes it with "going away".
func TestSocketElsewhereDrained(t *testing.T) {
	t.Parallel()
	f, p, c := elsewhere(t, config{}, 3)
	c.say(callAs("1", "echo", `{"text":"before"}`))
	c.hears("before")
	if err := f.nodes[0].drain(30 * time.Second); err != nil {
		t.Errorf("drain: %v", err)
	}
	f.nodes[0].close()
	c.say(callAs("2", "echo", `{"text":"after"}`))
	c.hears("after")
	p.at(f.nodes[2]).note("one")
	c.hears("one")
	go func() { _ = f.nodes[1].drain(time.Second) }()
	c.ended(websocket.StatusGoingAway, "going away")
}
