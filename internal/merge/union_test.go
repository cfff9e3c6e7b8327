package merge

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/testwork"
)

// The objects of servers are merged: members by name, array elements once. Where values differ, the first server's value stays.
func TestUnion(t *testing.T) {
	t.Parallel()
	for _, one := range []struct{ first, second, want string }{
		{`{}`, `{"a":1}`, `{"a":1}`},
		{`{"a":1}`, `{"a":2,"b":3}`, `{"a":1,"b":3}`},
		{`{"a":{"x":1,"y":[1.50]}}`, `{"a":{"x":2,"z":{}}}`, `{"a":{"x":1,"y":[1.50],"z":{}}}`},
		{`{"a":["x","y"]}`, `{"a":["y","z"]}`, `{"a":["x","y","z"]}`},
		{`{"a":false,"b":true}`, `{"a":true,"b":false}`, `{"a":true,"b":true}`},
		{`{"a":{}}`, `{"a":[1]}`, `{"a":{}}`},
		{`{"a":"<é>"}`, `{"a":null}`, `{"a":"<é>"}`},
		{`{"a":null,"b":null,"c":null}`, `{"a":{"x":1},"b":[1],"c":null}`, `{"a":{"x":1},"b":[1],"c":null}`},
		{`{"a\"b":{}}`, `{"a\"b":{"c":1}}`, `{"a\"b":{"c":1}}`},
	} {
		var u union
		u.addAll([]byte(one.first))
		u.addAll([]byte(one.second))
		if got := string(u.text()); got != one.want {
			t.Errorf("%s and %s: %s, want %s", one.first, one.second, got, one.want)
		}
	}
}

// Capabilities are merged, listChanged is set, and tasks are removed.
func TestAddCapabilities(t *testing.T) {
	t.Parallel()
	var u union
	addCapabilities(&u, []byte(`{"tools":{"listChanged":false},"tasks":{"list":{}},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["a"]}}}`))
	addCapabilities(&u, []byte(`{"resources":{"subscribe":true},"vendor":{"x":1},"experimental":{"e":{}},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["b"]},"o/p":{}}}`))
	const want = `{"tools":{"listChanged":true},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["a","b"]},"o/p":{}},"resources":{"subscribe":true,"listChanged":true},"vendor":{"x":1},"experimental":{"e":{}}}`
	if got := string(u.text()); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// A capability that a server writes as null does not hide that of another server.
func TestNullCapability(t *testing.T) {
	t.Parallel()
	var u union
	addCapabilities(&u, []byte(`{"tools":{},"resources":null,"prompts":null}`))
	addCapabilities(&u, []byte(`{"tools":null,"resources":{"subscribe":true},"prompts":{}}`))
	const want = `{"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true}}`
	if got := string(u.text()); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// The work is linear in the servers' objects, however deep they are.
func TestUnionIsLinear(t *testing.T) {
	for name, text := range map[string]func(n int) string{
		"deep": func(n int) string {
			return strings.Repeat(`{"a":`, min(n, 900)) + `{` + testwork.Many(n, `"x%d":0`) + `}` + strings.Repeat("}", min(n, 900))
		},
		"wide":   func(n int) string { return `{"a":{` + testwork.Many(n, `"x%d":{}`) + `}}` },
		"arrays": func(n int) string { return `{"a":[` + testwork.Many(n, `%d`) + `]}` },
	} {
		t.Run(name, func(t *testing.T) {
			testwork.Linear(t, 1000, func(n int) func() {
				object := []byte(text(n))
				return func() {
					var u union
					for range 3 {
						u.addAll(object)
					}
					_ = fmt.Sprint(len(u.text()))
				}
			})
		})
	}
}
