package client_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A server may take a call's connection for lost, and continue the call on the standalone stream.
// Messages that came there are not delivered again when that connection is read after all.
func TestContinuedOnStandaloneStream(t *testing.T) {
	t.Parallel()
	for name, hello := range map[string]string{"ours": keyedGreeting, "another": greeting} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			heard, listens := make(chan struct{}), make(chan struct{})
			const progress = "id: c.1.%d\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":%d}}\n\n"
			url := mcptest.Serve(t, mcptest.Methods{
				"initialize": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
					w.Header().Set("Mcp-Session-Id", "s")
					mcptest.JSON(w, fmt.Sprintf(hello, m.ID))
				},
				"GET": func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
					open(w, r, listens, "")
					open(w, r, nil, progress, 1, 1)
				},
				"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
					events("")(w, r, m)
					close(listens)
					<-heard
					fmt.Fprintf(w, progress+progress+data(mcptest.Result(m, "{}")), 1, 1, 2, 2)
				},
			})
			r := newRaw(t, url, client.Options{})
			r.open()
			r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
			var told []string
			r.until(func(m jsonrpc.Message) bool {
				if m.Method == "notifications/progress" {
					if told = append(told, string(jsonrpc.Field(m.Params, "progress"))); len(told) == 1 {
						close(heard)
					}
				}
				return m.Kind == jsonrpc.Response
			})
			if got := strings.Join(told, " "); got != "1 2" {
				t.Errorf("progress came as %s", got)
			}
		})
	}
}
