package server_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/jsonrpc"
)

// stateless returns a client of a stateless server.
func stateless(t *testing.T, c config) *peer {
	c.server.Stateless = true
	return &peer{n: newNode(t, c)}
}

const revision = "MCP-Protocol-Version: 2025-06-18"

// TestStateless sends requests to a stateless server: each is answered without a session, and
// leaves nothing behind.
func TestStateless(t *testing.T) {
	t.Parallel()
	p := stateless(t, config{})
	r := p.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
	if r.status != 200 || r.header.Get("Mcp-Session-Id") != "" || r.header.Get("Content-Type") != "application/json" ||
		!strings.Contains(string(r.body), `"protocolVersion":"2025-11-25"`) {
		t.Errorf("initialize: %d %v %s", r.status, r.header, r.body)
	}
	for what, body := range map[string]string{
		"initialized":  `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		"cancelled":    `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		"an answer":    `{"jsonrpc":"2.0","id":1,"result":{}}`,
		"notification": `{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"x"}}`,
	} {
		if r := p.post(body, revision); r.status != 202 || len(r.body) > 0 {
			t.Errorf("%s: %d %s", what, r.status, r.body)
		}
	}
	for _, extra := range [][]string{
		nil, {revision}, {"MCP-Protocol-Version: 2025-11-25"},
		{revision, "Mcp-Session-Id: of-some-other-server"}, // a client may have kept it from before
	} {
		r := p.post(callAs("1", "echo", `{"text":"alone"}`), extra...)
		if r.status != 200 || r.header.Get("Content-Type") != "application/json" || r.header.Get("Mcp-Session-Id") != "" ||
			r.header.Get("Link") != "" || !strings.Contains(string(r.body), "alone") {
			t.Errorf("%v: %d %v %s", extra, r.status, r.header, r.body)
		}
	}
	// A call with progress has a stream that cannot be resumed: without event ids, URL and
	// priming event.
	r = p.post(callAs("2", "steps", `{"key":"alone","n":3}`), "MCP-Protocol-Version: 2025-11-25")
	events := r.events()
	if r.status != 200 || !r.whole || r.header.Get("Content-Type") != "text/event-stream" || r.header.Get("Link") != "" || len(events) != 4 {
		t.Fatalf("%d %v %s", r.status, r.header, r.body)
	}
	for i, ev := range events {
		want := fmt.Sprintf(`"progress":%d,`, i+1)
		if i == 3 {
			want = "done"
		}
		if ev.ID != "" || !strings.Contains(string(ev.Data), want) {
			t.Errorf("event %d is %+v", i, ev)
		}
	}
	// The answer to a long call is waited for.
	if r := p.post(callAs("3", "steps", `{"n":0,"pause":80}`), revision); r.status != 200 || !strings.Contains(string(r.body), "done") {
		t.Errorf("%d %s", r.status, r.body)
	}
	p.nothingLeft()
}

// nothingLeft waits until the node has no session and no call, and its store is empty.
func (p *peer) nothingLeft() {
	p.n.t.Helper()
	mcptest.Eventually(p.n.t, "sessions to end", time.Minute, func() bool {
		return p.n.sessions.Sessions() == 0 && p.n.sessions.Calls() == 0 && p.n.store.Bytes() == 0
	})
}

// TestStatelessEntryPoints uses the entry points to sessions: a stateless server does not have them.
func TestStatelessEntryPoints(t *testing.T) {
	t.Parallel()
	p := stateless(t, config{})
	for _, c := range []crafted{
		{method: "GET"}, {method: "DELETE"}, {method: "PUT"},
		{method: "GET", head: map[string]string{"Last-Event-ID": "Last-Event-ID: x"}},
		{method: "GET", target: "/mcp?stream=x"},
		{method: "GET", target: "/sse"}, {target: "/sse", body: initialize}, {target: "/messages?sessionId=x", body: "{}"},
	} {
		allow := "POST, OPTIONS"
		if strings.HasPrefix(c.target, "/sse") || strings.HasPrefix(c.target, "/messages") {
			allow = "OPTIONS"
		}
		r := p.craft(c).all()
		what := c.method + " " + c.target
		refused(t, what, r, 405, codeInvalid, "is not allowed here")
		if got := r.header.Get("Allow"); got != allow {
			t.Errorf("%s: Allow is %q", what, got)
		}
	}
	refused(t, "a stream URL", p.open("POST", "/mcp?stream=x", `{"jsonrpc":"2.0","id":1,"result":{}}`).all(), 404, codeInvalid, "no stream URLs")
}

