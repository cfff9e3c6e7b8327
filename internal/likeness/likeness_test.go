package likeness

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/testwork"
	"holdfast/jsonrpc"
)

// Two requests are compared by the values of their arguments, and by the ids that their hosts put into _meta.
func TestLikeness(t *testing.T) {
	t.Parallel()
	of := func(params string) Likeness {
		m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return Of(&m, 1, []string{"own"})
	}
	first := of(`{"name":"a","arguments":{"x":[1,{"z":"a b"}],"y":{"p":1,"q":2}},"_meta":{"progressToken":1,"own":"i","sessionId":"s"}}`)
	for params, want := range map[string][2]bool{ // whether the request is repeated, and by the same host
		`{"arguments":{ "y" : {"q":2,"p":1}, "x":[1, {"z":"a b"}] },"name":"a","_meta":{"progressToken":2,"own":"i","sessionId":"s"}}`: {true, true},
		`{"name":"a","arguments":{"x":[1,{"z":"a b"}],"y":{"p":1,"q":2}},"_meta":{"own":"j","sessionId":"s"}}`:                         {true, false},
		`{"name":"a","arguments":{"x":[1,{"z":"a b"}],"y":{"p":1,"q":2}},"_meta":{"sessionId":"s"}}`:                                   {true, false},
		`{"name":"a","arguments":{"x":[1,{"z":"a b"}],"y":{"p":1,"q":2}},"_meta":{"own":"i","sessionId":"t"}}`:                         {},
		`{"name":"b","arguments":{"x":[1,{"z":"a b"}],"y":{"p":1,"q":2}},"_meta":{"own":"i","sessionId":"s"}}`:                         {},
		`{"name":"a","arguments":{"x":[1,{"z":"ab"}],"y":{"p":1,"q":2}},"_meta":{"own":"i","sessionId":"s"}}`:                          {},
		`{"name":"a","arguments":{"x":[1,{"z":"a b"}],"y":{"p":1},"q":2},"_meta":{"own":"i","sessionId":"s"}}`:                         {},
	} {
		l := of(params)
		if got := [2]bool{l.Asked == first.Asked, l.Named == first.Named}; got != want {
			t.Errorf("%s: %v, want %v", params, got, want)
		}
	}
	for _, params := range []string{`{"name":"holdfast_wait"}`, `{"name":"a","task":{}}`, `{"name":"a","requestState":"s"}`, `{}`, `{"name":1}`} {
		if l := of(params); !l.IsZero() {
			t.Errorf("%s is like another request", params)
		}
	}
}

// The time to compare arguments is linear in their length, however they are nested.
func TestLikenessLinear(t *testing.T) {
	for what, text := range map[string]func(n int) string{
		"members": func(n int) string {
			members := make([]string, n)
			for i := range members {
				members[i] = fmt.Sprintf(`"x%d":0`, i)
			}
			return `{` + strings.Join(members, ",") + `}`
		},
		"nested": func(n int) string { return strings.Repeat(`{"x":`, n) + `0` + strings.Repeat(`}`, n) },
	} {
		t.Run(what, func(t *testing.T) {
			testwork.Linear(t, 50, func(n int) func() {
				raw := []byte(text(n))
				return func() { appendAlike(nil, raw, 0) }
			})
		})
	}
}
