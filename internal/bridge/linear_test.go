package bridge

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/testwork"
	"holdfast/jsonrpc"
)

// many returns n texts with commas in between; %d stands for their number.
func many(n int, text string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(text, "%d", fmt.Sprint(i))
	}
	return strings.Join(all, ",")
}

// What a bridge does with messages grows with their members, and no faster.
func TestLinear(t *testing.T) {
	asking := func(n int) *exchange {
		x := &exchange{}
		for i := range n {
			x.questions = append(x.questions, jsonrpc.Message{ID: fmt.Append(nil, i), Method: "elicitation/create", Params: []byte(`{"message":"?"}`)})
		}
		return x
	}
	tests := map[string]func(n int) func(){
		"fingerprint": func(n int) func() {
			params := []byte(`{"_meta":{"progressToken":1,"traceparent":"",` + many(n, `"x%d":0`) + `},` + many(n, `"x%d":1.0`) + `}`)
			return func() { fingerprintOf("tools/call", params) }
		},
		"questions": func(n int) func() {
			x := asking(n)
			return func() { x.inputRequests() }
		},
		"answers": func(n int) func() {
			x, h := asking(n), &modernHost{}
			m := jsonrpc.Message{Params: []byte(`{"inputResponses":{` + many(n, `"x%d":{}`) + `}}`)}
			return func() {
				if missing := h.reply(x, m); missing != n {
					t.Fatal(missing)
				}
			}
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 1000, prepare) })
	}
}
