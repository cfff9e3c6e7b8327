package session

import (
	"fmt"
	"net/http"
	"testing"

	"holdfast/internal/protocol"
	"holdfast/internal/testwork"
	"holdfast/jsonrpc"
)

// The work of a session on a message grows with its number of members, and no faster.
func TestLinear(t *testing.T) {
	request := func(params string) jsonrpc.Message {
		raw := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`)
		m, err := jsonrpc.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	tests := map[string]func(n int) func(){
		"request of a task with a state": func(n int) func() {
			m := request(`{"requestState":"s",` + testwork.Many(n, `"x%d":0`) + `}`)
			return func() { newRounds(&m, http.Header{}) }
		},
		"request of a task with answers": func(n int) func() {
			m := request(`{` + testwork.Many(n, `"x%d":0`) + `,"inputResponses":{` + testwork.Many(n, `"x%d":{}`) + `}}`)
			return func() { newRounds(&m, http.Header{}) }
		},
		"answers to the questions of a task": func(n int) func() {
			answer := jsonrpc.Message{Kind: jsonrpc.Response, Result: []byte(`{"action":"accept"}`)}
			return func() {
				w := &round{inputs: make(map[string][]byte), open: n + 1}
				for i := range n {
					w.answered(fmt.Sprint("q", i), &answer)
				}
			}
		},
		"questions, and what a client can": func(n int) func() {
			s := &Session{identity: identity{kind: kind{modern: protocol.V20260728, carrier: &carrier{capabilities: []byte(`{` + testwork.Many(n, `"x%d":0`) + `,"elicitation":{}}`)}}}}
			result := []byte(`{"resultType":"input_required","inputRequests":{` + testwork.Many(n, `"q%d":{"method":"elicitation/create","params":{}}`) + `}}`)
			return func() {
				if refusal := s.carrier.checkInput([]byte("1"), &jsonrpc.Message{Result: result}); refusal != nil {
					t.Fatal(string(refusal))
				}
			}
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 500, prepare) })
	}
}
