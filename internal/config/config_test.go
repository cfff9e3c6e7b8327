package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/feature/hosts"
	"holdfast/internal/limit"
)

// environment returns the environment variables of tests.
func environment(name string) (string, bool) {
	v, ok := map[string]string{"API_KEY": "s3cret", "AUTH_TOKEN": "t0ken", "EMPTY": "", "EVIL": "${API_KEY}"}[name]
	return v, ok
}

func parse(t *testing.T, text string) *File {
	t.Helper()
	f, err := Parse("/src/project/.vscode/mcp.json", []byte(text), Options{Env: environment, Input: func(in Input) (string, error) {
		return "<" + in.ID + ">", nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The hosts' documented examples are read unchanged.
func TestHosts(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"claude-desktop": {"filesystem stdio /filesystem/mcp npx -y @modelcontextprotocol/server-filesystem /Users/username/Desktop /Users/username/Downloads"},
		"claude-code": {
			"api-server http /api-server/mcp https://api.example.com/mcp map[Authorization:[Bearer s3cret]]",
			"shared-server stdio /shared-server/mcp /path/to/server",
		},
		"vscode": {
			"perplexity stdio /perplexity/mcp npx -y server-perplexity-ask PERPLEXITY_API_KEY=<perplexity-key>",
			"context7 http /context7/mcp https://mcp.context7.com/mcp map[]",
			"myServer stdio /myServer/mcp npx -y @example/mcp-server",
		},
		"cursor": {
			"server-name stdio /server-name/mcp npx -y mcp-server API_KEY=value",
			"local-server stdio /local-server/mcp python /src/project/tools/mcp_server.py API_KEY=s3cret",
			"remote-server any /remote-server/mcp https://api.example.com/mcp map[Authorization:[Bearer s3cret]]",
		},
		"cline": {
			"notes stdio /notes/mcp python /srv/notes/server.py API_KEY=value",
			"tickets http /tickets/mcp https://tickets.example.com/mcp map[Authorization:[Bearer value]]",
		},
		"windsurf": {
			"github stdio /github/mcp npx -y @modelcontextprotocol/server-github GITHUB_PERSONAL_ACCESS_TOKEN=<YOUR_PERSONAL_ACCESS_TOKEN>",
			"remote-http-mcp any /remote-http-mcp/mcp https://your-server-url/mcp map[Api_key:[Bearer t0ken]]",
		},
		"gemini-cli": {
			"pythonTools stdio /pythonTools/mcp python -m my_mcp_server --port 8080 API_KEY=s3cret PERPLEXITY_API_KEY=t0ken",
			"filteredServer stdio /filteredServer/mcp python -m my_mcp_server",
			"httpServerWithAuth http /httpServerWithAuth/mcp http://localhost:3000/mcp map[Authorization:[Bearer s3cret] X-Custom-Header:[custom-value]]",
			"discoveredServer any /discoveredServer/mcp https://api.example.com/sse map[]",
		},
		"zed": {
			"local-mcp-server stdio /local-mcp-server/mcp npx arg-1 arg-2",
			"custom-mcp-server stdio /custom-mcp-server/mcp python arg-1 API_KEY=value",
			"some-context-server stdio /some-context-server/mcp python arg-1 arg-2 API_KEY=older",
			"remote-mcp-server any /remote-mcp-server/mcp https://mcp.example.com/mcp map[Authorization:[Bearer <token>]]",
		},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range parse(t, string(text)).Servers {
			line := fmt.Sprintf("%s %s %s ", s.Name, s.Type, s.Path)
			if s.URL != "" {
				line += fmt.Sprintf("%s %v", s.URL, s.Header)
			}
			line += strings.Join(s.Command, " ")
			for _, name := range slices.Sorted(maps.Keys(s.Env)) {
				line += fmt.Sprintf(" %s=%s", name, s.Env[name])
			}
			if strings.Contains(s.Shown, "s3cret") {
				t.Errorf("%s shows a secret: %s", name, s.Shown)
			}
			got = append(got, line)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, want)
		}
	}
}

// Holdfast's own settings are read, for all servers and for one of them.
func TestSettings(t *testing.T) {
	t.Parallel()
	f := parse(t, `{
		"mcpServers": {
			"a": {"command": "a"},
			"b": {"url": "http://b/mcp", "holdfast": {"prefix": ""}},
			"off": {"command": "${NOT_SET}", "disabled": true},
		},
		"holdfast": {
			"merge": true, "safe": ["get_*"], "timeout": "1m", "auth": {"scopes": ["x"], "tools": {"write_*": ["w", "v"]}, "upstream": "passthrough"},
			"handoffAfter": {"*": "10s"}, "rate": "600/m", "toolCalls": {"*": 9}, "hosts": {"mine*": {"limit": "2m", "progress": true}, "*": {"limit": "1m"}},
			"servers": {
				"a": {"path": "/other", "tools": {"allow": ["read_*"], "deny": ["*_all"]}, "prefix": "x.", "safe": [],
					"auth": {"scopes": []}, "share": true, "stopIdle": "5m", "maxProcesses": 3, "timeout": "30s", "handoffAfter": {"slow": "1s"},
					"maxCalls": 7, "toolCalls": {"convert_*": 2}, "rate": "5/s", "rateBurst": 8},
			},
		},
		"other": {"x": [1, 2]},
	}`)
	a, b := f.Servers[0], f.Servers[1]
	if !f.Merge || !reflect.DeepEqual(f.Disabled, []string{"off"}) || len(f.Servers) != 2 {
		t.Errorf("%+v", f)
	}
	if want := []hosts.Rule{{Pattern: "mine*", Limit: 2 * time.Minute, Extends: true}, {Pattern: "*", Limit: time.Minute}}; !reflect.DeepEqual(f.Hosts, want) {
		t.Errorf("hosts: %+v", f.Hosts)
	}
	if len(f.Ignored) != 1 || f.Ignored[0].Member != "other" || f.Ignored[0].Line != 16 {
		t.Errorf("ignored: %+v", f.Ignored)
	}
	x, none := "x.", ""
	if want := (Settings{
		Allow: []string{"read_*"}, Deny: []string{"*_all"}, Prefix: &x, StopIdle: 5 * time.Minute, MaxProcesses: 3,
		Timeout: 30 * time.Second, HandoffAfter: []PatternDuration{{"slow", time.Second}, {"*", 10 * time.Second}},
		MaxCalls: 7, ToolCalls: []PatternCount{{"convert_*", 2}, {"*", 9}}, Rate: limit.Rate{PerSecond: 5, Burst: 8},
		Share: true, Auth: Auth{Tools: []PatternScopes{{"write_*", []string{"w", "v"}}}},
	}); !reflect.DeepEqual(a.Settings, want) || a.Path != "/other" {
		t.Errorf("a: %+v", a)
	}
	if want := (Settings{
		Prefix: &none, Safe: []string{"get_*"}, Timeout: time.Minute,
		HandoffAfter: []PatternDuration{{"*", 10 * time.Second}},
		ToolCalls:    []PatternCount{{"*", 9}}, Rate: limit.Rate{PerSecond: 10},
		Auth: Auth{Scopes: []string{"x"}, Tools: []PatternScopes{{"write_*", []string{"w", "v"}}}, Passthrough: true},
	}); !reflect.DeepEqual(b.Settings, want) {
		t.Errorf("b: %+v", b)
	}
}

// A host's settings for a server's tools and timeout apply if their meaning is known.
func TestHostSettings(t *testing.T) {
	t.Parallel()
	const ours = `, "holdfast": {"timeout": "1m", "tools": {"allow": ["get_*"], "deny": ["*_all"]}, "servers": {"own": {"timeout": "2m"}}}}`
	gemini := parse(t, `{"mcpServers": {
		"plain": {"httpUrl": "http://a/mcp"},
		"both": {"command": "x", "timeout": 1500, "includeTools": ["a"], "excludeTools": ["b"]},
		"less": {"command": "x", "timeout": "soon", "excludeTools": ["b"]},
		"none": {"command": "x"},
		"long": {"command": "x", "timeout": 1e300},
		"own": {"command": "x", "timeout": 1500},
		"other": {"command": "x"},
	}, "mcp": {"allowed": ["plain", "both", "less", "none", "own", "long"], "excluded": ["none"]}`+ours)
	zed := parse(t, `{"context_servers": {"plain": {"command": "x", "timeout": 1.5}, "own": {"command": {"path": "x"}, "timeout": 9}, "ext": {}}`+ours)
	other := parse(t, `{"mcpServers": {"plain": {"command": "$API_KEY", "other": 1, "timeout": 60}, "own": {"command": "x", "timeout": {}, "more": 1}}`+ours)
	for name, c := range map[string]struct {
		file                    *File
		want, disabled, ignored []string
	}{
		"gemini": {gemini, []string{
			"plain 1m0s [get_*] [*_all]", "both 1.5s [a] [*_all b]", "less 1m0s [get_*] [*_all b]", "long 1m0s [get_*] [*_all]", "own 2m0s [get_*] [*_all]",
		}, []string{"none", "other"}, nil},
		"zed":   {zed, []string{"plain 1.5s [get_*] [*_all]", "own 2m0s [get_*] [*_all]"}, nil, []string{"context_servers.ext"}},
		"other": {other, []string{"plain 1m0s [get_*] [*_all]", "own 2m0s [get_*] [*_all]"}, nil, []string{"mcpServers.plain.other", "mcpServers.plain.timeout", "mcpServers.own.timeout", "mcpServers.own.more"}},
	} {
		var got, ignored []string
		for _, s := range c.file.Servers {
			got = append(got, fmt.Sprint(s.Name, " ", s.Timeout, " ", s.Allow, " ", s.Deny))
		}
		for _, m := range c.file.Ignored {
			ignored = append(ignored, m.Member)
		}
		if !slices.Equal(got, c.want) || !slices.Equal(c.file.Disabled, c.disabled) || !slices.Equal(ignored, c.ignored) {
			t.Errorf("%s: got %q, disabled %q, ignored %q", name, got, c.file.Disabled, ignored)
		}
	}
}

// A Gemini CLI file is known by its folder, or by members that only this host has. In such a file,
// $NAME is a variable.
func TestGemini(t *testing.T) {
	t.Parallel()
	server := func(more string) string {
		return `{"mcpServers": {"a": {"command": "x-$API_KEY/${API_KEY}-$1"}, "b": {"command": "x"` + more + `}}}`
	}
	for _, c := range []struct {
		file, text string
		is         bool
	}{
		{"/src/mcp.json", server(``), false},
		{"/src/mcp.json", server(`, "timeout": 60`), false},
		{"/src/.gemini/settings.json", server(``), true},
		{"/src/mcp.json", server(`, "trust": false`), true},
		{"/src/mcp.json", server(`, "includeTools": []`), true},
		{"/src/mcp.json", server(`, "excludeTools": ["t"]`), true},
		{"/src/mcp.json", server(`}, "c": {"httpUrl": "http://c"`), true},
		{"/src/mcp.json", `{"mcp": {"excluded": []}, ` + server(``)[1:], true},
		{"/src/mcp.json", `{"mcp": {"allowed": ["a"]}, ` + server(``)[1:], true},
		{"/src/mcp.json", `{"mcp": {"serverCommand": "x"}, ` + server(``)[1:], false},
	} {
		file, err := Parse(c.file, []byte(c.text), Options{Env: environment})
		if err != nil {
			t.Fatal(err)
		}
		want := "x-$API_KEY/s3cret-$1"
		if c.is {
			want = "x-s3cret/s3cret-$1"
		}
		if s := file.Servers[0]; s.Command[0] != want || strings.Contains(s.Shown, "s3cret") {
			t.Errorf("%s %s: %q is shown as %q", c.file, c.text, s.Command, s.Shown)
		}
	}
	f := parse(t, `{"mcpServers": {"a": {"url": "http://a/sse", "httpUrl": "http://a/mcp"}, "b": {"command": "x", "includeTools": []}}}`)
	if s := f.Servers[0]; s.URL != "http://a/mcp" || s.Type != HTTP {
		t.Errorf("%s %s", s.Type, s.URL)
	}
	if s := f.Servers[1]; !slices.Equal(s.Allow, []string{""}) {
		t.Errorf("no tools are %q", s.Allow)
	}
}

// Mistakes are reported with their place.
func TestMistakes(t *testing.T) {
	t.Parallel()
	in := func(server string) string { return `{"mcpServers": {"a": ` + server + `}}` }
	for text, want := range map[string]string{
		"{\n  \"mcpServers\": {,}\n}":    "f.json:2:18: not JSON (comments and trailing commas are allowed): invalid character ',' at start of value",
		`[]`:                             `f.json:1:1: the file must hold an object`,
		`{}`:                             `f.json:1:1: no servers: add some to "mcpServers"`,
		"{\"mcpServers\": {\n\"a\": 1}}": `f.json:2:6: mcpServers.a is a number: want an object`,
		in(`{}`):                         `f.json:1:17: the server "a" has neither a command nor a url: add one`,
		in(`{"command": "x", "url": "http://x"}`):                                   `has both a command and a url: remove one`,
		in(`{"command": "x", "args": ["y", true]}`):                                 `f.json:1:53: mcpServers.a.args[1] is true or false: want a string`,
		in(`{"command": "x", "type": "http"}`):                                      `a server with a command cannot be of type "http"`,
		in(`{"url": "http://x", "type": "ftp"}`):                                    `a server with a url cannot be of type "ftp": want http or sse`,
		in(`{"url": "unix:///tmp/x.sock"}`):                                         `a server at a socket or a pipe (unix:) is not supported`,
		in(`{"url": "x"}`):                                                          `"x" is no URL of a server`,
		in(`{"url": "SEKRET not a url"}`):                                           `"***" is no URL of a server`,
		in(`{"command": "x", "env": {"A=SEKRET": "x"}}`):                            `"A=***" cannot be the name`,
		in(`{"url": "http://x", "headers": {"Authorization: Bearer SEKRET": "x"}}`): `the header "Authorization: ***" cannot be sent`,
		in(`{"command": "${NOPE}"}`):                                                `f.json:1:34: ${NOPE}: the environment variable NOPE is not set: set it, or give a default with ${NOPE:-default}`,
		in(`{"command": "${NONE:-${NOPE}}"}`):                                       `f.json:1:34: ${NOPE}: the environment variable NOPE is not set`,
		`{"mcpServers": {"..": {"command": "x"}}}`:                                  `a server cannot have the name "..": rename it`,
		in(`{"command": "${env:NOPE}"}`):                                            `the environment variable NOPE is not set`,
		in(`{"command": "${input:x}"}`):                                             `${input:x}: there is no such input: add {"type": "promptString", "id": "x"} to "inputs"`,
		in(`{"command": "${command:x}"}`):                                           `only some hosts know this kind of variable`,
		in(`{"command": "${a b}"}`):                                                 `this is no variable`,
		in(`{"command": "x", "envFile": "/nowhere/x"}`):                             `the envFile cannot be read`,
		in(`{"command": "x", "command": "y"}`):                                      `mcpServers.a.command is there twice: remove one`,
		in(`{"command": "x"}, "a": {"command": "y"}`):                               `mcpServers.a is there twice: rename one`,
		`{"mcpServers": {"a": {"command": "x"}}, "holdfast": {"hosts": {"mine": {"progress": true}}}}`:                                                          `the host "mine" has no limit: add one`,
		`{"mcpServers": {"a": {"command": "x"}}, "holdfast": {"hosts": {"mine": {"limit": "never"}}}}`:                                                          `holdfast.hosts.mine.limit`,
		in(`{"command": "x", "holdfast": {"stopIdle": 5}}`):                                                                                                     `holdfast.stopIdle is a number: want a duration like "30s" or "10m"`,
		in(`{"command": "x", "holdfast": {"maxProcesses": 0}}`):                                                                                                 `is 0: want a whole number of 1 or more`,
		in(`{"command": "x", "holdfast": {"prefix": "a b"}}`):                                                                                                   `prefix "a b": want up to 32 of the characters`,
		in(`{"command": "x", "holdfast": {"path": "x"}}`):                                                                                                       `path "x": want an absolute path like /a/mcp`,
		in(`{"url": "http://x", "headers": {"a b": "c"}}`):                                                                                                      `the header "a b" cannot be sent`,
		in(`{"command": "x", "holdfast": {"stopidle": "5s"}}`):                                                                                                  `there is no setting mcpServers.a.holdfast.stopidle: want one of auth, handoffAfter, maxCalls, maxProcesses, path,`,
		in(`{"command": "x", "holdfast": {"rate": "5"}}`):                                                                                                       `f.json:1:60: mcpServers.a.holdfast.rate is "5": want a rate like "50/s", "600/m" or "10/h"`,
		in(`{"command": "x", "holdfast": {"rateBurst": 5}}`):                                                                                                    `f.json:1:65: rateBurst is 5: it needs a rate`,
		in(`{"command": "x", "holdfast": {"toolCalls": {"x": "many"}}}`):                                                                                        `holdfast.toolCalls.x is a string: want a whole number of 1 or more`,
		in(`{"command": "x", "holdfast": {"auth": "passthrough"}}`):                                                                                             `the server "a" is a command: only a server with a url gets a token`,
		in(`{"url": "http://x", "holdfast": {"auth": "none"}}`):                                                                                                 `mcpServers.a.holdfast.auth is another string than "passthrough": want that, or an object`,
		in(`{"url": "http://x", "holdfast": {"auth": {"upstream": 5}}}`):                                                                                        `mcpServers.a.holdfast.auth.upstream is a number: want an object`,
		in(`{"url": "http://x", "holdfast": {"auth": {"scope": []}}}`):                                                                                          `there is no setting mcpServers.a.holdfast.auth.scope: want one of scopes, tools, upstream`,
		in(`{"url": "http://x", "holdfast": {"auth": {"scopes": ["a b"]}}}`):                                                                                    `f.json:1:75: "a b" cannot be a scope`,
		in(`{"url": "http://x", "holdfast": {"auth": {"tools": {"x*": ["\"\""]}}}}`):                                                                            `cannot be a scope`,
		in(`{"url": "http://x", "holdfast": {"auth": {"upstream": {}}}}`):                                                                                       `want one of clientCredentials and tokenExchange`,
		in(`{"url": "http://x", "holdfast": {"auth": {"upstream": {"tokenExchange": {}}}}}`):                                                                    `clientId is missing: add it`,
		in(`{"url": "http://x", "holdfast": {"share": true, "auth": {"upstream": {"tokenExchange": {}}}}}`):                                                     `is shared by all clients (share)`,
		in(`{"url": "http://x", "headers": {"authorization": "x"}, "holdfast": {"auth": "passthrough"}}`):                                                       `has a header Authorization too: remove one`,
		in(`{"url": "http://x", "holdfast": {"auth": {"upstream": {"clientCredentials": {"clientId": "h", "tokenUrl": "http://a/${API_KEY}"}}}}}`):              `"http://a/${API_KEY}" is no URL of a token endpoint: want https`,
		`{"mcpServers": {"*": {"command": "x"}}}`:                                                                                                               `a server cannot have the name "*": rename it`,
		`{"mcpServers": {"a": {"command": "x"}}, "servers": {"a": {"command": "x"}}}`:                                                                           `is in both mcpServers and servers`,
		`{"mcpServers": {"a": {"command": "x"}}, "context_servers": {"a": {"command": "x"}}}`:                                                                   `is in both mcpServers and context_servers`,
		in(`{"command": {"path": 1.5, "args": "x"}}`):                                                                                                           `mcpServers.a.command.args is a string: want an array`,
		in(`{"command": "$NOPE", "trust": true}`):                                                                                                               `f.json:1:34: $NOPE: the environment variable NOPE is not set`,
		in(`{"command": "x", "includeTools": ["t"], "holdfast": {"tools": {"deny": ["x"]}}}`):                                                                   `has tools in includeTools or excludeTools, and in the settings of holdfast: put them in one place`,
		`{"mcpServers": {"a": {"command": "x"}}, "holdfast": {"servers": {"b": {}}}}`:                                                                           `there is no server "b" that these settings could be for: the servers are "a"`,
		`{"mcpServers": {"a": {"command": "x", "holdfast": {}}}, "holdfast": {"servers": {"a": {}}}}`:                                                           `put them in one place`,
		`{"mcpServers": {"a": {"command": "x", "holdfast": {"path": "/mcp"}}}, "holdfast": {"merge": true}}`:                                                    `the path /mcp of the server "a" is that of all servers as one`,
		`{"mcpServers": {"a": {"command": "x", "holdfast": {"prefix": "x"}}, "b": {"command": "x", "holdfast": {"prefix": "x"}}}, "holdfast": {"merge": true}}`: `the servers "a" and "b" have the same prefix "x"`,
	} {
		_, err := Parse("f.json", []byte(text), Options{Env: environment})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
			continue
		}
		var at *Error
		if !errors.As(err, &at) || at.Line == 0 || at.Column == 0 {
			t.Errorf("%s: no place: %v", text, err)
		}
	}
}

// A byte order mark, which some editors for Windows write, is no mistake.
func TestByteOrderMark(t *testing.T) {
	t.Parallel()
	if f := parse(t, "\ufeff"+`{"mcpServers": {"a": {"command": "x"}}}`); f.Servers[0].Name != "a" {
		t.Errorf("%+v", f)
	}
}

// Tools that are denied for all servers stay denied at a server that allows tools, unless it has a
// deny list of its own.
func TestDeniedEverywhere(t *testing.T) {
	t.Parallel()
	f := parse(t, `{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}, "c": {"command": "x"}}, "holdfast": {"tools": {"deny": ["rm"]}, "servers": {
		"a": {"tools": {"allow": ["*"]}}, "b": {"tools": {"deny": []}}}}}`)
	for i, want := range []string{"[*] [rm]", "[] []", "[] [rm]"} {
		if got := fmt.Sprint(f.Servers[i].Allow, f.Servers[i].Deny); got != want {
			t.Errorf("%s: %s, want %s", f.Servers[i].Name, got, want)
		}
	}
}

// All mistakes are reported together, in order.
func TestAllMistakes(t *testing.T) {
	t.Parallel()
	_, err := Parse("f.json", []byte("{\"mcpServers\": {\n\"a\": {\"command\": 1.5, \"cwd\": []},\n\"b\": {\"args\": 1}}}"), Options{})
	if want := "f.json:2:30: mcpServers.a.cwd is an array: want a string\nf.json:3:15: mcpServers.b.args is a number: want an array"; fmt.Sprint(err) != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// Variables are replaced by their values.
func TestVariables(t *testing.T) {
	t.Parallel()
	home, _ := os.UserHomeDir()
	for in, want := range map[string]string{
		"${API_KEY}": "s3cret", "a${env:API_KEY}b${API_KEY}": "as3cretbs3cret", "${NOPE:-x y}": "x y",
		"${NOPE:-${API_KEY}}": "s3cret", "${NOPE:-a${NONE:-${env:API_KEY}b}}c": "as3cretbc", "${API_KEY:-${NONE}}": "s3cret", "${EVIL}": "${API_KEY}", "${x{y}": "${x{y}", "${NOPE:-{": "${NOPE:-{", "${EMPTY:-d}": "d", "${EMPTY}": "", "${NOPE:-}": "",
		"${workspaceFolder}": "/src/project", "${workspaceFolderBasename}": "project", "${userHome}${/}x": home + "/x", "$API_KEY {x}": "$API_KEY {x}",
	} {
		f := parse(t, fmt.Sprintf(`{"mcpServers": {"a": {"command": %q}}}`, in))
		if got := f.Servers[0].Command[0]; got != want {
			t.Errorf("%s is %q; want %q", in, got, want)
		}
		if in[0] == '$' && in[1] == '{' && !strings.Contains(f.Servers[0].Shown, "${") {
			t.Errorf("%s is shown as %s", in, f.Servers[0].Shown)
		}
	}
}

// A credential among the arguments is not shown.
func TestShown(t *testing.T) {
	t.Parallel()
	f := parse(t, `{"mcpServers": {"a": {"command": "x", "args": ["--api-key", "abc", "--token=def", "API_TOKEN=ghi", "https://u:jkl@h/", "plain"]}}}`)
	got := f.Servers[0].Shown
	for _, secret := range []string{"abc", "def", "ghi", "jkl"} {
		if strings.Contains(got, secret) {
			t.Errorf("%s is shown: %s", secret, got)
		}
	}
	if !strings.HasSuffix(got, "plain") {
		t.Error(got)
	}
}

// FuzzParse reads any text without a panic. Servers that it returns are valid.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add(`{"mcpServers": {"a": {"command": "x", "holdfast": {"tools": {"deny": ["*"]}}}}, "holdfast": {"merge": true, "servers": {"a": null}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse("f", []byte(text), Options{Env: environment})
		if err != nil {
			return
		}
		for _, s := range got.Servers {
			if s.Name == "" || s.Path == "" || (len(s.Command) == 0) == (s.URL == "") {
				t.Errorf("%+v", s)
			}
		}
	})
}
