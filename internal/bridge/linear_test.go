package bridge

import (
	"fmt"
	"testing"

	"holdfast/internal/testwork"
	"holdfast/jsonrpc"
)

// The work of a bridge is linear in the number of a message's members.
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
			params := []byte(`{"_meta":{"progressToken":1,"traceparent":"",` + testwork.Many(n, `"x%d":0`) + `},` + testwork.Many(n, `"x%d":1.0`) + `}`)
			return func() { fingerprintOf("tools/call", params) }
		},
		"questions": func(n int) func() {
			x := asking(n)
			return func() { x.inputRequests() }
		},
		"answers": func(n int) func() {
			x, h := asking(n), &modernHost{}
			m := jsonrpc.Message{Params: []byte(`{"inputResponses":{` + testwork.Many(n, `"x%d":{}`) + `}}`)}
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
