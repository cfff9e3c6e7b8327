package tools

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/testwork"
)

// ours are Holdfast's own tools.
type ours struct{}

func (ours) IsOn() bool { return true }
func (ours) Tool(name string) (own, nested bool) {
	return name == "own", strings.HasSuffix(name, "_own")
}

// The time to learn a list of tools is linear in the list.
func TestLinear(t *testing.T) {
	testwork.Linear(t, 500, func(n int) func() {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(`{"name":"t%d","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}},"annotations":{"readOnlyHint":true}}`, i)
		}
		result := []byte(`{"tools":[` + strings.Join(all, ",") + `]}`)
		return func() {
			p := readPage(result)
			new(hints).learn(&p, ours{})
		}
	})
}
