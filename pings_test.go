package holdfast_test

import (
	"bufio"
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A lonely client makes requests, does not read the standalone stream, and answers no requests of the server.
type lonely struct {
	t       *testing.T
	url, id string
}

// send makes a request. The caller closes its body.
func (c *lonely) send(method, last, body string) *http.Response {
	c.t.Helper()
	resp := mcptest.Must(mcptest.Send(c.t.Context(), method, c.url, body, "Mcp-Session-Id", c.id, "Last-Event-ID", last))(c.t)
	c.id = cmp.Or(c.id, resp.Header.Get("Mcp-Session-Id"))
	return resp
}

// ask makes a request, and returns the whole answer.
func (c *lonely) ask(method, last, body string) (int, string) {
	c.t.Helper()
	r := mcptest.Must(mcptest.Read(c.send(method, last, body), nil))(c.t) //nolint:bodyclose // Read closes it
	return r.Status, r.Body
}

// begin begins a session with a handler of a server.
func begin(t *testing.T, server *mcp.Server, o holdfast.Options) *lonely {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &o)
	mcptest.ShutDownAtEnd(t, h, time.Minute)
	c := &lonely{t: t, url: mcptest.Serve(t, h)}
	c.ask("POST", "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	c.ask("POST", "", `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

const callsTool = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"tool","arguments":{}}}`

// FAILURES 19: a go-sdk server pings its client every second, and the client answers no ping. The session, its calls and
// the server's state of it go on.
func TestFailure19KeepAlive(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]holdfast.Options{"sessions": {}, "stateless": {Stateless: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, &mcp.ServerOptions{KeepAlive: time.Second})
			var pings, calls atomic.Int32
			server.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
				return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
					r, err := next(ctx, method, req)
					if method == "ping" && err == nil {
						pings.Add(1)
					}
					return r, err
				}
			})
			mcp.AddTool(server, &mcp.Tool{Name: "tool"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
				waits := calls.Add(1) == 1 || testlong.All() // the second call checks that the session is the same
				for before := pings.Load(); waits && pings.Load() < before+2; {
					select {
					case <-ctx.Done():
						return nil, nil, ctx.Err()
					case <-time.After(10 * time.Millisecond):
					}
				}
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "session " + req.Session.ID()}}}, nil, nil
			})
			c := begin(t, server, o)
			var answers [2]string
			for i := range answers {
				if _, answers[i] = c.ask("POST", "", callsTool); !strings.Contains(answers[i], `"text":"session `) || strings.Contains(answers[i], `"ping"`) {
					t.Errorf("call %d: %s", i, answers[i])
				}
			}
			text := func(answer string) string {
				_, text, _ := strings.Cut(answer, `"text":"`)
				text, _, _ = strings.Cut(text, `"`)
				return text
			}
			if one, two := text(answers[0]), text(answers[1]); name == "sessions" && one != two {
				t.Errorf("the session of the server was %s, and is %s", one, two)
			}
		})
	}
}

// A stored result stays readable after the server has ended its session. All other requests of the session get a 404.
func TestResultAfterServerEnds(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "tool"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "the result"}}}, nil, nil
	})
	c := begin(t, server, holdfast.Options{Response: holdfast.ResponseSSE})
	resp := c.send("POST", "", callsTool)
	first, err := bufio.NewReader(resp.Body).ReadString('\n')
	_ = resp.Body.Close() // the client goes away
	if err != nil || !strings.HasPrefix(first, "id: ") {
		t.Fatalf("the answer begins with %q, %v", first, err)
	}
	last := strings.TrimSpace(first[len("id: "):])
	c.ask("POST", "", callsTool) // when this call has ended, the first one has, too
	for session := range server.Sessions() {
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		status, _ := c.ask("POST", "", callsTool)
		if status == http.StatusNotFound {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a session that its server has ended answers %d", status)
		}
	}
	for range 2 {
		if status, text := c.ask("GET", last, ""); status != http.StatusOK || !strings.Contains(text, "the result") {
			t.Errorf("the stored result: %d %s", status, text)
		}
	}
	if status, _ := c.ask("GET", "", ""); status != http.StatusNotFound {
		t.Errorf("the standalone stream: %d", status)
	}
	if status, _ := c.ask("DELETE", "", ""); status != http.StatusNotFound {
		t.Errorf("to end it again: %d", status)
	}
}
