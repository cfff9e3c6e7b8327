package holdfast_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
)

// A tapped engine notes all that goes into it.
type tapped struct {
	durable.Log
	tap *tap
}

type tap struct {
	mu    sync.Mutex
	heard bytes.Buffer
}

func (t *tap) hear(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard.Write(p)
}

func (t *tap) has(text string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Contains(t.heard.Bytes(), []byte(text))
}

func (l tapped) Put(ctx context.Context, key string, was uint64, value []byte, ttl time.Duration) (uint64, error) {
	l.tap.hear(value)
	return l.Log.Put(ctx, key, was, value, ttl)
}

func (l tapped) Append(ctx context.Context, key string, last uint64, frame []byte) (uint64, error) {
	l.tap.hear(frame)
	return l.Log.Append(ctx, key, last, frame)
}

func (l tapped) Send(node string, message []byte) error {
	l.tap.hear(message)
	return l.Log.Send(node, message)
}

func (l tapped) Cast(message []byte) error {
	l.tap.hear(message)
	return l.Log.Cast(message)
}

// TestForwardedCredentials sends requests with all kinds of credentials to the node that
// does not have the session. None goes through the engine, but those that the backend is
// said to need.
func TestForwardedCredentials(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3tWord"
	credentials := []string{"Authorization", "Cookie", "X-Api-Key", "X-Auth-Token", "Proxy-Authorization", "X-Amz-Security-Token"}
	for _, x := range []struct {
		name    string
		forward func(string) bool
		want    []string // what the tool sees of X-Tenant and the credentials
	}{
		{"default", nil, []string{"X-Tenant"}},
		{"none", func(string) bool { return false }, nil},
		{"needed", func(name string) bool { return name == "X-Api-Key" }, []string{"X-Api-Key"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			engine, tap := logtest.New(logtest.Options{}), &tap{}
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
			head := http.Header{
				"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"}, "X-Tenant": {"acme"},
			}
			_, got, _ := exchange(t, urls[0], head, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
			head.Set("Mcp-Session-Id", got.Get("Mcp-Session-Id"))
			for _, name := range credentials {
				head.Set(name, "Bearer "+secret)
			}
			exchange(t, urls[1], head, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			status, _, text := exchange(t, urls[1]+"?api_key="+secret, head, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"heads","arguments":{}}}`)
			if want := fmt.Sprint("saw ", x.want, "."); status != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%d %s, want %s", status, text, want)
			}
			if !tap.has("tools/call") {
				t.Error("the request did not go through the engine")
			}
			ws, res, err := websocket.Dial(t.Context(), urls[1]+"?api_key="+secret, &websocket.DialOptions{HTTPHeader: head, Subprotocols: []string{"mcp", "bearer." + secret}}) //nolint:bodyclose // "you never need to"
			if err != nil {
				t.Fatal(err)
			}
			if ws.Subprotocol() != "mcp" || res.Header.Get("Mcp-Session-Id") != head.Get("Mcp-Session-Id") {
				t.Errorf("handshake: %q %v", ws.Subprotocol(), res.Header)
			}
			if err := ws.Write(t.Context(), websocket.MessageText, []byte(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)); err != nil {
				t.Error(err)
			}
			if _, _, err := ws.Read(t.Context()); err != nil {
				t.Error(err)
			}
			_ = ws.CloseNow()
			if got, want := tap.has(secret), slices.Contains(x.want, "X-Api-Key"); got != want {
				t.Errorf("a credential went through the engine: %v, want %v", got, want)
			}
		})
	}
	http.DefaultClient.CloseIdleConnections()
}
