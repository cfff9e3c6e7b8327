package servers_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
)

// BenchmarkCall makes calls of a process: at its own path, merged with two other servers, and shared.
func BenchmarkCall(b *testing.B) {
	exe := mcptest.Must(os.Executable())(b)
	process := fmt.Sprintf(`{"command": %q, "args": ["x", "y"], "env": {%q: "1"}, "holdfast": {"share": `, exe, standIn)
	f := newFarm(b, `{"mcpServers": {"one": `+process+`false}}, "all": `+process+`true}}, "other": `+process+`false}}}, "holdfast": {"merge": true}}`)
	for _, c := range []struct{ name, path, tool string }{
		{"alone", "/one/mcp", "pid"}, {"merged", "/mcp", "one_pid"}, {"shared", "/all/mcp", "pid"},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := f.connect(c.path)
			b.ReportAllocs()
			for b.Loop() {
				mcptest.Must(s.CallTool(context.Background(), &mcp.CallToolParams{Name: c.tool, Arguments: message{"x"}}))(b)
			}
		})
	}
}
