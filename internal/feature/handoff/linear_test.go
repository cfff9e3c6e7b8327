package handoff

import (
	"fmt"
	"strings"
	"testing"
	"time"

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

// What is said of calls that were handed off grows with the members of results, and no faster.
func TestLinear(t *testing.T) {
	tests := map[string]func(n int) func(){
		"list": func(n int) func() {
			response := []byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":[` + many(n, `{"name":"t%d"}`) + `]}}`)
			return func() { AddTools(response, time.Second) }
		},
		"result": func(n int) func() {
			response := []byte(`{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete",` + many(n, `"x%d":0`) + `,"_meta":{` + many(n, `"x%d":0`) + `}}}`)
			return func() { Waited(State{Status: Completed, Response: response}, time.Second, Form{}) }
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 1000, prepare) })
	}
}
