package install

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf16"

	"holdfast/internal/config"
)

// documented are the example files in the hosts' documentation.
var documented = map[string]string{
	"claude-desktop": "../config/testdata/claude-desktop.json",
	"claude-code":    "../config/testdata/claude-code.json",
	"cursor":         "../config/testdata/cursor.json",
	"vscode":         "../config/testdata/vscode.json",
	"windsurf":       "../config/testdata/windsurf.json",
	"zed":            "../config/testdata/zed.json",
	"gemini":         "../config/testdata/gemini-cli.json",
	"codex":          "testdata/codex.toml",
	"opencode":       "../config/testdata/opencode.json",
}

var remote = &Server{Command: []string{"/usr/bin/holdfast", "connect", "https://example.com/mcp?a=1&b=2"}, Env: []Variable{{"HOLDFAST_HEADER", `Authorization: Bearer "x"`}}}

// put writes a file, and returns its name.
func put(t *testing.T, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, data, 0o640); err != nil {
		t.Fatal(err)
	}
	return file
}

func get(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// add adds a server to a file.
func add(t *testing.T, h *Host, file, name string, s *Server, force bool) {
	t.Helper()
	change, err := h.Add(file, name, s, force)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := change.Write(); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, h *Host, file, name string) {
	t.Helper()
	change, err := h.Remove(file, name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := change.Write(); err != nil {
		t.Fatal(err)
	}
}

// Adding a server to a host's file only adds lines, in the host's form, however the file is written. Removing the server
// restores the file.
func TestDocumentedFiles(t *testing.T) {
	t.Parallel()
	asIs := func(s string) string { return s }
	spelled := map[string]func(string) string{
		"as documented": asIs,
		"CRLF":          func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
		"tabs":          func(s string) string { return strings.ReplaceAll(s, "  ", "\t") },
		"three spaces":  func(s string) string { return strings.ReplaceAll(s, "  ", "   ") },
		"no line end":   func(s string) string { return strings.TrimRight(s, "\n") },
		"byte order mark": func(s string) string {
			return "\ufeff" + s
		},
		"UTF-16": func(s string) string {
			var b bytes.Buffer
			for _, unit := range utf16.Encode([]rune("\ufeff" + s)) {
				b.Write([]byte{byte(unit), byte(unit >> 8)})
			}
			return b.String()
		},
		"empty lines": func(s string) string { return "\n\n" + s + "\n\n" },
	}
	for _, h := range hosts {
		text := string(get(t, documented[h.Name]))
		for how, spell := range spelled {
			t.Run(h.Name+" "+how, func(t *testing.T) {
				t.Parallel()
				before := []byte(spell(text))
				file := put(t, filepath.Base(documented[h.Name]), before)
				add(t, h, file, "new", remote, false)
				after := get(t, file)
				if got := get(t, file+BackupSuffix); !bytes.Equal(got, before) {
					t.Error("the backup is not what was there")
				}
				addedOnly(t, text16(before), text16(after), "new")
				again, err := h.Add(file, "new", remote, false)
				if err != nil || !again.Same() {
					t.Errorf("the same again: %v, %v", again, err)
				}
				if !h.form.toml {
					asConfigReadsIt(t, file, h)
				}
				remove(t, h, file, "new")
				if got := get(t, file); !bytes.Equal(got, before) {
					t.Errorf("after install and uninstall: %q", got)
				}
				// The same holds without the backup.
				if err := os.WriteFile(file, after, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(file + BackupSuffix); err != nil {
					t.Fatal(err)
				}
				remove(t, h, file, "new")
				if got := get(t, file); !bytes.Equal(got, before) {
					t.Errorf("after install and uninstall without a backup: %q", got)
				}
			})
		}
	}
}

// text16 returns the text of a file in UTF-8 or UTF-16.
func text16(data []byte) string {
	text, _, err := decode(data)
	if err != nil {
		return string(data)
	}
	return text
}

// addedOnly checks that after is before plus some consecutive lines, and at most a comma before them.
func addedOnly(t *testing.T, before, after, name string) {
	t.Helper()
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	from := 0
	for from < len(old) && old[from] == now[from] {
		from++
	}
	end := 0
	for end < len(old)-from && old[len(old)-1-end] == now[len(now)-1-end] {
		end++
	}
	rest := old[from : len(old)-end]
	added := now[from : len(now)-end]
	if len(rest) > 1 || len(rest) == 1 && strings.Replace(added[0], ",", "", 1) != strings.Replace(rest[0], ",", "", 1) {
		t.Fatalf("lines are changed: %q became %q", rest, added)
	}
	if text := strings.Join(added, "\n"); !strings.Contains(text, name) {
		t.Errorf("what is new has no %s: %q", name, text)
	}
	if strings.Contains(before, "\r\n") && strings.Count(strings.Join(added[:len(added)-1], "\n")+"\n", "\n") != strings.Count(strings.Join(added[:len(added)-1], "\n")+"\n", "\r\n") {
		t.Errorf("line ends differ: %q", added)
	}
}

// asConfigReadsIt checks that package config finds the server in a file.
func asConfigReadsIt(t *testing.T, file string, h *Host) {
	t.Helper()
	read, err := config.Read(file, config.Options{
		Env: func(string) (string, bool) { return "v", true }, Input: func(config.Input) (string, error) { return "v", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range read.Servers {
		if s.Name == "new" {
			if got := strings.Join(s.Command, " "); got != strings.Join(remote.Command, " ") || s.Env["HOLDFAST_HEADER"] != remote.Env[0].Value {
				t.Errorf("%s: the server is %q %q", h.Name, got, s.Env)
			}
			return
		}
	}
	t.Errorf("%s: the server is not found", h.Name)
}

// Each case is a file of Cursor before and after a server is added.
func TestJSON(t *testing.T) {
	t.Parallel()
	cursor, _ := Find("cursor")
	const entry = `{"type": "stdio", "command": "h", "args": []}`
	in := func(indent, unit string) string {
		return "{\n" + indent + unit + `"type": "stdio",` + "\n" + indent + unit + `"command": "h",` + "\n" + indent + unit + `"args": []` + "\n" + indent + "}"
	}
	for _, c := range []struct{ before, after string }{
		{"", "{\n  \"mcpServers\": {\n    \"x\": " + in("    ", "  ") + "\n  }\n}\n"},
		{" \n", "{\n  \"mcpServers\": {\n    \"x\": " + in("    ", "  ") + "\n  }\n}\n"},
		{"{}", "{\n  \"mcpServers\": {\n    \"x\": " + in("    ", "  ") + "\n  }\n}"},
		{"{\n}\n", "{\n  \"mcpServers\": {\n    \"x\": " + in("    ", "  ") + "\n  }\n}\n"},
		{"{ // none yet\n}\n", "{ // none yet\n  \"mcpServers\": {\n    \"x\": " + in("    ", "  ") + "\n  }\n}\n"},
		{"{\n\t\"mcpServers\": {}\n}", "{\n\t\"mcpServers\": {\n\t\t\"x\": " + in("\t\t", "\t") + "\n\t}\n}"},
		{`{"mcpServers":{}}`, `{"mcpServers":{"x":{"type":"stdio","command":"h","args":[]}}}`},
		{`{"a": 1}`, `{"a": 1, "mcpServers": {"x": ` + entry + `}}`},
		{`{"mcpServers": {"a": {"command": "b"}}}`, `{"mcpServers": {"a": {"command": "b"}, "x": ` + entry + `}}`},
		{"{\n    \"mcpServers\": {\n        \"a\": {\"command\": \"b\"}\n    }\n}", "{\n    \"mcpServers\": {\n        \"a\": {\"command\": \"b\"},\n        \"x\": " + in("        ", "    ") + "\n    }\n}"},
		// Comments stay in place, and so does a trailing comma.
		{"{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"b\"} // a, }\n    // the end\n  }\n}", "{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"b\"}, // a, }\n    \"x\": " + in("    ", "  ") + "\n    // the end\n  }\n}"},
		{"{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"b\"}, /* a\n */\n  },\n}", "{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"b\"}, /* a\n */\n    \"x\": " + in("    ", "  ") + ",\n  },\n}"},
		{"{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"b\"} /* a */ ,\n  }}", "{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"b\"} /* a */ ,\n    \"x\": " + in("    ", "  ") + ",\n  }}"},
		// Braces in unusual places.
		{"{\n  \"mcpServers\":\n  {\n    \"a\": {\"command\": \"b\"}}}\n", "{\n  \"mcpServers\":\n  {\n    \"a\": {\"command\": \"b\"},\n    \"x\": " + in("    ", "  ") + "}}\n"},
		{"{\n  \"mcpServers\":\n  {\n  }\n}\n", "{\n  \"mcpServers\":\n  {\n    \"x\": " + in("    ", "  ") + "\n  }\n}\n"},
		// The root's members are not indented.
		{"{\n\"a\": 1\n}\n", "{\n\"a\": 1,\n\"mcpServers\": {\n  \"x\": " + in("  ", "  ") + "\n}\n}\n"},
		// One indentation step differs from the others.
		{"{\n  \"mcpServers\": {\n      \"a\": {\n          \"command\": \"b\"\n      }\n  }\n}", "{\n  \"mcpServers\": {\n      \"a\": {\n          \"command\": \"b\"\n      },\n      \"x\": " + in("      ", "    ") + "\n  }\n}"},
	} {
		file := put(t, "mcp.json", []byte(c.before))
		add(t, cursor, file, "x", &Server{Command: []string{"h"}}, false)
		if got := string(get(t, file)); got != c.after {
			t.Errorf("%q became\n%s\nwant\n%s", c.before, got, c.after)
		}
		remove(t, cursor, file, "x")
		if got := string(get(t, file)); got != c.before {
			t.Errorf("and then %q, want %q", got, c.before)
		}
	}
}

// Each case is a file of Codex before and after a server is added.
func TestTOML(t *testing.T) {
	t.Parallel()
	codex, _ := Find("codex")
	const table = "[mcp_servers.x]\ncommand = \"h\"\nargs = []"
	for _, c := range []struct{ before, after string }{
		{"", table + "\n"},
		{"# nothing\n", "# nothing\n\n" + table + "\n"},
		{"a = 1", "a = 1\n\n" + table},
		{"a = 1\n\n[b]\nc = 2\n", "a = 1\n\n[b]\nc = 2\n\n" + table + "\n"},
		{"[mcp_servers.a]\ncommand = 'b' # c\n\n# d\n[e]\n", "[mcp_servers.a]\ncommand = 'b' # c\n\n" + table + "\n\n# d\n[e]\n"},
		{"[mcp_servers.a]\ncommand = '''\n[e]\n'''\n[e]\n", "[mcp_servers.a]\ncommand = '''\n[e]\n'''\n\n" + table + "\n[e]\n"},
		{"[mcp_servers]\na = { command = 'b' }\n\n[e]\nf = 1\n", "[mcp_servers]\na = { command = 'b' }\n\n" + table + "\n\n[e]\nf = 1\n"},
		{"mcp_servers.a.command = 'b'\nc = 1\n", "mcp_servers.a.command = 'b'\nc = 1\n\n" + table + "\n"},
	} {
		for _, newline := range []string{"\n", "\r\n"} {
			before, after := strings.ReplaceAll(c.before, "\n", newline), strings.ReplaceAll(c.after, "\n", newline)
			if c.before == "" || c.before == "a = 1" {
				after = c.after // there is no line end to imitate
			}
			file := put(t, "config.toml", []byte(before))
			add(t, codex, file, "x", &Server{Command: []string{"h"}}, false)
			if got := string(get(t, file)); got != after {
				t.Errorf("%q became %q, want %q", before, got, after)
			}
			remove(t, codex, file, "x")
			if got := string(get(t, file)); got != before {
				t.Errorf("and then %q, want %q", got, before)
			}
		}
	}
	// An entry is removed with its other tables, in each form.
	for before, want := range map[string]string{
		"[mcp_servers.x]\ncommand = 'b'\n\n[mcp_servers.x.env]\nA = '1'\n\n[e]\n":   "\n[e]\n",
		"[e]\n\n[mcp_servers.x]\ncommand = 'b'\n[mcp_servers.a]\ncommand = 'c'\n":   "[e]\n[mcp_servers.a]\ncommand = 'c'\n",
		"[mcp_servers]\nx = { command = 'b' }\na = { command = 'c' }\n":             "[mcp_servers]\na = { command = 'c' }\n",
		"mcp_servers.x.command = 'b'\nmcp_servers.\"x\".args = []\nc = 1\n":         "c = 1\n",
		"[mcp_servers.x]\ncommand='b'\n[e]\n[mcp_servers.'x'.env]\nA='1'\n[f]\ng=1": "[e]\n[f]\ng=1",
	} {
		file := put(t, "config.toml", []byte(before))
		remove(t, codex, file, "x")
		if got := string(get(t, file)); got != want {
			t.Errorf("%q became %q, want %q", before, got, want)
		}
	}
}

// Another server with the same name stays, unless the caller replaces it.
func TestTaken(t *testing.T) {
	t.Parallel()
	for host, before := range map[string]string{
		"cursor": "{\n  \"mcpServers\": {\n    \"x\": {\"command\": \"other\"}, // here\n    \"y\": {\"command\": \"z\"}\n  }\n}",
		"codex":  "[mcp_servers.x]\ncommand = 'other'\n[mcp_servers.x.env]\nA = 'b'\n\n[mcp_servers.y]\ncommand = 'z'\n",
	} {
		h, _ := Find(host)
		file := put(t, "f", []byte(before))
		if _, err := h.Add(file, "x", remote, false); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "--force") {
			t.Errorf("%s: %v", host, err)
		}
		if got := string(get(t, file)); got != before {
			t.Errorf("%s: the file was written: %q", host, got)
		}
		add(t, h, file, "x", remote, true)
		got := string(get(t, file))
		if strings.Contains(got, "other") || strings.Index(got, "https://example.com") > strings.LastIndex(got, "y") || strings.Contains(before, "here") && !strings.Contains(got, "// here") {
			t.Errorf("%s: replaced: %s", host, got)
		}
	}
}

// A file that cannot be read, or that has no place for servers, is not written. The error says what is wrong, mostly with its place.
func TestWrongFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ host, text, want string }{
		{"cursor", "{\n  \"mcpServers\": {\n", "f:3:1: not JSON: "},
		{"cursor", "{\n  \"a\": 1 b\n}", "f:2:10: not JSON: "},
		{"cursor", "[]", "f:1:1: the file holds no object"},
		{"cursor", "{\n  \"mcpServers\": []\n}", "f:2:17: \"mcpServers\" is no object"},
		{"cursor", "{\"mcpServers\": {}, \"mcpServers\": {}}", "is there twice"},
		{"cursor", "{\"mcpServers\": {\"x\": {}, \"x\": {}}}", "is there twice"},
		{"cursor", "{\"a\": \"\xff\"}", "UTF-8"},
		{"opencode", "{\"mcp\": null}", "\"mcp\" is no object"},
		{"codex", "a = 1\nb = = 2\n", "f:2:5: not TOML: "},
		{"codex", "[a]\n[a]\n", "not TOML: "},
		{"codex", "mcp_servers = { a = { command = 'b' } }\n", "f:1:1: \"mcp_servers\" is an inline table"},
	} {
		h, _ := Find(c.host)
		file := put(t, "f", []byte(c.text))
		_, err := h.Add(file, "x", remote, true)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: %v, want %s", c.host, c.text, err, c.want)
		}
		if got := string(get(t, file)); got != c.text {
			t.Errorf("%q became %q", c.text, got)
		}
		if all, err := os.ReadDir(filepath.Dir(file)); err != nil || len(all) != 1 {
			t.Errorf("files are left: %v, %v", all, err)
		}
	}
}

// The mode of a file stays, a link stays a link, and a file that Add has created is removed again.
func TestFiles(t *testing.T) {
	t.Parallel()
	h, _ := Find("windsurf")
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real.json"), filepath.Join(dir, "here", "mcp_config.json")
	if err := os.Mkdir(filepath.Dir(link), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(real, []byte("{}\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" {
		if err := os.Symlink("../real.json", link); err != nil {
			t.Fatal(err)
		}
		add(t, h, link, "x", remote, false)
		if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("the link is %v, %v", info, err)
		}
		if info, err := os.Stat(real); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("the mode is %v, %v", info.Mode(), err)
		}
		if !bytes.Contains(get(t, real), []byte("example.com")) {
			t.Error("the file behind the link has no server")
		}
		gone := filepath.Join(dir, "gone")
		if err := os.Symlink("nowhere", gone); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Add(gone, "x", remote, false); err == nil || !strings.Contains(err.Error(), "link") {
			t.Errorf("a link to nothing: %v", err)
		}
	}
	if err := os.Chmod(real, 0o440); err != nil {
		t.Fatal(err)
	}
	change, err := h.Add(real, "y", remote, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := change.Write(); err == nil || !strings.Contains(err.Error(), "may only be read") {
		t.Errorf("a read-only file: %v", err)
	}

	made := filepath.Join(dir, "new", "folder", "mcp_config.json")
	add(t, h, made, "x", remote, false)
	if info, err := os.Stat(made); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("a new file: %v, %v", info, err)
	}
	remove(t, h, made, "x")
	if _, err := os.Stat(made); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file that was made is still there: %v", err)
	}
	if _, err := h.Remove(made, "x"); err == nil || !strings.Contains(err.Error(), "there is no file") {
		t.Errorf("no file: %v", err)
	}
	if _, err := h.Add(dir, "x", remote, false); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Errorf("a directory: %v", err)
	}
	under := filepath.Join(made, "..", "..", "..", "real.json", "mcp.json")
	if change, err := h.Add(under, "x", remote, false); err == nil {
		if _, err := change.Write(); err == nil {
			t.Error("a file below a file was written")
		}
	}
}

// A directory in which no file can be created stays unchanged.
func TestReadOnlyDirectory(t *testing.T) {
	t.Parallel()
	if os.Getuid() <= 0 {
		t.Skip("root may write everywhere, and Windows has no such mode")
	}
	h, _ := Find("cursor")
	file := put(t, "mcp.json", []byte("{}"))
	if err := os.Chmod(filepath.Dir(file), 0o500); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Chmod(filepath.Dir(file), 0o700) }()
	change, err := h.Add(file, "x", remote, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := change.Write(); err == nil || !strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("a read-only directory: %v", err)
	}
	if got := string(get(t, file)); got != "{}" {
		t.Errorf("the file is %q", got)
	}
}

