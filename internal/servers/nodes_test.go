package servers_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/servers"
)

// A session belongs to its server on every node: its requests are forwarded at the server's
// path, and refused as unknown at another path, also after the session's node has left.
func TestNodes(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": "$a", "b": "$b"}, "holdfast": {"merge": true}}`, "a", "b")
	engine := logtest.New(logtest.Options{})
	quiet := slog.New(slog.DiscardHandler)
	begin := func() (n *farm, leave func()) {
		n = &farm{t: t, set: servers.New(f.parse(`{"mcpServers": {"a": "$a", "b": "$b"}, "holdfast": {"merge": true}}`), quiet)}
		store := durable.New(engine.Open(), durable.Options{Logger: quiet})
		handler := holdfast.NewBackendHandler(n.set, &holdfast.Options{Logger: quiet, Store: store, Retry: 20 * time.Millisecond, Eras: holdfast.ErasBoth})
		front := httptest.NewServer(n.set.Handler(handler, true))
		n.base = front.URL
		left := false
		leave = func() {
			if left {
				return
			}
			left = true
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = handler.Shutdown(ctx)
			_ = n.set.Close()
			front.CloseClientConnections()
			front.Close()
			_ = store.Close()
		}
		t.Cleanup(leave)
		return n, leave
	}
	one, leave := begin()
	two, _ := begin()
	ids := make(map[string]string)
	for _, path := range []string{"/a/mcp", "/b/mcp", "/mcp"} {
		ids[path] = one.session(path).Session
	}
	echo := func(prefix string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + prefix + `echo","arguments":{"Message":"m"}}}`
	}
	check := func(when string) {
		t.Helper()
		for path, want := range map[string]string{"/a/mcp": "a:echo:m", "/b/mcp": "b:echo:m", "/mcp": "b:echo:m"} {
			prefix := ""
			if path == "/mcp" {
				prefix = "b_"
			}
			if status, text, _ := two.post(path, ids[path], echo(prefix)); status != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%s, %s at the other node: %d %s", when, path, status, text)
			}
			for other, id := range ids {
				if other == path {
					continue
				}
				if status, text, _ := two.post(path, id, echo(prefix)); status != http.StatusNotFound {
					t.Errorf("%s, the session of %s at %s of the other node: %d %s", when, other, path, status, text)
				}
			}
		}
	}
	check("forwarded")
	leave()
	check("taken over")
}
