package e2e

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A checking server checks its peer, as go-sdk's with KeepAlive, Java's and Playwright's do, without a deadline: it goes on
// when it has its answer. It does so before it answers initialize, and in each call.
type checking struct {
	mu      sync.Mutex
	count   int
	waiting map[string]chan jsonrpc.Message // by the ids of its requests
}

// ask makes a request to its peer, which say tells, and returns the response in short.
func (c *checking) ask(method string, say func(string)) string {
	answer := make(chan jsonrpc.Message, 1)
	c.mu.Lock()
	c.count++
	id := fmt.Sprintf(`"check-%d"`, c.count)
	if c.waiting == nil {
		c.waiting = make(map[string]chan jsonrpc.Message)
	}
	c.waiting[id] = answer
	c.mu.Unlock()
	say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q}`, id, method))
	select {
	case m := <-answer:
		if m.Error != nil {
			return method + " " + string(jsonrpc.Field(m.Error, "code"))
		}
		return method + " " + string(m.Result)
	case <-time.After(time.Minute):
		return method + " unanswered"
	}
}

// checks are what it asks in a call, and rightly what it hears.
var checks = []string{"ping", "vendor/unknown", "roots/list", "sampling/createMessage", "elicitation/create", "ping"}

const heardOfChecks = "ping {}, vendor/unknown -32601, roots/list -32601, sampling/createMessage -32601, elicitation/create -32601, ping {}"

// take takes a message of its peer, and returns the response that it has in the end, or "". What it asks meanwhile say tells.
func (c *checking) take(m jsonrpc.Message, say func(string)) string {
	switch {
	case m.Kind == jsonrpc.Response:
		c.mu.Lock()
		answer := c.waiting[string(m.ID)]
		delete(c.waiting, string(m.ID))
		c.mu.Unlock()
		if answer != nil {
			answer <- m
		}
	case m.Kind != jsonrpc.Request:
	case m.Method == "initialize":
		if got := c.ask("ping", say); got != "ping {}" {
			return mcptest.Error(m, -32000, got)
		}
		version := cmp.Or(jsonrpc.String(jsonrpc.Field(m.Params, "protocolVersion")), "2025-11-25")
		return mcptest.Result(m, fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"checking","version":"1"}}`, version))
	case m.Method == "tools/list":
		return mcptest.Result(m, `{"tools":[{"name":"check","inputSchema":{"type":"object"}}]}`)
	case m.Method == "tools/call":
		var heard []string
		for _, method := range checks {
			heard = append(heard, c.ask(method, say))
		}
		return mcptest.Text(m, strings.Join(heard, ", "))
	default:
		return mcptest.Error(m, -32601, "method not found")
	}
	return ""
}

// serveChecking serves one such server for each session. Where what it asks goes is said by the paths of [mcptest.Server].
func serveChecking(t *testing.T) (url string) {
	return mcptest.Serve(t, &mcptest.Server{Listens: true, New: func() mcptest.Script { return new(checking).take }})
}

// FAILURES 19: whatever a server asks of a peer that is only there is answered at once, behind every backend, before
// initialize is answered and in a call; and the client, which never answers, is told nothing of it.
func TestFailure19ServerChecks(t *testing.T) {
	t.Parallel()
	up := serveChecking(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := []string{"--", self, "checking"}
	merged := fmt.Sprintf(`{"mcpServers":{"a":{"command":%q,"args":["checking"]},"b":{"url":%q}},"holdfast":{"merge":true}}`, self, up+"/events")
	one := fmt.Sprintf(`{"mcpServers":{"a":{"command":%q,"args":["checking"],"holdfast":{"share":true}}}}`, self)
	for name, serves := range map[string]struct {
		url  func(t *testing.T) string
		tool string
	}{
		"process":                            {url: func(t *testing.T) string { return serve(t, command...).URL }},
		"shared":                             {url: func(t *testing.T) string { return serve(t, append([]string{"--share"}, command...)...).URL }},
		"stateless":                          {url: func(t *testing.T) string { return serve(t, append([]string{"--stateless"}, command...)...).URL }},
		"upstream":                           {url: func(t *testing.T) string { return serve(t, "--upstream", up+"/events").URL }},
		"upstream, in the standalone stream": {url: func(t *testing.T) string { return serve(t, "--upstream", up+"/get").URL }},
		"upstream, WebSocket": {url: func(t *testing.T) string {
			return serve(t, "--upstream", "ws"+strings.TrimPrefix(up, "http")+"/ws").URL
		}},
		"shared, of a file": {url: func(t *testing.T) string { return serveFile(t, one) + "/a/mcp" }},
		"merged, process":   {url: func(t *testing.T) string { return serveFile(t, merged) + "/mcp" }, tool: "a_check"},
		"merged, upstream":  {url: func(t *testing.T) string { return serveFile(t, merged) + "/mcp" }, tool: "b_check"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, tool := serves.url(t), cmp.Or(serves.tool, "check")
			call := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":{}}}`, tool)
			if name == "stateless" {
				r := post(t, url, "", "", call)
				// It has no session in which anything could be asked.
				want := strings.NewReplacer("list -32601", "list -32600", "Message -32601", "Message -32600", "create -32601", "create -32600").Replace(heardOfChecks)
				if !strings.Contains(r.Body, want) || strings.Contains(r.Body, "check-") {
					t.Errorf("%d %s", r.Status, r.Body)
				}
				return
			}
			c := connect(t, &program{URL: url})
			// Its client stays, without a standalone stream, and ignores what it does not expect.
			told, err := mcptest.Read(c.send("POST", "", call), nil) //nolint:bodyclose // Read closes it
			if err != nil || !strings.Contains(told.Body, heardOfChecks) || strings.Contains(told.Body, "check-") {
				t.Errorf("a client that is there gets %s, %v", told.Body, err)
			}
			// Its client is away, and comes back for the result.
			ctx, leave := context.WithCancel(t.Context())
			from := &mcptest.Client{URL: url, Session: c.Session, HTTP: c.HTTP}
			resp, err := from.Send(ctx, http.MethodPost, strings.Replace(call, `"id":1`, `"id":2`, 1))
			if err != nil {
				t.Fatal(err)
			}
			first, _ := bufio.NewReader(resp.Body).ReadString('\n')
			last := strings.TrimSpace(strings.TrimPrefix(first, "id:"))
			leave()
			_ = resp.Body.Close()
			if !strings.HasPrefix(first, "id:") {
				t.Fatalf("the answer begins with %q", first)
			}
			told, err = mcptest.Read(c.send("GET", last, ""), nil) //nolint:bodyclose // Read closes it
			if err != nil || !strings.Contains(told.Body, heardOfChecks) || strings.Contains(told.Body, "check-") {
				t.Errorf("a client that was away gets %d %s, %v", told.Status, told.Body, err)
			}
		})
	}
	t.Run("translated, for a modern client", func(t *testing.T) {
		t.Parallel()
		r := post(t, serve(t, command...).URL, "", "", callsModern("check"))
		if !strings.Contains(r.Body, heardOfChecks) {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	})
	t.Run("connect", func(t *testing.T) {
		t.Parallel()
		client := mcp.NewClient(&mcp.Implementation{Name: "host", Version: "1"}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
		command := connectCommand(t, "connect:"+up+"/events")
		s, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: exec.Command(command[0], command[1:]...)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "check"})
		if err != nil || !strings.HasPrefix(r.Content[0].(*mcp.TextContent).Text, "ping {}, ") || strings.Contains(r.Content[0].(*mcp.TextContent).Text, "unanswered") {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
