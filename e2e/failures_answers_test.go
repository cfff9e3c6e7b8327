package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// oddCall returns a call of a tool of an odd server.
func oddCall(id int, tool, name string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"case":%q}}}`, id, tool, name)
}

// ask makes a request in the session of a peer, and returns the response, without the messages before it in a stream.
func (c *peer) ask(body string) string {
	c.t.Helper()
	return c.Post(c.t, body).Message()
}

// wantOdd checks that response has the id and the text want.
func wantOdd(t *testing.T, response string, id int, want string) {
	t.Helper()
	var m struct {
		ID            json.RawMessage
		Result, Error json.RawMessage
	}
	err := json.Unmarshal([]byte(response), &m)
	if err != nil || string(m.ID) != fmt.Sprint(id) || (m.Result == nil) == (m.Error == nil) {
		t.Fatalf("the response is %q, %v", response, err)
	}
	if !strings.Contains(strings.ReplaceAll(response, `\"`, `"`), want) {
		t.Errorf("the response is %s, want %s", response, want)
	}
}

// FAILURES 20: an answer that breaks JSON or JSON-RPC a little is read if its meaning is clear, else its call ends at once with
// an error that quotes it. Afterwards the session goes on. This holds for every backend.
func TestFailure20NearlyJSON(t *testing.T) {
	t.Parallel()
	up := serveOdd(t)
	self := mcptest.Must(os.Executable())(t)
	merged := fmt.Sprintf(`{"mcpServers":{"a":{"command":%q,"args":["odd"]},"b":{"url":%q}},"holdfast":{"merge":true}}`, self, up+"/events")
	command := []string{"--", self, "odd"}
	for name, backend := range map[string]struct {
		serve  func() string
		prefix string
		body   bool // the server answers with one body
		pipe   bool // the server is on stdio
		one    bool // all clients share one conversation with the server, where an answer without an id is for the only call in flight
		long   bool // it runs with -long only
	}{
		"process":             {serve: func() string { return serve(t, command...).URL }, pipe: true},
		"shared":              {serve: func() string { return serve(t, append([]string{"--share"}, command...)...).URL }, pipe: true, one: true, long: true},
		"upstream, JSON":      {serve: func() string { return serve(t, "--upstream", up+"/json").URL }, body: true},
		"upstream, events":    {serve: func() string { return serve(t, "--upstream", up+"/events").URL }},
		"upstream, HTTP+SSE":  {serve: func() string { return serve(t, "--upstream", up+"/sse").URL }},
		"upstream, WebSocket": {serve: func() string { return serve(t, "--upstream", "ws"+strings.TrimPrefix(up, "http")+"/ws").URL }},
		"merged, process":     {serve: func() string { return serveFile(t, merged) + "/mcp" }, prefix: "a_", pipe: true, long: true},
		"merged, upstream":    {serve: func() string { return serveFile(t, merged) + "/mcp" }, prefix: "b_", long: true},
	} {
		if backend.long && !testlong.Wanted() {
			continue
		}
		url := backend.serve()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for answer, odd := range oddAnswers() {
				t.Run(answer, func(t *testing.T) {
					if !backend.one {
						t.Parallel()
					}
					testlong.Part(t)
					want := odd.on(backend.body, backend.pipe)
					c := connect(t, &program{URL: url})
					toolNames(t, c) // else Holdfast asks for them beside the call, and an answer without an id is for one of two
					began := time.Now()
					wantOdd(t, c.ask(oddCall(7, backend.prefix+"odd", answer)), 7, want)
					if took := time.Since(began); took > 20*time.Second {
						t.Errorf("it came after %v", took)
					}
					wantOdd(t, c.ask(oddCall(8, backend.prefix+"even", "")), 8, "even")
				})
			}
		})
	}
}

// FAILURES 20, with a client of the modern era, a client without a session, and a host behind holdfast connect.
func TestFailure20Clients(t *testing.T) {
	testlong.Only(t, "each answer that cannot be read takes half a second")
	t.Parallel()
	up := serveOdd(t)
	self := mcptest.Must(os.Executable())(t)
	process := serve(t, "--", self, "odd").URL
	stateless := serve(t, "--stateless", "--", self, "odd").URL
	for answer, odd := range oddAnswers() { // one after the other: the modern clients share one conversation
		t.Run(answer, func(t *testing.T) {
			want := odd.on(false, true)
			modern := strings.Replace(callsModern("odd"), `"arguments":{}`, fmt.Sprintf(`"arguments":{"case":%q}`, answer), 1)
			modern = strings.Replace(modern, `"m-odd"`, "7", 1)
			wantOdd(t, post(t, process, "", "", modern).Message(), 7, want)
			wantOdd(t, post(t, stateless, "", "", oddCall(7, "odd", answer)).Message(), 7, want)
		})
	}
	t.Run("connect", func(t *testing.T) {
		t.Parallel()
		for _, path := range []string{"/json", "/events", "/sse"} {
			t.Run(path[1:], func(t *testing.T) {
				t.Parallel()
				b := hostOf(t, connectCommand(t, "connect:"+up+path)...)
				for answer, odd := range oddAnswers() {
					want := odd.on(path == "/json", false)
					b.Say("%s", oddCall(7, "odd", answer))
					wantOdd(t, b.response("7"), 7, want)
				}
				b.Say("%s", oddCall(8, "even", ""))
				wantOdd(t, b.response("8"), 8, "even")
			})
		}
	})
}

// hostOf starts a stdio server as a host does, and initializes it. The server is ended with the test, or after a minute.
func hostOf(t *testing.T, command ...string) *bridged {
	t.Helper()
	return startBridged(t, exec.Command(command[0], command[1:]...), "2025-11-25")
}

// FAILURES 20: initialize and tools/list are answered with an error, too, if the server gives an odd answer to them.
func TestFailure20Beginnings(t *testing.T) {
	t.Parallel()
	self := mcptest.Must(os.Executable())(t)
	const initialize = `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	for _, answer := range []string{"NaN", "an error under id null", "text before the message", "no jsonrpc", "an error that is text", "over lines", "single quotes"} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			testlong.Part(t)
			r := post(t, serve(t, "--", self, "odd", "initialize", answer).URL, "", "", initialize)
			if !strings.Contains(r.Message(), `"error"`) || r.Status == http.StatusOK && !strings.Contains(r.Body, `"id":7`) {
				t.Errorf("initialize is answered with %d %s", r.Status, r.Body)
			}
			c := connect(t, serve(t, "--", self, "odd", "tools/list", answer))
			if got := c.ask(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`); !strings.Contains(got, `"error"`) || !strings.Contains(got, `"id":7`) {
				t.Errorf("tools/list is answered with %s", got)
			}
			wantOdd(t, c.ask(oddCall(8, "even", "")), 8, "even")
		})
	}
}

// FAILURES 20: a result of initialize that begins no session is an error at once, over each transport.
func TestFailure20NoRevision(t *testing.T) {
	t.Parallel()
	self := mcptest.Must(os.Executable())(t)
	up := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, jsonrpc.Field(body, "id"), r.URL.Query().Get("result"))
	}))
	const initialize = `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	for name, backend := range map[string][]string{
		"process":             {"--", self, "odd", "initialize", "result null"},
		"process, an object":  {"--", self, "odd", "initialize", "another result"},
		"upstream":            {"--upstream", up + "/?result=null"},
		"upstream, an object": {"--upstream", up + "/?result={}"},
		"upstream, a number":  {"--upstream", up + "/?result=7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := post(t, serve(t, backend...).URL, "", "", initialize).Message()
			if !strings.Contains(got, `"id":7`) || !strings.Contains(got, `"error":{"code":`) || !strings.Contains(got, "initialize") {
				t.Errorf("initialize is answered with %s", got)
			}
		})
	}
}

