package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// line returns a server's settings in one line.
func line(s *Server) string {
	all := []string{s.Name, s.Type, s.URL, strings.Join(s.Command, " ")}
	for _, name := range slices.Sorted(maps.Keys(s.Header)) {
		all = append(all, name+": "+s.Header.Get(name))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		all = append(all, name+"="+s.Env[name])
	}
	if s.Allow != nil {
		all = append(all, fmt.Sprintf("allow %q", s.Allow))
	}
	if len(s.Deny) > 0 {
		all = append(all, fmt.Sprintf("deny %q", s.Deny))
	}
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), " ")
}

// The files of more hosts are read, and servers that are off in them stay off.
func TestMoreHosts(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"opencode": {
			`my-local-mcp-server stdio npx -y my-mcp-command API_KEY=s3cret deny ["delete*"]`,
			`my-remote-mcp any https://my-mcp-server.com Authorization: Bearer t0ken`,
			"off: resting",
		},
		"amp": {
			`playwright stdio npx -y @playwright/mcp@latest --headless allow ["navigate_*"] deny ["create_issue" "builtin:edit_file" "mcp__playwright__navigate_back" "navigate_back"]`,
			`linear any https://mcp.linear.app/sse deny ["create_issue" "builtin:edit_file" "mcp__playwright__navigate_back"]`,
			"off: evil",
		},
		"vscode-settings": {`fetch stdio npx /src/project API_KEY=<key>`},
		"kiro": {
			`local-server-name stdio npx arg1 API_KEY=s3cret deny ["tool_name3"]`,
			`remote-server-name any https://endpoint.to.connect.to Header1: value1`,
		},
		"roo": {
			`server2 stdio node /path/to/server.js API_KEY=your_api_key deny ["tool5" "tool6"]`,
			`modern http https://your-modern-api-endpoint.com/mcp-path`,
		},
		"copilot-cli": {
			`playwright stdio npx @playwright/mcp@latest`,
			`context7 http https://mcp.context7.com/mcp Context7_api_key: s3cret allow ["resolve" "query"]`,
			`none stdio npx allow [""]`,
		},
		"crush": {
			`filesystem stdio node /path/to/mcp-server.js API_KEY=s3cret deny ["write"]`,
			`github http https://api.githubcopilot.com/mcp/ Authorization: Bearer t0ken allow ["get"]`,
		},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		f := parse(t, string(text))
		var got []string
		for _, s := range f.Servers {
			got = append(got, line(s))
		}
		for _, off := range f.Disabled {
			got = append(got, "off: "+off)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, want)
		}
	}
}