// TestStatelessBadInput sends invalid requests to a stateless server: they are refused.
func TestStatelessBadInput(t *testing.T) {
	t.Parallel()
	p := stateless(t, config{})
	run := callAs("1", "steps", `{"key":"bad"}`)
	refused(t, "malformed", p.post("{", revision), 400, codeParse, "malformed")
	refused(t, "no message", p.post("{}", revision), 400, codeInvalid, "not a JSON-RPC")
	refused(t, "a version", p.post(run, "MCP-Protocol-Version: 2099-01-01"), 400, codeUnsupported, "unsupported")
	refused(t, "a batch", p.post("["+run+"]", revision), 400, codeInvalid, "no batches")
	refused(t, "initialize in a batch", p.post("["+initialize+","+run+"]"), 400, codeInvalid, "initialize")
	refused(t, "an id twice", p.post("["+run+","+run+"]"), 400, codeInvalid, "use an id once")
	refused(t, "bad Accept", p.craft(crafted{body: run, head: map[string]string{"Accept": "Accept: text/html"}}).all(), 406, codeInvalid, "Accept must")
	if p.n.runs("bad") > 0 {
		t.Error("a call ran that was refused")
	}
	// Without a version header the revision is 2025-03-26, which has batches.
	r := p.post(`[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":1,"method":"ping"},` + callAs("2", "echo", `{"text":"b"}`) + `]`)
	if r.status != 200 || !strings.HasPrefix(string(r.body), `[{"jsonrpc":"2.0","id":1,`) || strings.Count(string(r.body), `"id":`) != 2 {
		t.Errorf("%d %s", r.status, r.body)
	}
	p.nothingLeft()
}

// TestStatelessAsk is a server that sends a request to a client which has no way to answer: the
// server gets an error, and its call ends.
func TestStatelessAsk(t *testing.T) {
	t.Parallel()
	calls := make(chan *message.Exchange, 1)
	p := stateless(t, config{backend: message.New(message.HandlerFunc(func(x *message.Exchange) {
		switch {
		case x.Kind == jsonrpc.Response:
			(<-calls).Result(result(string(x.Message.Error)))
		case x.Method == "tools/call":
			calls <- x
			x.Request([]byte(`"q"`), "elicitation/create", []byte(`{}`))
		case x.Kind == jsonrpc.Request:
			x.Result([]byte(`{"protocolVersion":"2025-06-18","capabilities":{}}`))
		}
	}))})
	r := p.post(call("ask", `{}`), revision)
	if r.status != 200 || !strings.Contains(string(r.body), "a stateless endpoint cannot ask its client") ||
		!strings.Contains(string(r.body), "elicitation/create") || strings.Contains(string(r.body), `"method"`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	p.nothingLeft()
}

// TestStatelessOpening checks that the server gets an initialize of the request's revision before
// a stateless request. If it refuses that, the client gets the error.
func TestStatelessOpening(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []string
	p := stateless(t, config{backend: message.New(message.HandlerFunc(func(x *message.Exchange) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, x.Method)
		version := jsonrpc.String(jsonrpc.Field(x.Params, "protocolVersion"))
		switch {
		case x.Method == "initialize" && version == "2025-03-26":
			x.Error(jsonrpc.Errorf(codeParams, "too old"))
		case x.Method == "initialize":
			x.Result(fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":{}}`, version))
		case x.Kind == jsonrpc.Request:
			x.Result([]byte(`{}`))
		}
	}))})
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	refused(t, "a refused opening", p.post(ping), 502, codeServer, "too old")
	if r := p.post(ping, revision); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := p.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(seen, " "); got != "initialize initialize notifications/initialized ping initialize" {
		t.Errorf("the server saw %s", got)
	}
	p.nothingLeft()
}

// TestStatelessConcurrent makes many requests at a time, all with the same id: each gets its own
// answer.
func TestStatelessConcurrent(t *testing.T) {
	t.Parallel()
	p := stateless(t, config{})
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range 10 {
				text := fmt.Sprintf("%d.%d", i, j)
				if r := p.post(callAs("0", "echo", fmt.Sprintf(`{"text":%q}`, text)), revision); !strings.Contains(string(r.body), `"`+text+`"`) {
					t.Errorf("%s got %d %s", text, r.status, r.body)
				}
			}
			body := fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"steps","arguments":{"n":5,"pause":1},"_meta":{"progressToken":%d}}}`, i)
			r := p.post(body, revision)
			if strings.Count(string(r.body), fmt.Sprintf(`"progressToken":%d,`, i)) != 5 || len(r.events()) != 6 {
				t.Errorf("%d got %s", i, r.body)
			}
		}()
	}
	wg.Wait()
	p.nothingLeft()
}

// TestStatelessGone has clients that leave before their answer: their calls and sessions end.
func TestStatelessGone(t *testing.T) {
	t.Parallel()
	p := stateless(t, config{server: server.Options{KeepAlive: 5 * time.Millisecond}})
	light := p.open("POST", "/mcp", call("hold", `{}`), revision)
	held := p.n.release(1)
	streaming := p.open("POST", "/mcp", call("hold", `{}`), revision)
	held = append(held, p.n.release(1)...)
	progress(held[1], 1, 1)
	streaming.message()
	quiet := make([]byte, 60)
	if _, err := io.ReadFull(streaming.res.Body, quiet); err != nil || strings.Count(string(quiet), ": keep-alive") < 3 {
		t.Errorf("got %q, %v", quiet, err)
	}
	light.c.Close()
	streaming.c.Close()
	p.nothingLeft()
	for _, x := range held {
		x.Result(result("to nobody"))
	}
	p.nothingLeft()
}
