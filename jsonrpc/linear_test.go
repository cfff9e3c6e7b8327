package jsonrpc

import (
	"strings"
	"testing"

	"holdfast/internal/testwork"
)

// The work for a message is linear in its members.
func TestLinear(t *testing.T) {
	request := func(params string) []byte {
		return []byte(`{"jsonrpc":"2.0","id":1,"method":"m","params":` + params + `}`)
	}
	parse := func(text []byte) func() { return func() { _, _ = Parse(text) } }
	tests := map[string]func(n int) func(){
		"members of a message": func(n int) func() {
			return parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"m",` + testwork.Many(n, `"x%d":0`) + `}`))
		},
		"equal members": func(n int) func() {
			return parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"m",` + testwork.Many(n, `"x":0`) + `}`))
		},
		"like members": func(n int) func() {
			return parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"m",` + testwork.Many(n, `"PARAMS":0`) + `}`))
		},
		"members of params": func(n int) func() { return parse(request(`{` + testwork.Many(n, `"x%d":0`) + `}`)) },
		"elements":          func(n int) func() { return parse(request(`[` + testwork.Many(n, `[0,""]`) + `]`)) },
		"deep elements": func(n int) func() {
			return parse(request(`[` + testwork.Many(n, strings.Repeat("[", 50)+strings.Repeat("]", 50)) + `]`))
		},
		"a batch": func(n int) func() {
			text := []byte(`[` + testwork.Many(n/8, `{"jsonrpc":"2.0","id":%d,"method":"m"}`) + `]`)
			return func() { _, _, _ = ParseBody(text) }
		},
		"Field": func(n int) func() {
			text := []byte(`{"a":{` + testwork.Many(n, `"x%d":{}`) + `,"b":1}}`)
			return func() { Field(text, "a", "b") }
		},
		"Field, not there": func(n int) func() {
			text := []byte(`{"a":{` + testwork.Many(n, `"x%d":"\""`) + `}}`)
			return func() { Field(text, "a", "b") }
		},
		"Field, escaped names": func(n int) func() {
			text := []byte(`{` + testwork.Many(n, `"\u0078%d\n":0`) + `}`)
			return func() { Field(text, "b") }
		},
		"Set": func(n int) func() {
			text := []byte(`{"a":{` + testwork.Many(n, `"x%d":{}`) + `,"b":1}}`)
			return func() { Set(text, []byte("2"), "a", "b") }
		},
		"Set, a new member": func(n int) func() {
			text := []byte(`{"a":{` + testwork.Many(n, `"x%d":{}`) + `}}`)
			return func() { Set(text, []byte("2"), "a", "b", "c") }
		},
		"a long text": func(n int) func() {
			text := []byte(`"` + strings.Repeat(`\u00e4\n`, n) + `"`)
			return func() { String(text) }
		},
		"a long id": func(n int) func() {
			text := []byte(strings.Repeat(`7`, n) + ".0")
			return func() { Key(text) }
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 4000, prepare) })
	}
}
