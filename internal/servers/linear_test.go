package servers

import (
	"strings"
	"testing"

	"holdfast/internal/config"
	"holdfast/internal/testwork"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// The work of a server's settings on a message grows with its number of members, and no faster.
func TestLinear(t *testing.T) {
	prefix := "p_"
	conf := &config.Server{}
	conf.Prefix, conf.Deny = &prefix, []string{"*x*y*"}
	tests := map[string]func(n int) func(){
		"list": func(n int) func() {
			result := []byte(`{"tools":[` + testwork.Many(n, `{"name":"t%d"}`) + `]}`)
			return func() { ruledList(conf, "tools/list", result) }
		},
		"hints": func(n int) func() {
			result := []byte(`{"tools":[` + testwork.Many(n, `{"name":"t%d"}`) + `]}`)
			return func() { tools.Hints(result) }
		},
		"members of a tool": func(n int) func() {
			result := []byte(`{"tools":[{"name":"t",` + testwork.Many(n, `"x%d":0`) + `}]}`)
			return func() { ruledList(conf, "tools/list", result) }
		},
		"call": func(n int) func() {
			m := jsonrpc.Message{Kind: jsonrpc.Request, ID: []byte("1"), Method: "tools/call", Params: []byte(`{"name":"p_a",` + testwork.Many(n, `"x%d":0`) + `}`)}
			return func() {
				if _, err := ruledRequest(conf, m); err != nil {
					t.Fatal(err)
				}
			}
		},
		"long name": func(n int) func() {
			m := jsonrpc.Message{Kind: jsonrpc.Request, ID: []byte("1"), Method: "tools/call", Params: []byte(`{"name":"p_` + strings.Repeat("x", 8*n) + `"}`)}
			return func() {
				if _, err := ruledRequest(conf, m); err != nil {
					t.Fatal(err)
				}
			}
		},
		"what a shared server can": func(n int) func() {
			result := []byte(`{"capabilities":{"tools":{},` + testwork.Many(n, `"x%d":{}`) + `}}`)
			return func() { offered(result) }
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 1000, prepare) })
	}
}
