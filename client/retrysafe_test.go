package client_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// If a server cuts the connection of each first request, retry-safe requests are sent again,
// and nothing else: neither a tool call nor a vendor's method.
func TestRetrySafeIsSentAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	posts := map[string]int{}
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id, method := jsonrpc.Field(body, "id"), jsonrpc.String(jsonrpc.Field(body, "method"))
		mu.Lock()
		posts[method]++
		first := posts[method] == 1
		mu.Unlock()
		switch {
		case method == "initialize":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`, id)
		case id == nil:
			w.WriteHeader(http.StatusAccepted)
		case first:
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
		}
	}))
	a := newRaw(t, url, client.Options{NoListen: true})
	a.open()
	for i, test := range []struct {
		method string
		sent   int
	}{
		{"tools/list", 2}, {"resources/subscribe", 2}, {"logging/setLevel", 2}, {"tasks/get", 2},
		{"tools/call", 1}, {"vendor/charge", 1}, {"tasks/cancel", 1}, {"subscriptions/listen", 1},
	} {
		id := fmt.Sprint(i + 1)
		a.send(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{"name":"x"}}`, id, test.method)
		m := a.answer(id)
		mu.Lock()
		n := posts[test.method]
		mu.Unlock()
		if unknown := strings.Contains(string(m.Error), `-32010,"message":"outcome unknown: `); n != test.sent || unknown != (test.sent == 1) {
			t.Errorf("%s was sent %d times, and answered %s", test.method, n, m.Raw)
		}
	}
}
