package holdfast_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/traces"
)

// The handle of a hand-off is enough to get the result of its call. So the places that operators read do not contain it:
// the audit with arguments, traces, the log and the live page.
func TestHandleIsHidden(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	let := make(chan struct{})
	mcp.AddTool(server, &mcp.Tool{Name: "slow"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		select {
		case <-let:
		case <-ctx.Done():
		}
		return nil, nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "echo"}, func(context.Context, *mcp.CallToolRequest, map[string]any) (*mcp.CallToolResult, any, error) {
		return nil, nil, nil
	})
	var audit, log mcptest.Log
	spans, mux := tracetest.NewInMemoryExporter(), http.NewServeMux()
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
		Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), Audit: slog.NewJSONHandler(&audit, nil), AuditArguments: true,
		Traces: traces.New(sdk.NewTracerProvider(sdk.WithSyncer(spans)), nil), Page: mux, HandoffAfter: 100 * time.Millisecond, LegacyOnly: true, Retry: time.Millisecond,
	})
	mux.Handle("/mcp", h)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	id := ""
	post := func(body string) string {
		t.Helper()
		r := mcptest.Post(t, s.URL+"/mcp", body, "Mcp-Session-Id", id)
		id = cmp.Or(id, r.Session())
		return r.Body
	}
	post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	answer := post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","arguments":{}}}`)
	m := regexp.MustCompile(`"handle":"([^"]+)"`).FindStringSubmatch(answer)
	if m == nil {
		t.Fatalf("no handle: %s", answer)
	}
	handle := m[1]
	for i, call := range []string{
		`"name":"holdfast_wait","arguments":{"handle":"` + handle + `","seconds":0}`,
		`"name":"holdfast_wait","arguments":{"handle":"` + strings.Replace(handle, ".", `\u002e`, 1) + `","seconds":0}`,
		`"name":"echo","arguments":{"note":"the handle is ` + handle + `"}`,
		`"name":"holdfast_cancel","arguments":{"handle":"` + handle + `"}`,
	} {
		if answer := post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%s}}`, 2+i, call)); !strings.Contains(answer, `"result"`) {
			t.Errorf("%s: %s", call, answer)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	resp, err := mcptest.Send(ctx, http.MethodGet, s.URL+"/live/events", "")
	if err != nil {
		t.Fatal(err)
	}
	page := make([]byte, 64<<10)
	n, _ := io.ReadAtLeast(resp.Body, page, 1000)
	stop()
	_ = resp.Body.Close()
	close(let)
	mcptest.Check(t, h.Shutdown(t.Context()))
	if lines := audit.String(); strings.Count(lines, `"***"`) < 3 || !strings.Contains(lines, "the handle is ***") {
		t.Errorf("the audit: %s", lines)
	}
	mark := handle[strings.IndexByte(handle, '.')+1:][:16]
	for name, text := range map[string]string{"audit": audit.String(), "log": log.String(), "live page": string(page[:n]), "traces": fmt.Sprintf("%+v", spans.GetSpans())} {
		if strings.Contains(text, mark) || text == "" && name != "log" {
			t.Errorf("the %s: %s", name, text)
		}
	}
}
