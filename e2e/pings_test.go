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
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// checking is a server that sends requests to its peer, as the go-sdk's with KeepAlive, Java's and Playwright's do, without a
// deadline: it waits for each answer. It does so before it answers initialize, and in each call.
func checking() mcptest.Script {
	var q mcptest.Questions
	ask := func(method string, say func(string)) string {
		switch m := q.Ask(say, method, ""); {
		case m.Kind == 0:
			return method + " unanswered"
		case m.Error != nil:
			return method + " " + string(jsonrpc.Field(m.Error, "code"))
		default:
			return method + " " + string(m.Result)
		}
	}
	return mcptest.Answers{
		"response": q.Answered,
		"initialize": func(m jsonrpc.Message, say func(string)) string {
			if got := ask("ping", say); got != "ping {}" {
				return mcptest.Error(m, -32000, got)
			}
			return mcptest.Result(m, mcptest.Welcome(m, `{"tools":{}}`))
		},
		"tools/call check": func(m jsonrpc.Message, say func(string)) string {
			var heard []string
			for _, method := range checks {
				heard = append(heard, ask(method, say))
			}
			return mcptest.Text(m, strings.Join(heard, ", "))
		},
	}.Script
}

// checks are the methods of the server's requests in a call, and heardOfChecks has the right answers.
var checks = []string{"ping", "vendor/unknown", "roots/list", "sampling/createMessage", "elicitation/create", "ping"}

const heardOfChecks = "ping {}, vendor/unknown -32601, roots/list -32601, sampling/createMessage -32601, elicitation/create -32601, ping {}"

// FAILURES 19: a server's requests are answered at once, a ping with a result and others with an error, behind every backend,
// before initialize is answered and in a call. The client, which never answers, gets none of them.
func TestFailure19ServerChecks(t *testing.T) {
	t.Parallel()
	// The paths of [mcptest.Server] choose the stream for the server's requests.
	up := mcptest.Serve(t, &mcptest.Server{Listens: true, New: checking})
	self := mcptest.Must(os.Executable())(t)
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
				// Without a session the server can ask the client nothing.
				want := strings.NewReplacer("list -32601", "list -32600", "Message -32601", "Message -32600", "create -32601", "create -32600").Replace(heardOfChecks)
				if !strings.Contains(r.Body, want) || strings.Contains(r.Body, "question-") {
					t.Errorf("%d %s", r.Status, r.Body)
				}
				return
			}
			c := connect(t, &program{URL: url})
			// The client stays, without a standalone stream, and ignores requests.
			told, err := c.Exchange(t.Context(), http.MethodPost, call)
			if err != nil || !strings.Contains(told.Body, heardOfChecks) || strings.Contains(told.Body, "question-") {
				t.Errorf("a client that is there gets %s, %v", told.Body, err)
			}
			// The client is away, and comes back for the result.
			ctx, leave := context.WithCancel(t.Context())
			from := &mcptest.Client{URL: url, Session: c.Session, HTTP: c.HTTP}
			resp, err := from.Send(ctx, http.MethodPost, strings.Replace(call, `"id":1`, `"id":2`, 1))
			mcptest.Check(t, err)
			first, _ := bufio.NewReader(resp.Body).ReadString('\n')
			last := strings.TrimSpace(strings.TrimPrefix(first, "id:"))
			leave()
			_ = resp.Body.Close()
			if !strings.HasPrefix(first, "id:") {
				t.Fatalf("the answer begins with %q", first)
			}
			told, err = c.Exchange(t.Context(), http.MethodGet, "", "Last-Event-ID", last)
			if err != nil || !strings.Contains(told.Body, heardOfChecks) || strings.Contains(told.Body, "question-") {
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
		s := mcptest.Must(client.Connect(t.Context(), &mcp.CommandTransport{Command: exec.Command(command[0], command[1:]...)}, nil))(t)
		defer func() { _ = s.Close() }()
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "check"})
		if err != nil || r.Content[0].(*mcp.TextContent).Text != heardOfChecks {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
