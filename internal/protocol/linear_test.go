package protocol

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/testwork"
	"holdfast/jsonrpc"
)

// The work for params and schemas is linear in their members.
func TestLinear(t *testing.T) {
	schema := func(text string) func() { return func() { _, _ = ParamHeaders([]byte(text)) } }
	tests := map[string]func(n int) func(){
		"CheckClear": func(n int) func() {
			m := jsonrpc.Message{Kind: jsonrpc.Request, Method: MethodCallTool, Params: []byte(`{"name":"a",` + testwork.Many(n, `"NAME%d":0`) + `}`)}
			return func() { _ = CheckClear(&m) }
		},
		"annotated arguments": func(n int) func() {
			return schema(`{"properties":{` + testwork.Many(n, `"x%d":{"type":"string","x-mcp-header":"X%d"}`) + `}}`)
		},
		"annotations of one argument": func(n int) func() {
			return schema(`{"properties":{"a":{"type":"string",` + testwork.Many(n, `"x-mcp-header":"X"`) + `}}}`)
		},
		"types of one argument": func(n int) func() {
			return schema(`{"properties":{"a":{"x-mcp-header":"X","type":[` + testwork.Many(n, `"null"`) + `]}}}`)
		},
		"schemas beside": func(n int) func() {
			return schema(`{"x-mcp-header":0,"allOf":[` + testwork.Many(n, `{"type":"string"}`) + `]}`)
		},
		"headers and arguments": func(n int) func() {
			headers := make([]ParamHeader, n)
			for i := range headers {
				headers[i].Path = []string{"a", fmt.Sprint("x", i)}
			}
			arguments := []byte(`{"a":{` + testwork.Many(n, `"x%d":""`) + `}}`)
			return func() { Arguments(headers, arguments) }
		},
		"headers that arguments do not have": func(n int) func() {
			headers := make([]ParamHeader, n)
			for i := range headers {
				headers[i].Path = []string{fmt.Sprint("y", i), "a"}
			}
			arguments := []byte(`{` + testwork.Many(n, `"x%d":{}`) + `}`)
			return func() { Arguments(headers, arguments) }
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 1000, prepare) })
	}
}

// A large schema is parsed only as often as its size allows. A small schema may be nested deeply.
func TestDeepSchema(t *testing.T) {
	deep := func(more string) []byte {
		return []byte(strings.Repeat(`{"properties":{"a":`, 90) + `{"type":"string","x-mcp-header":"X"` + more + `}` + strings.Repeat(`}}`, 90))
	}
	if found, err := ParamHeaders(deep("")); err != nil || len(found) != 1 || len(found[0].Path) != 90 {
		t.Errorf("a small one: %v, %v", found, err)
	}
	if _, err := ParamHeaders(deep(`,"enum":[` + testwork.Many(100_000, `"x%d"`) + `]`)); err == nil {
		t.Error("a large one is read 90 times")
	}
}
