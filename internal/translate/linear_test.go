package translate

import (
	"testing"

	"holdfast/internal/testwork"
)

// The work of changing messages is linear in their members.
func TestLinear(t *testing.T) {
	tests := map[string]func(n int) func(){
		"params for a legacy server": func(n int) func() {
			params := []byte(`{"_meta":{"progressToken":1,` + testwork.Many(n, `"x%d":0`) + `},` + testwork.Many(n, `"x%d":0`) + `}`)
			return func() { legacyParams(params, []byte("2")) }
		},
		"what a client says of itself": func(n int) func() {
			params := []byte(`{"_meta":{"io.modelcontextprotocol/clientCapabilities":{` + testwork.Many(n, `"x%d":0`) + `},` + testwork.Many(n, `"io.modelcontextprotocol/clientInfo":{}`) + `}}`)
			return func() { initializeParams(readMeta(params)) }
		},
		"result for a modern client": func(n int) func() {
			result := []byte(`{"resultType":"other","_meta":{` + testwork.Many(n, `"x%d":0`) + `},` + testwork.Many(n, `"x%d":0`) + `}`)
			return func() { modernResult("tools/call", result, []byte(`{}`)) }
		},
		"result for a legacy client": func(n int) func() {
			result := []byte(`{"_meta":{"io.modelcontextprotocol/serverInfo":{},` + testwork.Many(n, `"x%d":0`) + `},` + testwork.Many(n, `"x%d":0`) + `}`)
			return func() { legacyResult("tools/list", result) }
		},
		"error": func(n int) func() {
			failure := []byte(`{"code":-32002,"message":"","data":{` + testwork.Many(n, `"x%d":0`) + `}}`)
			return func() { modernError(failure, []byte(`"r:1"`)) }
		},
		"result of a task": func(n int) func() {
			result := []byte(`{"_meta":{"io.modelcontextprotocol/related-task":{},` + testwork.Many(n, `"x%d":0`) + `},` + testwork.Many(n, `"x%d":0`) + `}`)
			return func() { withoutRelated(result) }
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 2000, prepare) })
	}
}
