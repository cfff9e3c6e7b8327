package legacytask

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/testwork"
	"holdfast/jsonrpc"
)

// many returns n texts with commas in between; %d stands for a text's number.
func many(n int, text string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(text, "%d", fmt.Sprint(i))
	}
	return strings.Join(all, ",")
}

// The work for messages is linear in their members.
func TestLinear(t *testing.T) {
	for name, prepare := range map[string]func(n int) func(){
		"request of a task": func(n int) func() {
			m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{},` + many(n, `"x%d":0`) + `}}`))
			if err != nil {
				t.Fatal(err)
			}
			return func() { new(task).Plain(m) }
		},
		"list of tools": func(n int) func() {
			response := []byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":[` + many(n, `{"name":"t%d","execution":{}}`) + `]}}`)
			return func() { support(response) }
		},
	} {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 500, prepare) })
	}
}
