package merge

import (
	"log/slog"
	"testing"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/internal/testwork"
)

// The work of merging is linear in the servers' lists and capabilities.
func TestLinear(t *testing.T) {
	b := New(func() []Member {
		return []Member{{Name: "a", Backend: &fake{}, Prefix: "a_"}, {Name: "b", Backend: &fake{}, Prefix: "a_x"}}
	}, slog.New(slog.DiscardHandler))
	of := mcptest.Must(b.Open(t.Context(), backend.Start{}, &client{}))(t)
	t.Cleanup(func() { _ = of.Close() })
	c := of.(*conn)
	list := func(method, member, item string) func(n int) func() {
		return func(n int) func() {
			page := []byte(`{"` + member + `":[` + testwork.Many(n, item) + `]}`)
			return func() { c.itemsOf(listings[method], c.lineup.Load(), 0, page) }
		}
	}
	tests := map[string]func(n int) func(){
		"tools":         list("tools/list", "tools", `{"name":"t%d"}`),
		"equal tools":   list("tools/list", "tools", `{"name":"t"}`),
		"tools of both": list("tools/list", "tools", `{"name":"x%d"}`),
		"resources":     list("resources/list", "resources", `{"uri":"r:%d"}`),
		"members of a tool": func(n int) func() {
			page := []byte(`{"tools":[{"name":"t",` + testwork.Many(n, `"x%d":0`) + `}]}`)
			return func() { c.itemsOf(listings["tools/list"], c.lineup.Load(), 0, page) }
		},
		"capabilities": func(n int) func() {
			of := []byte(`{"tools":{` + testwork.Many(n, `"x%d":0`) + `},` + testwork.Many(n, `"tools":{}`) + `}`)
			return func() { addCapabilities(new(union), of) }
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) { testwork.Linear(t, 1000, prepare) })
	}
}
