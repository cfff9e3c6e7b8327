package holdfast_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"

	"holdfast/internal/mcptest"
)

// An operator cancels a call on the live page: its client is told that it was an operator, the context
// of its tool ends, and the audit says that an operator cancelled it.
func TestOperatorCancels(t *testing.T) {
	t.Parallel()
	for _, era := range []struct{ name, meta string }{
		{name: "legacy"},
		{name: "modern", meta: `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`},
	} {
		t.Run(era.name, func(t *testing.T) {
			t.Parallel()
			server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
			began, cancelled := make(chan struct{}, 1), make(chan struct{}, 1)
			mcp.AddTool(server, &mcp.Tool{Name: "slow"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
				began <- struct{}{}
				<-ctx.Done()
				cancelled <- struct{}{}
				return nil, nil, ctx.Err()
			})
			var audit bytes.Buffer
			mux := http.NewServeMux()
			h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
				Logger: slog.New(slog.DiscardHandler), Audit: slog.NewJSONHandler(&audit, nil), Page: mux, PageToken: "secret", Response: holdfast.ResponseSSE, Eras: holdfast.ErasBoth,
			})
			mux.Handle("/mcp", h)
			s := httptest.NewServer(mux)
			t.Cleanup(s.Close)

			var id string
			post := func(body string) string {
				r, err := mcptest.Exchange(t.Context(), http.MethodPost, s.URL+"/mcp", body, "Mcp-Session-Id", id)
				if err != nil {
					t.Error(err)
				}
				id = cmp.Or(id, r.Session())
				return r.Body
			}
			if era.meta == "" {
				post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
				post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			}
			told := make(chan string, 1)
			go func() {
				told <- post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow","arguments":{}` + era.meta + `}}`)
			}()
			select {
			case <-began:
			case text := <-told:
				t.Fatal(text)
			}
			for done := false; !done; { // the call may not have a stream yet
				r := mcptest.Post(t, s.URL+"/live/action", `{"action":"cancel","call":"`+callOnPage(t, s.URL)+`"}`, "Holdfast-Admin-Token", "secret")
				done = r.Status == http.StatusNoContent
			}
			if text := <-told; !strings.Contains(text, `"id":7`) || !strings.Contains(text, `"message":"cancelled by an operator"`) {
				t.Errorf("the client is told %s", text)
			}
			<-cancelled
			if err := h.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if !strings.Contains(audit.String(), `"tool":"slow","outcome":"cancelled_by_operator"`) {
				t.Errorf("the audit: %s", audit.String())
			}
		})
	}
}

// callOnPage returns the name of the call of the tool "slow" on the live page, once it is there.
func callOnPage(t *testing.T, url string) string {
	t.Helper()
	return onPage(t, url, func(v *pageView) (name string) {
		for _, c := range v.Calls {
			if c.Tool == "slow" {
				name = c.UID
			}
		}
		return name
	})
}

type pageView struct {
	Calls    []struct{ UID, Tool string }
	Sessions []struct{ Name string }
}

// onPage passes each state of the live page to find, until that returns a name.
func onPage(t *testing.T, url string, find func(*pageView) string) (name string) {
	t.Helper()
	page := (&mcptest.Client{URL: url + "/live/events"}).Stream(t, http.MethodGet, "")
	defer page.Close()
	for name == "" {
		event := mcptest.Must(page.Next())(t)
		if len(event.Data) > 0 {
			var v pageView
			mcptest.Check(t, json.Unmarshal(event.Data, &v))
			name = find(&v)
		}
	}
	return name
}
