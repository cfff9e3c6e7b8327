package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/internal/observe"
	"holdfast/internal/server"
	"holdfast/internal/server/modernfront"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// modernAs returns a request of revision 2026-07-28 with an id, of a client with capabilities. params is a JSON object.
func modernAs(id, method, params, capabilities string) string {
	return `{"jsonrpc":"2.0","id":` + id + strings.TrimPrefix(modernBody(method, params, capabilities), `{"jsonrpc":"2.0","id":"c1"`)
}

// modernCall returns a tools/call of that revision.
func modernCall(id, tool, arguments string) string {
	return modernAs(id, "tools/call", toolCall(tool, arguments), `{"elicitation":{}}`)
}

// A connection that goes both ways serves revision 2026-07-28, without a session, beside older ones.
func TestDuplexModern(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{})
		c := open(n, 0)
		c.plain = true
		c.say(modernAs("1", "server/discover", `{}`, `{}`))
		c.hears(`"id":1`, "no server/discover") // the answer of the server
		c.say(modernCall(`"two"`, "echo", `{"text":"hello"}`))
		c.hears(`"id":"two"`, "hello")
		c.say(modernCall("3", "steps", `{"key":"k","n":3}`))
		for i := 1; i <= 3; i++ {
			c.hears("notifications/progress", fmt.Sprintf(`"progress":%d,`, i))
		}
		c.hears(`"id":3`, "done")
		large := strings.Repeat("x", 100_000)
		c.say(modernCall(`"large"`, "echo", `{"text":"`+large+`"}`))
		c.hears(`"id":"large"`, large)
		c.say(modernAs(`"é"`, "resources/read", `{"uri":"test:é\u2713"}`, `{}`)) // a header could not hold this URI unencoded
		c.fails(`"é"`, jsonrpc.CodeMethodNotFound, "resources/read")
		c.say(modernAs("4", "nothing/here", `{}`, `{}`))
		c.fails("4", jsonrpc.CodeMethodNotFound, "nothing/here")
		c.say(modernAs("5", "ping", `{}`, `{}`))
		c.fails("5", jsonrpc.CodeMethodNotFound, "has no method ping")
		c.say(strings.Replace(modernAs("6", "tools/list", `{}`, `{}`), "2026-07-28", "2030-01-01", 1))
		c.fails("6", -32022, "2030-01-01")
		c.say(strings.Replace(modernAs("7", "tools/list", `{}`, `{}`), "clientCapabilities", "x", 1))
		c.fails("7", codeParams, "clientCapabilities")
		c.say(`[` + modernAs("8", "tools/list", `{}`, `{}`) + `]`)
		c.fails("8", codeInvalid, "")

		c.begin("2025-11-25", "") // now both eras are on one connection
		c.say(callAs("9", "echo", `{"text":"older"}`), modernCall("10", "echo", `{"text":"newer"}`))
		got := string(c.hears(`"text":`)) + string(c.hears(`"text":`))
		for _, want := range []string{`"id":9`, "older", `"id":10`, "newer"} {
			if !strings.Contains(got, want) {
				t.Errorf("got %s, want %s", got, want)
			}
		}
	})
}

// An id in flight is refused for another request, also of the other era. A request is cancelled by its id, and gets
// no answer then.
func TestDuplexModernCancel(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{})
		c := open(n, 0)
		c.begin("2025-11-25", "")
		c.say(modernCall("1", "hold", `{}`))
		n.release(1)
		c.say(modernCall("1", "echo", `{}`))
		c.fails("1", codeInvalid, "in flight")
		c.say(callAs("1", "echo", `{}`))
		c.fails("1", codeInvalid, "in flight")
		c.say(callAs("2", "hold", `{}`))
		older := n.release(1)[0]
		c.say(modernCall("2", "echo", `{}`))
		c.fails("2", codeInvalid, "in flight")
		c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		mcptest.Eventually(t, "the call to be cancelled", time.Minute, func() bool { return n.sessions.Calls() == 1 })
		older.Result(result("older"))
		c.hears(`"id":2`, "older")
		mcptest.Eventually(t, "the id of the cancelled call to be free", time.Minute, func() bool {
			c.say(modernCall("1", "echo", `{"text":"again"}`))
			return strings.Contains(string(c.hears(`"id":1`)), "again")
		})
		for range 100 { // the id of an answered request is free at once
			c.say(modernCall("3", "echo", `{"text":"again"}`))
			c.hears(`"id":3`, "again")
		}
	})
}

