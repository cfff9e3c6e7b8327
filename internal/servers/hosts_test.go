package servers_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/config"
	"holdfast/internal/mcptest"
	"holdfast/internal/servers"
)

// standIn is set for a process that stands in for a command of a documented configuration.
// Its tool "about" returns the arguments and the environment of the process.
const standIn = "STAND_IN_FOR_A_SERVER"

// standInVersion has the version that the process declares.
const standInVersion = "STAND_IN_VERSION"

func runStandIn() {
	s := mcp.NewServer(&mcp.Implementation{Name: "stand-in", Version: cmp.Or(os.Getenv(standInVersion), "1")}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "about"}, func(context.Context, *mcp.CallToolRequest, message) (*mcp.CallToolResult, any, error) {
		text := strings.Join(os.Args[2:], " ")
		for _, name := range []string{"API_KEY", "PERPLEXITY_API_KEY", "GITHUB_PERSONAL_ACCESS_TOKEN"} {
			if v, ok := os.LookupEnv(name); ok {
				text += " " + name + "=" + v
			}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "end"}, func(context.Context, *mcp.CallToolRequest, message) (*mcp.CallToolResult, any, error) {
		os.Exit(1)
		return nil, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "pid"}, func(context.Context, *mcp.CallToolRequest, message) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(os.Getpid())}}}, nil, nil
	})
	_ = s.Run(context.Background(), &mcp.StdioTransport{})
}

// The documented configurations of hosts are served unchanged. Their commands are stand-ins. Servers on
// other machines get no requests: the error of a request without a session shows that they have a path.
func TestHostsServed(t *testing.T) {
	exe := mcptest.Must(os.Executable())(t)
	bin := t.TempDir()
	for _, name := range []string{"npx", "python"} {
		script := "#!/bin/sh\nexec env " + standIn + "=1 '" + exe + "' " + name + " \"$@\"\n"
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil { //nolint:gosec // it is run
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	for host, want := range map[string]map[string]string{
		"claude-desktop": {"filesystem": "-y @modelcontextprotocol/server-filesystem /Users/username/Desktop /Users/username/Downloads"},
		"claude-code":    {"api-server": "", "shared-server": ""},
		"vscode":         {"perplexity": "-y server-perplexity-ask PERPLEXITY_API_KEY=p", "context7": "", "myServer": "-y @example/mcp-server"},
		"cursor":         {"server-name": "-y mcp-server API_KEY=value", "local-server": "WORKSPACE/tools/mcp_server.py API_KEY=k", "remote-server": ""},
		"cline":          {"notes": "/srv/notes/server.py API_KEY=value", "tickets": ""},
		"windsurf":       {"github": "-y @modelcontextprotocol/server-github GITHUB_PERSONAL_ACCESS_TOKEN=<YOUR_PERSONAL_ACCESS_TOKEN>", "remote-http-mcp": ""},
		"gemini-cli": {
			"pythonTools": "-m my_mcp_server --port 8080 API_KEY=k PERPLEXITY_API_KEY=k", "filteredServer": "-m my_mcp_server",
			"httpServerWithAuth": "", "discoveredServer": "",
		},
		"zed": {
			"local-mcp-server": "arg-1 arg-2", "custom-mcp-server": "arg-1 API_KEY=value", "some-context-server": "arg-1 arg-2 API_KEY=older",
			"remote-mcp-server": "",
		},
	} {
		t.Run(host, func(t *testing.T) {
			file, err := config.Read(filepath.Join("..", "config", "testdata", host+".json"), config.Options{
				Workspace: "WORKSPACE",
				Env:       func(name string) (string, bool) { return "k", name != "API_BASE_URL" },
				Input:     func(config.Input) (string, error) { return "p", nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			f := &farm{t: t, set: servers.New(file, slog.New(slog.DiscardHandler))}
			f.base = serveSet(t, f.set, &holdfast.Options{Logger: slog.New(slog.DiscardHandler)})
			var names []string
			for _, s := range f.set.List() {
				names = append(names, s.Name)
			}
			for name, about := range want {
				switch {
				case !slices.Contains(names, name):
					t.Errorf("%s is not served", name)
				case about == "":
					if status, text, _ := f.post("/"+name+"/mcp", "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`); status != http.StatusBadRequest || !strings.Contains(text, "missing Mcp-Session-Id header") {
						t.Errorf("%s: %d %s", name, status, text)
					}
				default:
					s := f.connect("/" + name + "/mcp")
					if got := call(t, s, "about"); got != about {
						t.Errorf("%s is %q; want %q", name, got, about)
					}
					if got := tools(t, s); name == "filteredServer" && !slices.Equal(got, []string{"about"}) {
						t.Errorf("%s has the tools %q", name, got)
					}
				}
			}
		})
	}
}

// When a process ends, its calls end with "outcome unknown", other servers and the processes of other
// clients go on, and it begins again: alone, shared, and among the merged.
func TestProcessEnds(t *testing.T) {
	t.Parallel()
	exe := mcptest.Must(os.Executable())(t)
	process := fmt.Sprintf(`{"command": %q, "args": ["x", "y"], "env": {%q: "1"}, "holdfast": {"share": `, exe, standIn)
	f := newFarm(t, `{"mcpServers": {"one": `+process+`false}}, "all": `+process+`true}}, "a": "$a"}, "holdfast": {"merge": true}}`, "a")
	for path, prefix := range map[string]string{"/one/mcp": "", "/all/mcp": "", "/mcp": "one_"} {
		s, other := f.connect(path), f.connect(path)
		pid, same := call(t, s, prefix+"pid"), call(t, other, prefix+"pid")
		if shared := path == "/all/mcp"; shared != (pid == same) {
			t.Errorf("%s: two clients have the processes %s and %s", path, pid, same)
		}
		if got := call(t, s, prefix+"end"); !strings.Contains(got, "outcome unknown") {
			t.Errorf("%s: %s", path, got)
		}
		again := call(t, s, prefix+"pid")
		if again == pid || strings.Contains(again, " ") {
			t.Errorf("%s: the process %s is %s", path, pid, again)
		}
		if same == pid {
			same = again
		}
		if now := call(t, other, prefix+"pid"); now != same {
			t.Errorf("%s: the other client has the process %s, want %s", path, now, same)
		}
		if prefix != "" {
			if got := call(t, s, "a_echo"); got != "a:echo:hi" {
				t.Error(got)
			}
		}
	}
}
