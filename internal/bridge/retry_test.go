package bridge

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/jsonrpc"
)

// A vendor's request that may have run is not sent a second time when the connection
// is cut, and is kept for the next bridge.
func TestConnectVendorOnce(t *testing.T) {
	t.Parallel()
	var charged, listed atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id := jsonrpc.Field(body, "id")
		result := `{}`
		switch jsonrpc.String(jsonrpc.Field(body, "method")) {
		case "initialize":
			w.Header().Set("Mcp-Session-Id", "s")
			result = `{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}`
		case "vendor/charge":
			charged.Add(1)
			panic(http.ErrAbortHandler)
		case "tools/list":
			if listed.Add(1) == 1 {
				panic(http.ErrAbortHandler)
			}
		}
		switch {
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case id == nil:
			w.WriteHeader(http.StatusAccepted)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
		}
	}))
	t.Cleanup(s.Close)
	c := newHost(t, s.URL, t.TempDir())
	c.open()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"vendor/charge","params":{}}`)
	if line := c.read(`"id":1,`); !strings.Contains(line, "outcome unknown") || charged.Load() != 1 {
		t.Errorf("sent %d times, answered %s", charged.Load(), line)
	}
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	if line := c.read(`"id":2,`); !strings.Contains(line, "result") || listed.Load() != 2 {
		t.Errorf("sent %d times, answered %s", listed.Load(), line)
	}
	if !mustRunOnce("vendor/charge") || !mustRunOnce("tools/call") || mustRunOnce("tools/list") {
		t.Error("wrong methods must run once")
	}
}