// A server that is off in a file stays off, in each form of writing it, and beside Holdfast's settings.
func TestOffStaysOff(t *testing.T) {
	t.Parallel()
	one := func(s string) string { return `{"mcpServers": {"a b": {"command": "x", ` + s + `}}}` }
	opencode := func(tools string) string {
		return `{"mcp": {"a b": {"type": "local", "command": ["x"]}}, "tools": ` + tools + `}`
	}
	amp := func(more string) string {
		return `{"amp.mcpServers": {"a-b": {"command": "x", "args": ["y"]}}, ` + more + `}`
	}
	for text, want := range map[string]string{
		one(`"disabledTools": ["rm"], "holdfast": {"tools": {"deny": ["mv"]}}`): `a b stdio x deny ["mv" "rm"]`,
		one(`"disabled_tools": ["rm"]`):                                         `a b stdio x deny ["rm"]`,
		one(`"enabled_tools": ["ls"], "disabled_tools": ["rm"]`):                `a b stdio x allow ["ls"] deny ["rm"]`,
		one(`"tools": "*"`): `a b stdio x`,
		one(`"tools": ["*"], "holdfast": {"tools": {"allow": ["ls"]}}`): `a b stdio x allow ["ls"]`,
		one(`"tools": "ls, cat"`):                                                                      `a b stdio x allow ["ls" "cat"]`,
		one(`"tools": {"rm": false, "ls": true}`):                                                      `a b stdio x deny ["rm"]`,
		opencode(`{"a_b_rm": false, "other_*": false}`):                                                `a b stdio x deny ["rm"]`,
		opencode(`{"*_rm": false}`):                                                                    `a b stdio x deny ["*_rm" "rm"]`,
		opencode(`{"*": false}`):                                                                       `a b stdio x allow [""]`,
		opencode(`{"*": false, "a_b_*": true}`):                                                        `a b stdio x`,
		opencode(`{"*": false, "a_b_ls": true}`):                                                       `a b stdio x allow ["ls"]`,
		opencode(`{"a_b_*": true, "a_b_rm": false}`):                                                   `a b stdio x deny ["rm"]`,
		opencode(`{"a_b_rm": false, "a_b_*": true}`):                                                   `a b stdio x`,
		`{"mcp": {"a": {"type": "local", "command": ["x"]}}, "permission": {"a_*": "deny"}}`:           `a stdio x allow [""]`,
		amp(`"amp.tools.disable": ["*"]`):                                                              `a-b stdio x y deny ["*"]`,
		amp(`"amp.tools.disable": ["mcp__a_b__rm"]`):                                                   `a-b stdio x y deny ["mcp__a_b__rm" "rm"]`,
		amp(`"amp.tools.enable": ["mcp__a-b__ls"]`):                                                    `a-b stdio x y allow ["mcp__a-b__ls" "ls" ""]`,
		`{"mcpServers": {"a": {"command": "x"}}, "excludeTools": ["a__rm"], "allowMCPServers": ["a"]}`: `a stdio x deny ["a__rm" "rm"]`,
		`{"mcpServers": {"a": {"command": "x", "trust": true}}, "tools": {"exclude": ["rm"]}}`:         `a stdio x deny ["rm"]`,
		`{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}}, "excludeMCPServers": ["b"]}`:   `a stdio x`,
		`{"mcpServers": [{"name": "a", "command": "x"}]}`:                                              `a stdio x`,
	} {
		f := parse(t, text)
		if got := line(f.Servers[0]); got != want || len(f.Servers) != 1 {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		one(`"tools": {"rm": {"mode": "off"}}`):                                       `mcpServers.a b.tools has a form that is not known: say which tools`,
		one(`"tools": 5`):                                                             `mcpServers.a b.tools is a number: want names of tools`,
		one(`"tools": ["x"], "enabled_tools": ["y"]`):                                 `says in tools and enabled_tools which tools it has: put them in one place`,
		one(`"tools": ["x"], "holdfast": {"tools": {"allow": ["y"]}}`):                `says in tools and "allow" of holdfast`,
		amp(`"amp.mcpPermissions": [{"matches": {"host": "x"}, "action": "reject"}]`): `amp.mcpPermissions has a rule for "host", which is not known`,
	} {
		if _, err := Parse("f.json", []byte(text), Options{Env: environment}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
}

// The error for a file in another format names the format, and says what to do.
func TestOtherForms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ file, text, want string }{
		{"config.toml", "", "this is TOML"},
		{"x", "# mine\nmodel = \"o\"\n[mcp_servers.a]\n", "this is TOML"},
		{"x.json", "[mcp_servers.a]\ncommand = \"s3cret\"\n", "this is TOML"},
		{"config.yaml", "name: a\nmcpServers:\n  - name: b\n", "this is YAML"},
		{"x", "extensions:\n  a:\n", "this is YAML"},
		{"x.yml", "---\nmcpServers: []\n", "this is YAML"},
		{"x.json", "hello", "not JSON"},
		{"x.json", `[{"name": "x"}]`, "the file must hold an object"},
		{"x.json", `{"mcp_servers": {}}`, `(what is in "mcp_servers" is not read: move it there)`},
		{"x.json", `{"projects": {}}`, `the servers in "projects" of Claude Code are not read`},
	} {
		_, err := Parse(c.file, []byte(c.text), Options{Env: environment})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s %q: %v; want %s", c.file, c.text, err, c.want)
		}
	}
}

// A file in UTF-16 is read, as some editors and shells of Windows write it.
func TestUTF16(t *testing.T) {
	t.Parallel()
	const text = `{"mcpServers": {"é": {"command": "x", "args": ["日本"]}}}`
	for _, mark := range []string{"", "\ufeff"} {
		units := utf16.Encode([]rune(mark + text))
		for _, little := range []bool{false, true} {
			var data []byte
			for _, u := range units {
				if little {
					data = append(data, byte(u), byte(u>>8))
				} else {
					data = append(data, byte(u>>8), byte(u))
				}
			}
			if s := parse(t, string(data)).Servers[0]; s.Name != "é" || s.Command[1] != "日本" {
				t.Errorf("%q %v: %+v", mark, little, s)
			}
		}
	}
}

