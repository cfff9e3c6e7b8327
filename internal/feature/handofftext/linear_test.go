package handofftext

import (
	"testing"
	"time"

	"holdfast/internal/testwork"
)

// The work for results about handed-off calls is linear in their members.
func TestLinear(t *testing.T) {
	tests := map[string]func(n int) func(){
		"list": func(n int) func() {
			response := []byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":[` + testwork.Many(n, `{"name":"t%d"}`) + `]}}`)
			return func() { AddTools(response, time.Second) }
		},
		"result": func(n int) func() {
			response := []byte(`{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete",` + testwork.Many(n, `"x%d":0`) + `,"_meta":{` + testwork.Many(n, `"x%d":0`) + `}}}`)
			return func() { Waited(State{Status: Completed, Response: response}, time.Second, Form{}) }
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 1000, prepare) })
	}
}