// A file that its host has changed meanwhile is not overwritten.
func TestWrittenMeanwhile(t *testing.T) {
	t.Parallel()
	h, _ := Find("claude-code")
	file := put(t, ".claude.json", []byte("{}"))
	change, err := h.Add(file, "x", remote, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`{"n": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := change.Write(); err == nil || !strings.Contains(err.Error(), "run this again") {
		t.Errorf("written: %v", err)
	}
	all, err := os.ReadDir(filepath.Dir(file))
	if got := string(get(t, file)); got != `{"n": 2}` || err != nil || len(all) != 1 {
		t.Errorf("the file is %q; files: %v, %v", got, all, err)
	}
}

// Servers can be added and removed in any order.
func TestManyServers(t *testing.T) {
	t.Parallel()
	for _, h := range hosts {
		before := get(t, documented[h.Name])
		file := put(t, filepath.Base(documented[h.Name]), before)
		for _, name := range []string{"a", "b", "c"} {
			add(t, h, file, name, remote, false)
		}
		for _, name := range []string{"b", "c", "a"} {
			remove(t, h, file, name)
		}
		if got := get(t, file); !bytes.Equal(got, before) {
			t.Errorf("%s: %s", h.Name, got)
		}
	}
}

// The paths of the hosts' files, on each system.
func TestHostFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host, os string
		env      map[string]string
		want     string
	}{
		{"claude-desktop", "darwin", nil, "/h/Library/Application Support/Claude/claude_desktop_config.json"},
		{"claude-desktop", "linux", nil, "/h/.config/Claude/claude_desktop_config.json"},
		{"claude-desktop", "windows", map[string]string{"APPDATA": `C:\R`}, `C:\R\Claude\claude_desktop_config.json`},
		{"claude-desktop", "windows", nil, `C:\U\AppData\Roaming\Claude\claude_desktop_config.json`},
		{"claude-code", "linux", nil, "/h/.claude.json"},
		{"claude-code", "linux", map[string]string{"CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json"},
		{"claude-code", "windows", nil, `C:\U\.claude.json`},
		{"cursor", "windows", nil, `C:\U\.cursor\mcp.json`},
		{"vscode", "darwin", nil, "/h/Library/Application Support/Code/User/mcp.json"},
		{"vscode", "linux", map[string]string{"XDG_CONFIG_HOME": "/x"}, "/x/Code/User/mcp.json"},
		{"vscode", "linux", map[string]string{"XDG_CONFIG_HOME": "x"}, "/h/.config/Code/User/mcp.json"},
		{"windsurf", "darwin", nil, "/h/.codeium/windsurf/mcp_config.json"},
		{"zed", "darwin", map[string]string{"XDG_CONFIG_HOME": "/x"}, "/h/.config/zed/settings.json"},
		{"zed", "windows", map[string]string{"APPDATA": `C:\R`}, `C:\R\Zed\settings.json`},
		{"gemini", "linux", nil, "/h/.gemini/settings.json"},
		{"codex", "linux", map[string]string{"CODEX_HOME": "/c"}, "/c/config.toml"},
		{"codex", "windows", nil, `C:\U\.codex\config.toml`},
		{"opencode", "linux", nil, "/h/.config/opencode/opencode.json"},
	} {
		if runtime.GOOS == "windows" && c.os != "windows" {
			continue // these are paths of other systems
		}
		h, err := Find(c.host)
		if err != nil {
			t.Fatal(err)
		}
		s := &System{OS: c.os, Has: func(string) bool { return false }, Env: func(name string) string {
			return map[string]string{"HOME": "/h", "USERPROFILE": `C:\U`}[name] + c.env[name]
		}}
		if got, err := h.File(s, User); err != nil || got != c.want {
			t.Errorf("%s on %s, %q: %q, %v; want %q", c.host, c.os, c.env, got, err, c.want)
		}
	}
}

// The host's existing file is used. A host that is not installed is an error.
func TestHostIsThere(t *testing.T) {
	t.Parallel()
	home, has := t.TempDir(), false
	s := &System{OS: "linux", Env: func(name string) string { return map[string]string{"HOME": home}[name] }, Has: func(string) bool { return has }}
	h, _ := Find("opencode")
	file, err := h.File(s, User)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Missing(s, file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("not installed: %v", err)
	}
	has = true
	if err := h.Missing(s, file); err != nil {
		t.Errorf("with a program: %v", err)
	}
	has = false
	other := filepath.Join(filepath.Dir(file), "opencode.jsonc")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(other, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := h.Missing(s, file); err != nil {
		t.Errorf("with a folder: %v", err)
	}
	if got, _ := h.File(s, User); got != other {
		t.Errorf("the file is %s, want %s", got, other)
	}
	if _, err := (&Host{Title: "X"}).File(s, Project); err == nil {
		t.Error("a host without a file for projects has one")
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"cursor": "cursor", "Claude Desktop": "claude-desktop", "claude_code": "claude-code", "VS Code": "vscode", "code": "vscode", "gemini-cli": "gemini",
	} {
		if h, err := Find(name); err != nil || h.Name != want {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
	for name, want := range map[string]string{
		"claude": "did you mean claude-desktop or claude-code?", "curser": "did you mean cursor?", "windsruf": "did you mean windsurf?", "emacs": "known are claude-desktop, ", "": "known are",
	} {
		if _, err := Find(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

// The secrets of a file are not shown in a diff.
func TestDiff(t *testing.T) {
	t.Parallel()
	h, _ := Find("claude-desktop")
	file := put(t, "f", []byte("{\r\n  \"mcpServers\": {\r\n    \"a\": {\"command\": \"b\", \"env\": {\"API_KEY\": \"sec\\\"ret\", \"B\": \"c\"}}\r\n  }\r\n}\r\n"))
	change, err := h.Add(file, "x", remote, false)
	if err != nil {
		t.Fatal(err)
	}
	want := `--- ` + file + `
+++ ` + file + `
@@ -1,5 +1,12 @@
 {
   "mcpServers": {
-    "a": {"command": "b", "env": {"API_KEY": "…", "B": "c"}}
+    "a": {"command": "b", "env": {"API_KEY": "…", "B": "c"}},
+    "x": {
+      "command": "/usr/bin/holdfast",
+      "args": ["connect", "https://example.com/mcp?a=1&b=2"],
+      "env": {
+        "HOLDFAST_HEADER": "…"
+      }
+    }
   }
 }
`
	if got := change.Diff(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Any file is refused, or it gets the server and is restored when the server is removed.
func FuzzAdd(f *testing.F) {
	for _, name := range documented {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data), strings.HasSuffix(name, ".toml"))
	}
	for _, text := range []string{"{}", "{\"mcpServers\":{\"a\":{}\n,\"b\":{} , // c\n}}", "{/*\n*/}", "{\"a\":1//\n}", "{\n\"mcpServers\":{/**/}}", "{ \"mcpServers\" : { \"a\" : 1 , } , }"} {
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text string, isTOML bool) {
		name := "cursor"
		if isTOML {
			name = "codex"
		}
		h, _ := Find(name)
		file := put(t, "f", []byte(text))
		change, err := h.Add(file, "holdfast-x", remote, false)
		if err != nil {
			if strings.Contains(err.Error(), "cannot be put") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if change.Same() {
			return
		}
		if _, err := change.Write(); err != nil {
			t.Fatal(err)
		}
		remove(t, h, file, "holdfast-x")
		if got := string(get(t, file)); got != text {
			t.Errorf("%q became %q, and then %q", text, change.After, got)
		}
		// Without the backup, the remaining text has the same meaning.
		if err := errors.Join(os.WriteFile(file, []byte(change.After), 0o600), os.Remove(file+BackupSuffix)); err != nil {
			t.Fatal(err)
		}
		if left, err := h.Remove(file, "holdfast-x"); err != nil {
			t.Errorf("%q: %v", change.After, err)
		} else if again, err := h.Add(put(t, "g", []byte(left.After)), "holdfast-x", remote, false); err != nil || again.Same() {
			t.Errorf("%q left %q: %v", change.After, left.After, err)
		}
	})
}
