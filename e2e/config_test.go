package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
)

// Servers of the specification's project.
const (
	filesystemServer = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
	memoryServer     = "node_modules/@modelcontextprotocol/server-memory/dist/index.js"
)

// merged serves three official servers from one file, each at its own path and all merged into
// one. dir is the directory of server-filesystem.
func merged(t *testing.T) (p *program, dir string) {
	t.Helper()
	npms := npm(t, everything, filesystemServer, memoryServer)
	dir = mcptest.Must(filepath.EvalSymlinks(t.TempDir()))(t)
	mcptest.Check(t, os.WriteFile(filepath.Join(dir, "note.txt"), []byte("kept\n"), 0o600))
	type server struct {
		Command string            `json:"command"`
		Args    []string          `json:"args"`
		Env     map[string]string `json:"env,omitempty"`
	}
	text := mcptest.Must(json.Marshal(map[string]any{
		"mcpServers": map[string]server{
			"everything": {"node", []string{filepath.Join(npms, everything), "stdio"}, nil},
			"filesystem": {"node", []string{filepath.Join(npms, filesystemServer), dir}, nil},
			"memory":     {"node", []string{filepath.Join(npms, memoryServer)}, map[string]string{"MEMORY_FILE_PATH": filepath.Join(dir, "memory.jsonl")}},
		},
		"holdfast": map[string]any{"merge": true},
	}))(t)
	return serve(t, "--config", fileOf(t, string(text))), dir
}

// The command lines of the old and the new Inspector use three merged servers, and one of them
// at its own path.
func TestMergedInspector(t *testing.T) {
	t.Parallel()
	p, dir := merged(t)
	eachInspector(t, func(t *testing.T, command []string) {
		if strings.HasSuffix(t.Name(), "/0.15") {
			peersOnly(t, "it starts forty programs")
		}
		inspect := func(url string, args ...string) []byte {
			return run(t, command[0], slices.Concat(command[1:], []string{"--cli", url, "--transport", "http"}, args)...)
		}
		var list struct{ Tools []struct{ Name string } }
		unmarshal(t, inspect(p.URL, "--method", "tools/list"), &list)
		var names []string
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
		}
		for _, want := range []string{"everything_echo", "filesystem_read_text_file", "memory_read_graph"} {
			if !slices.Contains(names, want) {
				t.Errorf("no tool %s in %v", want, names)
			}
		}
		wantText(t, inspect(p.URL, "--method", "tools/call", "--tool-name", "everything_echo", "--tool-arg", "message=hello"), "Echo: hello")
		wantText(t, inspect(p.URL, "--method", "tools/call", "--tool-name", "filesystem_read_text_file", "--tool-arg", "path="+dir+"/note.txt"), "kept\n")
		wantText(t, inspect("http://"+p.Addr+"/filesystem/mcp", "--method", "tools/call", "--tool-name", "read_text_file", "--tool-arg", "path="+dir+"/note.txt"), "kept\n")
		var resources struct{ Resources []struct{ URI string } }
		unmarshal(t, inspect(p.URL, "--method", "resources/list"), &resources)
		if len(resources.Resources) == 0 {
			t.Error("no resources")
		}
	})
}

// Both TypeScript clients use three merged servers.
func TestMergedClients(t *testing.T) {
	t.Parallel()
	p, dir := merged(t)
	for _, sdk := range []int{1, 2} {
		t.Run(fmt.Sprint("sdk ", sdk), func(t *testing.T) {
			slow := long
			slow.Name = "everything_" + slow.Name
			r := client(t, script{SDK: sdk, URL: p.URL, Calls: []toolCall{slow, slow}})
			r.wantLong(t)
			r = client(t, script{SDK: sdk, URL: p.URL, Calls: []toolCall{
				{"filesystem_write_file", map[string]any{"path": filepath.Join(dir, fmt.Sprint(sdk)), "content": "by a client"}},
				{"memory_create_entities", map[string]any{"entities": []any{map[string]any{"name": fmt.Sprint("client", sdk), "entityType": "client", "observations": []string{"it calls"}}}}},
				{"everything_echo", map[string]any{"message": "hi"}},
			}})
			for i, call := range r.Calls {
				if call.Error != "" || call.Result.IsError {
					t.Errorf("call %d: %s %+v", i, call.Error, call.Result)
				}
			}
			if text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(sdk))); err != nil || string(text) != "by a client" {
				t.Errorf("%q %v", text, err)
			}
		})
	}
}
