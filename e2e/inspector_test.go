package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// eachInspector runs a test with the command line of each version of the Inspector.
func eachInspector(t *testing.T, test func(t *testing.T, command []string)) {
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
			test(t, []string{node, filepath.Join(dir, inspector.script)})
		})
	}
}

// TestInspector uses the command line of the MCP Inspector: of the last version that runs on
// Node 20, and of a current version, which needs Node 22.
func TestInspector(t *testing.T) {
	eachInspector(t, func(t *testing.T, command []string) {
		inspect := func(t *testing.T, args ...string) []byte {
			t.Helper()
			return run(t, command[0], append(command[1:len(command):len(command)], args...)...)
		}
		t.Run("everything", func(t *testing.T) {
			p := serveEverything(t)
			list := string(inspect(t, "--cli", p.URL, "--transport", "http", "--method", "tools/list"))
			for _, tool := range []string{"echo", "trigger-long-running-operation"} {
				if !strings.Contains(list, fmt.Sprintf("%q", tool)) {
					t.Errorf("tools/list: got %s", list)
				}
			}
			wantText(t, inspect(t, "--cli", p.URL, "--transport", "http",
				"--method", "tools/call", "--tool-name", "echo", "--tool-arg", "message=hello"), "Echo: hello")
		})
		t.Run("try it", func(t *testing.T) { // the command line that serve --demo suggests, unchanged
			p := serve(t, "--demo")
			args, ok := strings.CutPrefix(p.Try, "npx -y @modelcontextprotocol/inspector ")
			if !ok {
				t.Fatalf("the command line to try has another form: %s", p.Try)
			}
			wantText(t, inspect(t, strings.Fields(args)...), "5")
		})
	})
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
