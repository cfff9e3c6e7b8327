package sdk

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A conversation that has ended leaves no state in the backend, also if messages are
// still delivered to it.
func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "x", InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
	b := New(func(*http.Request) *mcp.Server { return server })
	out := make(sink, 100)
	start := backend.Start{HTTP: httptest.NewRequest(http.MethodPost, "/", nil)}
	for range 20 {
		conn := mcptest.Must(b.Open(t.Context(), start, out))(t)
		deliver := func(text string) error {
			m := mcptest.Must(jsonrpc.Parse([]byte(text)))(t)
			return conn.Deliver(backend.Inbound{Message: m})
		}
		mcptest.Check(t, deliver(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`))
		if m := <-out; m.Kind != jsonrpc.Response || m.Error != nil {
			t.Fatalf("got %s", m.Raw)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		refused := 0
		for range 40 { // more than the queue of the ended conversation holds
			for _, text := range []string{
				`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"x"}}`,
				`{"jsonrpc":"2.0","id":3,"method":"ping"}`,
				`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
				`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`,
			} {
				if deliver(text) != nil {
					refused++
				}
			}
		}
		if refused == 0 {
			t.Error("all is taken after the end")
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.extras); n > 0 {
		t.Errorf("%d extras are left", n)
	}
	if n := len(b.known); n != 1 {
		t.Errorf("%d servers are known", n)
	}
}
