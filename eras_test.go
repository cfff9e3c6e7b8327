package holdfast_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"

	"holdfast/internal/mcptest"
)

// erasRequests are requests of clients of both eras.
func erasRequests() map[string]struct{ method, path, body, header string } {
	type request = struct{ method, path, body, header string }
	const modern = "Mcp-Protocol-Version: 2026-07-28, Mcp-Method: "
	discover := func(extension string) request {
		return request{"POST", "/mcp", `{"jsonrpc":"2.0","id":"d","method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientCapabilities":{"extensions":{` + extension + `}}}}}`, modern + "server/discover"}
	}
	return map[string]request{
		"initialize":        {"POST", "/mcp", `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`, ""},
		"call":              {"POST", "/mcp", `{"jsonrpc":"2.0","id":"c","method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, modern + "tools/list"},
		"discover":          discover(""),
		"discover, other":   discover(`"io.modelcontextprotocol/ui":{}`),
		"discover, tasks":   discover(`"io.modelcontextprotocol/tasks":{}`),
		"discover, resumes": discover(`"holdfast/resumableRequests":{}`),
		"discover, bare":    {"POST", "/mcp", `{"jsonrpc":"2.0","id":"d","method":"server/discover"}`, ""},
		"GET":               {"GET", "/mcp", "", "Mcp-Session-Id: none"},
		"DELETE":            {"DELETE", "/mcp", "", "Mcp-Session-Id: none"},
		"WebSocket":         {"GET", "/mcp", "", "Mcp-Session-Id: none, Connection: Upgrade, Upgrade: websocket, Sec-WebSocket-Version: 13, Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="},
		"stream URL":        {"POST", "/mcp?stream=a.b", `[{"jsonrpc":"2.0","id":1,"result":{}}]`, ""},
		"status":            {"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"requests/getStatus","params":{"requestId":1,"resumeToken":"none"}}`, ""},
		"notification":      {"POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id: none"},
		"HTTP+SSE":          {"POST", "/sse", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, ""},
	}
}

// TestErasByName checks the answer to each kind of request with each choice of eras: the status, and
// the code of an error or another part of the answer.
func TestErasByName(t *testing.T) {
	t.Parallel()
	const (
		refused  = "400 -32022"
		served   = "200 result"
		unknown  = "400 -32602" // a request without _meta
		missing  = "404"
		notFound = "405"
	)
	legacyRows := map[string]string{
		"GET": missing, "DELETE": missing, "WebSocket": missing, "stream URL": missing, "status": "200 -32602", "notification": missing, "HTTP+SSE": "400 sessionId",
		"initialize": served,
	}
	rows := func(others map[string]string) map[string]string {
		all := make(map[string]string)
		for name, what := range legacyRows {
			all[name] = what
		}
		for name, what := range others {
			all[name] = what
		}
		return all
	}
	both := rows(map[string]string{
		"call": served, "discover": served, "discover, other": served, "discover, tasks": served, "discover, resumes": served, "discover, bare": unknown,
	})
	legacy := rows(map[string]string{
		"call": refused, "discover": refused, "discover, other": refused, "discover, tasks": refused, "discover, resumes": refused, "discover, bare": refused,
	})
	stateless := rows(both)
	stateless["GET"], stateless["DELETE"], stateless["WebSocket"], stateless["HTTP+SSE"] = notFound, notFound, notFound, notFound
	stateless["notification"] = "202"
	delete(stateless, "status") // the backend answers it
	for name, c := range map[string]struct {
		o    holdfast.Options
		want map[string]string
	}{
		"default":            {holdfast.Options{}, legacy},
		"legacy":             {holdfast.Options{Eras: holdfast.ErasLegacy}, legacy},
		"LegacyOnly":         {holdfast.Options{LegacyOnly: true}, legacy},
		"unknown":            {holdfast.Options{Eras: "newest"}, legacy},
		"both":               {holdfast.Options{Eras: holdfast.ErasBoth}, both},
		"default, stateless": {holdfast.Options{Stateless: true}, stateless},
		"auto, stateless":    {holdfast.Options{Stateless: true, Eras: holdfast.ErasAuto}, stateless},
		"auto": {holdfast.Options{Eras: holdfast.ErasAuto}, rows(map[string]string{
			"call": served, "discover": refused, "discover, other": refused, "discover, tasks": served, "discover, resumes": served, "discover, bare": refused,
		})},
		"auto, no tasks": {holdfast.Options{Eras: holdfast.ErasAuto, TaskAfter: -1}, rows(map[string]string{
			"call": served, "discover": refused, "discover, other": refused, "discover, tasks": refused, "discover, resumes": served, "discover, bare": refused,
		})},
		"modern": {holdfast.Options{Eras: holdfast.ErasModern}, map[string]string{
			"call": served, "discover": served, "discover, other": served, "discover, tasks": served, "discover, resumes": served, "discover, bare": unknown,
			"initialize": refused, "status": refused, "notification": refused, "stream URL": missing,
			"GET": notFound, "DELETE": notFound, "WebSocket": "404 session not found", "HTTP+SSE": notFound,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.o.Logger = slog.New(slog.DiscardHandler)
			server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
			mcp.AddTool(server, &mcp.Tool{Name: "t"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
				return &mcp.CallToolResult{}, nil, nil
			})
			h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &c.o)
			mux := http.NewServeMux()
			mux.Handle("/mcp", h)
			mux.Handle("/sse", h.SSE("/sse"))
			web := mcptest.Serve(t, mux)
			mcptest.ShutDownAtEnd(t, h, time.Second)
			for what, r := range erasRequests() {
				want, ok := c.want[what]
				if !ok {
					continue
				}
				got := erasAnswer(t, web, r)
				status, of, _ := strings.Cut(want, " ")
				if !strings.HasPrefix(got, status+" ") || !strings.Contains(got, of) {
					t.Errorf("%s: %s, want %s", what, got, want)
				}
				if of == "-32022" && (!strings.Contains(got, "--eras both") || !strings.Contains(got, `"supported":["20`)) {
					t.Errorf("%s: %s: it does not say what to do", what, got)
				}
				if what == "discover" && of == "result" {
					if offers := strings.Contains(got, "2025-11-25"); offers == (c.o.Eras == holdfast.ErasModern) {
						t.Errorf("%s: %s", what, got)
					}
				}
			}
		})
	}
}

// erasAnswer makes a request, and returns the status and the body.
func erasAnswer(t *testing.T, url string, r struct{ method, path, body, header string }) string {
	t.Helper()
	var header []string
	for pair := range strings.SplitSeq(r.header, ", ") {
		if name, value, ok := strings.Cut(pair, ": "); ok {
			header = append(header, name, value)
		}
	}
	answer, err := mcptest.Exchange(t.Context(), r.method, url+r.path, r.body, header...)
	if err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("%d %s", answer.Status, answer.Body)
}
