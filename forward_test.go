package holdfast_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/mcptest"
)

// A tapped engine records all bytes that are written to it.
type tapped struct {
	durable.Log
	tap *mcptest.Log
}

func (l tapped) Put(ctx context.Context, key string, was uint64, value []byte, ttl time.Duration) (uint64, error) {
	_, _ = l.tap.Write(value)
	return l.Log.Put(ctx, key, was, value, ttl)
}

func (l tapped) Append(ctx context.Context, key string, last uint64, frame []byte) (uint64, error) {
	_, _ = l.tap.Write(frame)
	return l.Log.Append(ctx, key, last, frame)
}

func (l tapped) Send(node string, message []byte) error {
	_, _ = l.tap.Write(message)
	return l.Log.Send(node, message)
}

func (l tapped) Cast(message []byte) error {
	_, _ = l.tap.Write(message)
	return l.Log.Cast(message)
}

// TestForwardedCredentials sends requests with all kinds of credentials to the node that does not
// have the session. No credentials go through the engine, except for those that ForwardHeader names.
func TestForwardedCredentials(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3tWord"
	credentials := []string{"Authorization", "Cookie", "X-Api-Key", "X-Auth-Token", "Proxy-Authorization", "X-Amz-Security-Token"}
	for _, x := range []struct {
		name    string
		forward func(string) bool
		want    []string // the headers of X-Tenant and the credentials that the tool gets
	}{
		{"default", nil, []string{"X-Tenant"}},
		{"none", func(string) bool { return false }, nil},
		{"needed", func(name string) bool { return name == "X-Api-Key" }, []string{"X-Api-Key"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			engine, tap := logtest.New(logtest.Options{}), &mcptest.Log{}
			var urls []string
			for range 2 {
				store := durable.New(tapped{engine.Open(), tap}, durable.Options{Logger: slog.New(slog.DiscardHandler)})
				defer store.Close()
				server := mcp.NewServer(&mcp.Implementation{Name: "heads", Version: "1.0.0"}, nil)
				mcp.AddTool(server, &mcp.Tool{Name: "heads"}, func(_ context.Context, req *mcp.CallToolRequest, _ any) (*mcp.CallToolResult, any, error) {
					var seen []string
					for name := range req.Extra.Header {
						if name == "X-Tenant" || slices.Contains(credentials, name) {
							seen = append(seen, name)
						}
					}
					return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint("saw ", seen, ".")}}}, nil, nil
				})
				h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
					Store: store, Logger: slog.New(slog.DiscardHandler), ForwardHeader: x.forward,
				})
				defer h.Shutdown(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is in flight
				web := httptest.NewServer(h)
				defer web.Close()
				urls = append(urls, web.URL)
			}
			session := mcptest.Post(t, urls[0], mcptest.Initialize("2025-11-25", "{}"), "X-Tenant", "acme").Session()
			head := []string{"X-Tenant", "acme", "Mcp-Session-Id", session}
			for _, name := range credentials {
				head = append(head, name, "Bearer "+secret)
			}
			mcptest.Post(t, urls[1], mcptest.Initialized, head...)
			r := mcptest.Post(t, urls[1]+"?api_key="+secret, mcptest.Call(1, "heads", "{}"), head...)
			if want := fmt.Sprint("saw ", x.want, "."); r.Status != http.StatusOK || !strings.Contains(r.Body, want) {
				t.Errorf("%d %s, want %s", r.Status, r.Body, want)
			}
			if !strings.Contains(tap.String(), "tools/call") {
				t.Error("the request did not go through the engine")
			}
			ws := mcptest.MustDial(t, t.Context(), urls[1]+"?api_key="+secret, append(head, "Sec-WebSocket-Protocol", "mcp, bearer."+secret)...)
			if ws.Subprotocol() != "mcp" || ws.Session != session {
				t.Errorf("handshake: %q %q", ws.Subprotocol(), ws.Session)
			}
			ws.Say(t, mcptest.Request(2, "ping", ""))
			ws.Hear(t)
			_ = ws.CloseNow()
			if got, want := strings.Contains(tap.String(), secret), slices.Contains(x.want, "X-Api-Key"); got != want {
				t.Errorf("a credential went through the engine: %v, want %v", got, want)
			}
		})
	}
	http.DefaultClient.CloseIdleConnections()
}