// A call goes on when its connection is cut, if its client can resume it. A cancellation needs the call's id alone.
func TestDuplexModernResume(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{})
		begin := func(id string) (*talker, string) {
			c := open(n, 0)
			c.plain = true
			c.say(modernAs(id, "tools/call", `{"name":"hold","arguments":{}}`, comesBack))
			policy := c.hears("notifications/requests/resumePolicy")
			return c, jsonrpc.String(jsonrpc.Field(policy, "params", "resumeToken"))
		}
		c, token := begin("1")
		held := n.release(1)[0]
		held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1}`))
		first := jsonrpc.String(jsonrpc.Field(c.hears(`"progress":1`), "params", "_meta", "holdfast/eventId"))
		if first == "" {
			t.Error("a notification has no event id")
		}
		c.cut(fin)
		held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":2}`))
		c = open(n, 0)
		c.plain = true
		resume := modernAs("1", "requests/resume", fmt.Sprintf(`{"resumeToken":%q}`, token), comesBack)
		c.say(strings.Replace(resume, `"_meta":{`, fmt.Sprintf(`"_meta":{"holdfast/lastEventId":%q,`, first), 1))
		c.hears("notifications/requests/resumePolicy")
		c.hears(`"progress":2`)
		held.Result(result("whole"))
		c.hears(`"id":1`, "whole")

		c, _ = begin("2")
		n.release(1)
		c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
		mcptest.Eventually(t, "the call to be cancelled", time.Minute, func() bool { return n.sessions.Calls() == 0 })
	})
}

// A connection serves the revisions of Options.Eras; the client's messages choose among them.
func TestDuplexEras(t *testing.T) {
	t.Parallel()
	initialize := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`
	discover := modernAs("2", "server/discover", `{}`, `{}`)
	for _, c := range []struct {
		eras           modernfront.Eras
		legacy, modern string // texts in the answers
	}{
		{modernfront.ErasBoth, `"result"`, "no server/discover"}, // the answer of the server

		{modernfront.ErasLegacy, `"result"`, `-32022`},
		{modernfront.ErasAuto, `"result"`, `-32022`}, // else the client's calls would end with their connection
		{modernfront.ErasModern, `-32022`, "no server/discover"},
	} {
		bothWays(t, func(t *testing.T, open dialer) {
			n := newNode(t, config{server: server.Options{Eras: c.eras}})
			old, now := open(n, 0), open(n, 0)
			now.plain = true
			old.say(initialize)
			old.hears(`"id":1`, c.legacy)
			now.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			now.say(discover)
			now.hears(`"id":2`, c.modern)
		})
	}
	for eras, status := range map[modernfront.Eras]int{modernfront.ErasBoth: http.StatusSwitchingProtocols, modernfront.ErasLegacy: http.StatusBadRequest, modernfront.ErasModern: http.StatusSwitchingProtocols} {
		n := newNode(t, config{server: server.Options{Eras: eras}})
		_, res, _ := n.dialSocket(0, "MCP-Protocol-Version: 2026-07-28")
		if res == nil || res.StatusCode != status {
			t.Errorf("eras %v: a WebSocket of 2026-07-28: %v, want %d", eras, res, status)
		}
	}
}

// A listen is open until its client closes its half of the connection, and does not keep the connection open then.
func TestDuplexModernListen(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		tools := newToolbox()
		tools.tells = []string{`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`}
		n := newNode(t, config{backend: tools})
		c := open(n, 0)
		c.plain = true
		c.say(modernAs("7", "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`, `{}`))
		c.hears("notifications/subscriptions/acknowledged", `"io.modelcontextprotocol/subscriptionId":7`)
		c.hears("notifications/tools/list_changed", `"io.modelcontextprotocol/subscriptionId":7`)
		c.say(modernCall("8", "who", `{"key":"beside"}`))
		c.hears(`"id":8`, "beside")
		c.say(modernCall("9", "ask", `{"key":"asks"}`)) // the question is the result, and a retry brings the answer
		m := c.message()
		if jsonrpc.String(jsonrpc.Field(m.Result, "resultType")) != "input_required" {
			t.Fatalf("got %s", m.Raw)
		}
		retry := answering(m.Result, jsonrpc.String(jsonrpc.Field(m.Result, "requestState")))
		c.say(modernAs("10", "tools/call", with(toolCall("ask", `{"key":"asks"}`), retry), `{"elicitation":{}}`))
		c.hears(`"id":10`, "answered")
		if c.over != nil { // a WebSocket has no half to close
			c.cut(fin)
			<-c.over
			if c.err != nil {
				t.Errorf("ended with %v", c.err)
			}
		}
	})
}

