package client

import (
	"fmt"
	"net/http"
	"testing"

	"holdfast/internal/protocol"
	"holdfast/internal/testwork"
	"holdfast/jsonrpc"
)

// The work of a client on a message grows with its number of members, and no faster.
func TestLinear(t *testing.T) {
	c := &Conn{}
	tests := map[string]func(n int) func(){
		"list": func(n int) func() {
			result := []byte(`{"tools":[` + testwork.Many(n, `{"name":"t%d","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}`) + `]}`)
			return func() { c.listed(jsonrpc.Message{Kind: jsonrpc.Response, Result: result}) }
		},
		"headers": func(n int) func() {
			headers := make([]protocol.ParamHeader, n)
			for i := range headers {
				headers[i] = protocol.ParamHeader{Name: "A", Path: []string{fmt.Sprint("x", i)}}
			}
			c.note(fmt.Sprint("h", n), headers)
			k := &call{c: c, request: request{revision: protocol.V20260728, method: protocol.MethodCallTool}}
			k.body = fmt.Appendf(nil, `{"params":{"name":"h%d","arguments":{%s}}}`, n, testwork.Many(n, `"x%d":1`))
			return func() { k.mirror(http.Header{}) }
		},
		"_meta": func(n int) func() {
			meta := []byte(`{"progressToken":1,` + testwork.Many(n, `"x%d":0`) + `}`)
			return func() { withoutToken(meta) }
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 1000, prepare) })
	}
}
