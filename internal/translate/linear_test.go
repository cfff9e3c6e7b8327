package translate

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/testwork"
)

// many returns n texts with commas in between; %d stands for their number.
func many(n int, text string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(text, "%d", fmt.Sprint(i))
	}
	return strings.Join(all, ",")
}

// What is changed in messages grows with their members, and no faster.
func TestLinear(t *testing.T) {
	tests := map[string]func(n int) func(){
		"params for a legacy server": func(n int) func() {
			params := []byte(`{"_meta":{"progressToken":1,` + many(n, `"x%d":0`) + `},` + many(n, `"x%d":0`) + `}`)
			return func() { legacyParams(params, []byte("2")) }
		},
		"what a client says of itself": func(n int) func() {
			params := []byte(`{"_meta":{"io.modelcontextprotocol/clientCapabilities":{` + many(n, `"x%d":0`) + `},` + many(n, `"io.modelcontextprotocol/clientInfo":{}`) + `}}`)
			return func() { initializeParams(readMeta(params)) }
		},
		"result for a modern client": func(n int) func() {
			result := []byte(`{"resultType":"other","_meta":{` + many(n, `"x%d":0`) + `},` + many(n, `"x%d":0`) + `}`)
			return func() { modernResult("tools/call", result, []byte(`{}`)) }
		},
		"result for a legacy client": func(n int) func() {
			result := []byte(`{"_meta":{"io.modelcontextprotocol/serverInfo":{},` + many(n, `"x%d":0`) + `},` + many(n, `"x%d":0`) + `}`)
			return func() { legacyResult("tools/list", result) }
		},
		"error": func(n int) func() {
			failure := []byte(`{"code":-32002,"message":"","data":{` + many(n, `"x%d":0`) + `}}`)
			return func() { modernError(failure, []byte(`"r:1"`)) }
		},
		"result of a task": func(n int) func() {
			result := []byte(`{"_meta":{"io.modelcontextprotocol/related-task":{},` + many(n, `"x%d":0`) + `},` + many(n, `"x%d":0`) + `}`)
			return func() { withoutRelated(result) }
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 2000, prepare) })
	}
}