// A node that is drained ends listens, and then closes the connection with a time to come back.
func TestDuplexModernDrain(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{backend: newToolbox(), server: server.Options{Retry: time.Millisecond}})
	c := openSocket(n, 0)
	c.plain = true
	c.say(modernAs("1", "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`, `{}`))
	c.hears("notifications/subscriptions/acknowledged")
	c.say(modernCall("2", "who", `{"key":"before"}`))
	c.hears(`"id":2`, "before")
	drained := make(chan error, 1)
	go func() { drained <- n.Drain(t.Context()) }()
	c.hears(`"id":1`, `"resultType":"complete"`)
	c.ended(websocket.StatusGoingAway, "retry")
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// A forwarder is an observer that counts the notifications that other nodes have taken.
type forwarder struct{ taken atomic.Int64 }

func (*forwarder) Began(*observe.Call, []byte) observe.CallObserver { return nil }

func (f *forwarder) Happened(e observe.Event) {
	if passed, ok := e.(observe.RequestPassed); ok && passed.Status == http.StatusAccepted {
		f.taken.Add(1)
	}
}

// A call that was cut can be resumed, and cancelled, at another node. The cancellation counts as a request that the other node has answered.
func TestDuplexModernElsewhere(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		var forwards forwarder
		f := newFarm(t, 2, config{session: session.Options{Shared: session.Shared{Observers: observe.Observers{&forwards}}}})
		begin := func(id string) (resume string, held *message.Exchange) {
			c := open(f.nodes[0].node, 0)
			c.plain = true
			c.say(modernAs(id, "tools/call", `{"name":"hold","arguments":{}}`, comesBack))
			token := jsonrpc.String(jsonrpc.Field(c.hears("notifications/requests/resumePolicy"), "params", "resumeToken"))
			held = f.nodes[0].release(1)[0] // else the call may be cut before it begins
			c.cut(fin)
			return modernAs(id, "requests/resume", fmt.Sprintf(`{"resumeToken":%q}`, token), comesBack), held
		}
		c := open(f.nodes[1].node, 0)
		c.plain = true
		resume, held := begin("1")
		c.say(resume)
		c.hears("notifications/requests/resumePolicy")
		held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1}`))
		c.hears(`"progress":1`, `"holdfast/eventId"`)
		held.Result(result("whole"))
		c.hears(`"id":1`, "whole")
		resume, _ = begin("2")
		c.say(resume)
		c.hears("notifications/requests/resumePolicy")
		c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
		mcptest.Eventually(t, "the call to be cancelled", time.Minute, func() bool { return f.nodes[0].sessions.Calls() == 0 })
		mcptest.Eventually(t, "the cancellation to be counted", time.Minute, func() bool { return forwards.taken.Load() == 1 })
	})
}
