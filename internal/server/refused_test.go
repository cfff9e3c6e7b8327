package server_test

import (
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/observe"
	"holdfast/internal/observe/observetest"
	"holdfast/internal/protocol"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// Observers get one event for a request that is not authorized. It names the principal only if that was
// proven, and the method and tool as far as the request was read.
func TestDenied(t *testing.T) {
	t.Parallel()
	ledger := observetest.New(t).Recording()
	who := func(r *http.Request) string { // a claim, not proven before Authenticate
		return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	n := newNode(t, config{
		session: session.Options{Shared: session.Shared{Observers: observe.Observers{ledger}}},
		server: server.Options{
			Principal: who,
			Authenticate: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					r = r.WithContext(server.WithServer(r.Context(), "files"))
					switch who(r) {
					case "":
						server.TellRefused(r, "no_token", http.StatusUnauthorized)
						w.WriteHeader(http.StatusUnauthorized)
					case "poor":
						server.TellRefused(r, "insufficient_scope", http.StatusForbidden)
						w.WriteHeader(http.StatusForbidden)
					case "away":
						server.TellRefused(r, "auth_unavailable", http.StatusServiceUnavailable)
						w.WriteHeader(http.StatusServiceUnavailable)
					default:
						next.ServeHTTP(w, r.WithContext(server.WithPermit(r.Context(), func(m *jsonrpc.Message) error {
							switch m.Method {
							case "tools/call":
								return &protocol.Unauthorized{Status: http.StatusForbidden, Text: "insufficient scope"}
							case "ping":
								return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "no")
							}
							return nil
						}, func() bool { return true })))
					}
				})
			},
		},
	})
	long := strings.Repeat("é", observe.MostDenied)
	ask := func(method, path, who, body string, head ...string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if who != "" {
			req.Header.Set("Authorization", "Bearer "+who)
		}
		for i := 0; i+1 < len(head); i += 2 {
			req.Header.Set(head[i], head[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	call := func(tool string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `"}}`
	}
	type fact struct {
		reason                     string
		status                     int
		server, principal          string
		http, method, tool, remote string
	}
	for _, c := range []struct {
		what                    string
		method, path, who, body string
		head                    []string
		want                    fact
	}{
		{"no token", "POST", "/mcp", "", call("a"), nil, fact{"no_token", 401, "files", "", "POST", "", "", "127.0.0.1"}},
		{"no token, 2024-11-05", "GET", "/sse", "", "", nil, fact{"no_token", 401, "files", "", "GET", "", "", "127.0.0.1"}},
		{"a scope", "DELETE", "/mcp", "poor", "", nil, fact{"insufficient_scope", 403, "files", "poor", "DELETE", "", "", "127.0.0.1"}},
		{"a tool's scope", "POST", "/mcp", "ada", call("write"), nil, fact{"insufficient_scope", 403, "files", "ada", "POST", "tools/call", "write", "127.0.0.1"}},
		{"a long name", "POST", "/mcp", "ada", call(long), nil, fact{"insufficient_scope", 403, "files", "ada", "POST", "tools/call", long[:observe.MostDenied], "127.0.0.1"}},
		{"one of a batch", "POST", "/mcp", "ada", `[{"jsonrpc":"2.0","id":2,"method":"tools/list"},` + call("write") + `]`, nil, fact{"insufficient_scope", 403, "files", "ada", "POST", "tools/call", "write", "127.0.0.1"}},
		{"a WebSocket", "GET", "/mcp", "ada", "", []string{"Connection", "Upgrade", "Upgrade", "websocket"}, fact{"insufficient_scope", 403, "files", "ada", "GET", "", "", "127.0.0.1"}},
		// Host and Origin are checked first: then the token was not checked.
		{"an origin", "POST", "/mcp", "ada", call("a"), []string{"Origin", "https://evil.example"}, fact{"forbidden", 403, "", "", "POST", "", "", "127.0.0.1"}},
		{"another site", "GET", "/mcp", "ada", "", []string{"Sec-Fetch-Site", "cross-site"}, fact{"forbidden", 403, "", "", "GET", "", "", "127.0.0.1"}},
		{"a method", strings.Repeat("M", 1000), "/mcp", "ada", "", []string{"Origin", "https://evil.example"}, fact{"forbidden", 403, "", "", strings.Repeat("M", observe.MostDenied), "", "", "127.0.0.1"}},
		{"nothing to do with it", "POST", "/mcp", "ada", `{"jsonrpc":"2.0","id":3,"method":"ping"}`, nil, fact{reason: "invalid", status: 400}},
		{"away", "POST", "/mcp", "away", call("a"), nil, fact{reason: "auth_unavailable", status: 503}},
	} {
		before := len(ledger.Events())
		if status := ask(c.method, c.path, c.who, c.body, c.head...); status != c.want.status {
			t.Errorf("%s: %d, want %d", c.what, status, c.want.status)
		}
		var got []fact
		for _, e := range ledger.Events()[before:] {
			if r, ok := e.(observe.Refused); ok {
				one := fact{reason: r.Reason, status: r.Status}
				if d := r.Denied; d != nil {
					one.server, one.principal, one.http, one.method, one.tool, one.remote = d.Server, d.Principal, d.HTTP, d.Method, d.Tool, d.Remote
				}
				got = append(got, one)
			}
		}
		if len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: told %+v, want %+v", c.what, got, c.want)
		}
	}
}
