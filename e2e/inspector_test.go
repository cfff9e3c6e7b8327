package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// TestInspector uses the command line of the MCP Inspector: of the last version that runs on
// Node 20, and of a current version, which needs Node 22.
func TestInspector(t *testing.T) {
	for _, inspector := range []struct{ name, node, script string }{
		{"0.15", "node", inspector1},
		{"2", node22, inspector2},
	} {
		t.Run(inspector.name, func(t *testing.T) {
			t.Parallel()
			dir := npm(t, inspector.script)
			node := inspector.node
			if node != "node" {
				node = filepath.Join(npm(t, node), node)
			}
			inspect := func(t *testing.T, args ...string) []byte {
				t.Helper()
				return run(t, node, append([]string{filepath.Join(dir, inspector.script)}, args...)...)
			}
			t.Run("everything", func(t *testing.T) { inspectEverything(t, inspect) })
			t.Run("try it", func(t *testing.T) { inspectDemo(t, inspect) })
		})
	}
}

func inspectEverything(t *testing.T, inspect func(*testing.T, ...string) []byte) {
	p := serveEverything(t)
	var list struct {
		Tools []struct{ Name string }
	}
	unmarshal(t, inspect(t, "--cli", p.URL, "--transport", "http", "--method", "tools/list"), &list)
	names := make(map[string]bool)
	for _, tool := range list.Tools {
		names[tool.Name] = true
	}
	if !names["echo"] || !names["trigger-long-running-operation"] {
		t.Errorf("tools/list: got %v", names)
	}
	wantText(t, inspect(t, "--cli", p.URL, "--transport", "http",
		"--method", "tools/call", "--tool-name", "echo", "--tool-arg", "message=hello"), "Echo: hello")
}

// inspectDemo runs the command line that serve --demo suggests, unchanged.
func inspectDemo(t *testing.T, inspect func(*testing.T, ...string) []byte) {
	p := serve(t, "--demo")
	args, ok := strings.CutPrefix(p.Try, "npx -y @modelcontextprotocol/inspector ")
	if !ok {
		t.Fatalf("the command line to try has another form: %s", p.Try)
	}
	wantText(t, inspect(t, strings.Fields(args)...), "5")
}

// wantText checks that a tool's result has one content, with the text want.
func wantText(t *testing.T, result []byte, want string) {
	t.Helper()
	var got toolResult
	unmarshal(t, result, &got)
	if len(got.Content) != 1 || got.Content[0].Text != want {
		t.Errorf("got %s, want the text %q", result, want)
	}
}

type toolResult struct {
	Content []struct{ Text string }
	IsError bool
}

func unmarshal(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
}
