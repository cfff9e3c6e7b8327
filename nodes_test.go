package holdfast_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
)

// TestNodes has two handlers share a store. A tool that is called through the one
// that does not have the session is told who calls it.
func TestNodes(t *testing.T) {
	t.Parallel()
	engine := logtest.New(logtest.Options{})
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		return &auth.TokenInfo{UserID: token, Scopes: []string{"tools"}, Expiration: time.Now().Add(time.Hour)}, nil
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "who", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "who"}, func(_ context.Context, req *mcp.CallToolRequest, _ any) (*mcp.CallToolResult, any, error) {
		info := req.Extra.TokenInfo
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: info.UserID + " " + info.Scopes[0]}}}, nil, nil
	})
	var urls []string
	var handlers []*holdfast.Handler
	for range 2 {
		store := durable.New(engine.Open(), durable.Options{Logger: slog.New(slog.DiscardHandler)})
		defer store.Close()
		h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
			Store: store, Logger: slog.New(slog.DiscardHandler),
		})
		web := httptest.NewServer(auth.RequireBearerToken(verify, nil)(h))
		defer web.Close()
		urls, handlers = append(urls, web.URL), append(handlers, h)
	}
	post := func(url, id, body string) (int, http.Header, string) {
		t.Helper()
		head := http.Header{
			"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"}, "Authorization": {"Bearer alice"},
		}
		if id != "" {
			head.Set("Mcp-Session-Id", id)
		}
		return exchange(t, url, head, body)
	}
	_, head, _ := post(urls[0], "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	id := head.Get("Mcp-Session-Id")
	post(urls[1], id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	call := func(url string) {
		t.Helper()
		status, _, text := post(url, id, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"who","arguments":{}}}`)
		if status != http.StatusOK || !strings.Contains(text, "alice tools") {
			t.Errorf("%d %s", status, text)
		}
	}
	call(urls[0])
	call(urls[1])
	for i, h := range handlers {
		if err := h.Ready(); err != nil {
			t.Errorf("handler %d: %v", i, err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := h.Shutdown(ctx); err != nil {
			t.Errorf("handler %d: %v", i, err)
		}
		if h.Ready() == nil {
			t.Errorf("handler %d is ready after its end", i)
		}
		if i == 0 {
			call(urls[1]) // taken over
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// exchange POSTs a message, and returns all of the answer.
func exchange(t *testing.T, url string, head http.Header, body string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = head.Clone()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(text)
}
