package client_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// When a server cuts the connection of each first request, only retry-safe requests are sent
// again: no tool calls, and no requests of a vendor's method.
func TestRetrySafeIsSentAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	posts := map[string]int{}
	url := mcptest.Serve(t, mcptest.Methods{"*": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
		mu.Lock()
		posts[m.Method]++
		first := posts[m.Method] == 1
		mu.Unlock()
		if first {
			cut()
		}
		mcptest.JSON(w, mcptest.Result(m, "{}"))
	}})
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