// FAILURES 20: with two calls in flight, an error without an id can be for either, and both end with an unknown outcome within a
// bound. A request of the server with the id 5.0 is answered with the id 5.0.
func TestFailure20TwoCalls(t *testing.T) {
	t.Parallel()
	self := mcptest.Must(os.Executable())(t)
	t.Run("the id 5.0", func(t *testing.T) {
		t.Parallel()
		c := connect(t, serve(t, "--", self, "odd"))
		listening := c.listen("GET", "", "")
		wantOdd(t, c.ask(oddCall(7, "odd", "ping under an id of fraction")), 7, "fine")
		listening.until(1)
		if got := strings.Join(listening.received, " "); !strings.Contains(got, "'id':5.0") || !strings.Contains(got, "'result':{}") {
			t.Errorf("the server's request is answered with %s", got)
		}
	})
	t.Run("two calls", func(t *testing.T) {
		testlong.Only(t, "the bound is ten seconds")
		t.Parallel()
		p := serve(t, "--", self, "odd")
		c := connect(t, p)
		silent := c.listen("POST", "", oddCall(6, "silent", ""))
		mcptest.Eventually(t, "the server to have the call", time.Minute, func() bool { return strings.Contains(strings.Join(p.log.Lines("time="), ""), "it says nothing") })
		began := time.Now()
		wantOdd(t, c.ask(oddCall(7, "odd", "an error under id null")), 7, "outcome unknown")
		silent.until(1)
		if got := silent.received[0]; !strings.HasPrefix(got, "error outcome unknown") {
			t.Errorf("the silent call gets %s", got)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("they were told after %v", took)
		}
		wantOdd(t, c.ask(oddCall(8, "even", "")), 8, "even")
	})
}