// A variable is looked up in the server's own variables first. A server with an unset variable is left out. The other servers stay.
func TestOwnVariables(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, ".env")
	if err := os.WriteFile(file, []byte("IN_FILE=f\nAPI_KEY=file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		`"--header", "Authorization:${AUTH_HEADER}"], "env": {"AUTH_HEADER": "Bearer x"}`:     "--header Authorization:Bearer x",
		`"${API_KEY}"], "env": {"API_KEY": "own"}`:                                            "own",
		`"${API_KEY}"], "env": {"API_KEY": ""}`:                                               "",
		`"${API_KEY}"], "env": {"API_KEY": "${API_KEY}"}`:                                     "s3cret",
		`"${env:API_KEY}"], "env": {"API_KEY": "own"}`:                                        "s3cret",
		`"${env:OWN}"], "env": {"OWN": "own"}`:                                                "own",
		`"${A}"], "env": {"A": "a${B}", "B": "b${API_KEY}"}`:                                  "abs3cret",
		`"${IN_FILE} ${API_KEY}"], "envFile": ` + fmt.Sprintf("%q", file):                     "f file",
		`"${IN_FILE}"], "env": {"IN_FILE": "own"}, "envFile": ` + fmt.Sprintf("%q", file):     "own",
		`"${OWN:-d}"], "env": {"OWN": ""}`:                                                    "d",
		`"-c", "echo ${1:-d} ${@} ${#x} ${x%.*} ${x:+y} ${x:0:3} ${!x} ${a[@]} ${x^^} ${1}"]`: "-c echo ${1:-d} ${@} ${#x} ${x%.*} ${x:+y} ${x:0:3} ${!x} ${a[@]} ${x^^} ${1}",
		`"${1:-${API_KEY}}"]`: "${1:-${API_KEY}}",
	} {
		f := parse(t, `{"mcpServers": {"a": {"command": "x", "args": [`+args+`}, "b": {"command": "y"}}}`)
		if got := strings.Join(f.Servers[0].Command[1:], " "); got != want || len(f.LeftOut) > 0 {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	for server, want := range map[string]string{
		`"command": "${NOPE}"`:                                              `f.json:1:34: ${NOPE}: the environment variable NOPE is not set`,
		`"command": "x", "env": {"A": "${A}"}`:                              `${A}: the environment variable A is not set`,
		`"command": "x", "env": {"A": "${B}", "B": "${A}"}`:                 `is not set`,
		`"command": "x", "args": ["${config:x}"]`:                           `only some hosts know this kind of variable`,
		`"command": "x", "args": ["${{ secrets.X }}"]`:                      `only Continue knows this kind of variable`,
		`"command": "x", "args": ["${input:x}"]`:                            `there is no such input`,
		`"command": "x", "envFile": "/nowhere/x"`:                           `the envFile cannot be read`,
		`"command": "x", "cwd": "${NOPE}"`:                                  `NOPE is not set`,
		`"url": "${NOPE}/mcp"`:                                              `NOPE is not set`,
		`"url": "http://x", "headers": {"Authorization": "Bearer ${NOPE}"}`: `NOPE is not set`,
		`"url": "http://x", "holdfast": {"auth": {"upstream": {"clientCredentials": {"clientId": "h", "clientSecret": "${NOPE}", "tokenUrl": "https://a/t"}}}}`: `NOPE is not set`,
	} {
		text := `{"mcpServers": {"a": {` + server + `}, "b": {"command": "y"}}}`
		f, err := Parse("f.json", []byte(text), Options{Env: environment})
		if err != nil || len(f.Servers) != 1 || f.Servers[0].Name != "b" || len(f.LeftOut) != 1 || f.LeftOut[0].Name != "a" || !strings.Contains(f.LeftOut[0].Err.Error(), want) {
			t.Errorf("%s: %+v %v", server, f, err)
			continue
		}
		var at *Error
		if !errors.As(f.LeftOut[0].Err, &at) || at.Line != 1 || at.Column < 2 {
			t.Errorf("%s: no place: %v", server, f.LeftOut[0].Err)
		}
	}
}

// An envFile is read as in VS Code.
func TestEnvFile(t *testing.T) {
	t.Parallel()
	const text = "\ufeffA=1\r\n# B=2\n\nno line\nexport C = three # words\nD=\"a\\nb # c\"\nE='$A ${A}'\nF=$A\nG=`x`\nH: y\nI=it's\nJ=\nK=a=b\n  L=\"x\"  \n=x\n"
	want := map[string]string{"A": "1", "C": "three", "D": "a\nb # c", "E": "$A ${A}", "F": "$A", "G": "x", "H": "y", "I": "it's", "J": "", "K": "a=b", "L": "x"}
	if got := envOf(string(plainText([]byte(text)))); !maps.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A server runs in the workspace folder, unless the file names another directory.
func TestWorkspace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for in, cwd := range map[string]string{"": "", ".vscode": "", ".kiro/settings": "", "conf": filepath.Join(dir, "conf")} {
		if err := os.MkdirAll(filepath.Join(dir, in), 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := Parse(filepath.Join(dir, in, "mcp.json"), []byte(`{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x", "cwd": "sub"}, "c": {"command": "x", "cwd": "/"}}}`), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if cwd == "" {
			cwd = dir
		}
		for i, want := range []string{cwd, filepath.Join(cwd, "sub"), "/"} {
			if got := f.Servers[i].Dir; got != want {
				t.Errorf("%q %d: %s, want %s", in, i, got, want)
			}
		}
	}
}

// No two merged servers have the same prefix, and one of them keeps the prefix of its name.
func TestPrefixesDiffer(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 40)
	for _, names := range [][]string{
		{"a b", "a+b"}, {"a_b", "a b"}, {"a b", "a_b", "a+b"}, {"日本", "中国", "한국"}, {long + "1", long + "2"}, {"a", "b"},
	} {
		var all []string
		for _, n := range names {
			all = append(all, fmt.Sprintf(`%q: {"command": "x"}`, n))
		}
		prefixes := func(servers []string) map[string]string {
			got := make(map[string]string)
			for _, s := range parse(t, `{"mcpServers": {`+strings.Join(servers, ",")+`}, "holdfast": {"merge": true}}`).Servers {
				got[s.Name] = s.MergedPrefix()
			}
			return got
		}
		got := prefixes(all)
		seen := make(map[string]bool)
		for name, p := range got {
			if seen[p] || len(p) > 32 || !validPrefix.MatchString(p) || unfit.FindString(name) == "" && len(name) < 32 && p != name+"_" {
				t.Errorf("%q: %q", names, got)
			}
			seen[p] = true
		}
		slices.Reverse(all)
		if again := prefixes(all); !maps.Equal(got, again) {
			t.Errorf("in another order: %q, %q", got, again)
		}
	}
	f := parse(t, `{"mcpServers": {"a b": {"command": "x"}, "c": {"command": "x", "holdfast": {"prefix": "a_b_"}}}, "holdfast": {"merge": true}}`)
	if a, b := f.Servers[0].MergedPrefix(), f.Servers[1].MergedPrefix(); a == b || b != "a_b_" {
		t.Errorf("%q %q", a, b)
	}
}

// A type error does not contain the value, which may be a misplaced secret.
func TestTypesShowNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"mcpServers": "s3cret"}`, `{"mcpServers": {"a": "s3cret"}}`, `{"mcpServers": {"a": {"command": "x", "args": "s3cret"}}}`,
		`{"mcpServers": {"a": {"command": "x", "env": "s3cret"}}}`, `{"mcpServers": {"a": {"command": "x", "env": ["s3cret"]}}}`,
		`{"mcpServers": {"a": {"url": ["s3cret"]}}}`, `{"mcpServers": {"a": {"url": 73313}}}`, `{"mcpServers": {"a": {"url": "http://x", "headers": "s3cret"}}}`,
		`{"mcpServers": {"a": {"url": "http://x", "headers": {"Authorization": ["s3cret"]}}}}`, `{"mcpServers": {"a": {"url": "http://x", "holdfast": {"auth": "s3cret"}}}}`,
		`{"mcpServers": {"a": {"url": "http://x", "holdfast": {"auth": {"upstream": "s3cret"}}}}}`, `{"mcpServers": {"a": {"command": "x", "disabled": "s3cret"}}}`,
		`{"mcpServers": {"a": {"command": "x", "disabledTools": "s3cret"}}}`, `{"mcpServers": {"a": {"command": "x"}}, "inputs": "s3cret"}`,
		`{"mcpServers": {"a": {"command": "x", "holdfast": "s3cret"}}}`, `{"mcpServers": {"a": {"url": "http://u:s3cret@"}}}`, `{"mcpServers": {"a": {"url": "x?token=s3cret"}}}`,
		`{"mcpServers": {"a": {"url": "http://x", "holdfast": {"auth": {"upstream": {"clientCredentials": {"clientId": "h", "tokenUrl": "ftp://u:s3cret@h/t"}}}}}}}`,
		`{"mcpServers": {"a": {"command": "${a b:-s3cret}"}}}`,
	} {
		_, err := Parse("f.json", []byte(text), Options{Env: environment})
		if err == nil || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "73313") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
