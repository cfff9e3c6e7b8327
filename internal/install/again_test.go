package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/testlong"
)

// found are possible files before a server is added. SECTION stands for the host's empty section.
var found = map[string]struct{ json, toml string }{
	"empty":                       {"", ""},
	"blank":                       {" \n", " \n"},
	"nothing in it":               {"{}", "# nothing\n"},
	"with a line end":             {"{}\n", "\n"},
	"a space":                     {"{ }", " "},
	"two lines":                   {"{\n}\n", "\n\n"},
	"an empty line":               {"{\n\n}\n", "\n \n"},
	"empty section":               {"{SECTION}", "[mcp_servers]\n"},
	"its own line":                {"{\n  SECTION\n}\n", "[mcp_servers]\n\n"},
	"no last line end":            {"{\n  SECTION\n}", "[mcp_servers]"},
	"tabs":                        {"{\n\tSECTION,\n\t\"a\": 1\n}\n", "[a]\n\tb = 1\n"},
	"odd indentation":             {"{\n   \"a\": {\n        \"b\": 1\n   },\n   SECTION\n}\n", "  [a]\n     b = 1\n"},
	"no indentation":              {"{\n\"a\": 1,\nSECTION\n}\n", "a = 1\n\n[mcp_servers]\n"},
	"other members":               {"{\"a\": 1}", "a = 1"},
	"trailing comma":              {"{\n  \"a\": 1,\n}\n", "[a]\nb = [1,]\n"},
	"one line, comma":             {"{ \"a\": 1, }", "a.b = 1 "},
	"comments":                    {"// first\n{\n  // second\n  \"a\": 1, // third\n  SECTION // fourth\n  /* fifth */\n} // last\n", "# first\n[a] # second\n# third\nb = 1 # fourth\n# last\n"},
	"one line, a comment":         {"{ \"a\": 1 /* one */ }", "a = 1 # one"},
	"one line, comma and comment": {"{ \"a\": 1, /* one */ }", "# one\na = 1 # two"},
	"comment in the section":      {"{\n  \"a\": 1,\n  OPEN /* none yet */ }\n}\n", "[mcp_servers] # none yet\n"},
	"comment before the value":    {"{\n  \"a\": 1, // one\n  SECTION, // two\n  \"b\": 2 // three\n}\n", "[mcp_servers]\n# none yet\n\n[a]\n"},
}

// emptySection returns the host's empty section, and how it begins.
func (h *Host) emptySection() (whole, open string) {
	for _, name := range h.form.section {
		open += fmt.Sprintf("%q: {", name)
	}
	return open + strings.Repeat("}", len(h.form.section)), open
}

// Once all added servers are removed, in any order, a file has the same bytes as before, and a file that did not exist is removed.
// The backup has the file's text from before each change.
func TestAddedAndRemoved(t *testing.T) {
	t.Parallel()
	other := &Server{Command: []string{"holdfast", "connect", "--", "node", "server.js"}, Env: []Variable{{"A", "b"}}}
	steps := map[string][]string{
		"one again":               {"+a", "-a", "+a", "-a"},
		"two, the first replaced": {"+a", "+b", "!a", "-b", "-a"},
	}
	if testlong.Wanted() {
		steps["two"] = []string{"+a", "+b", "-b", "-a"}
		steps["two, the first goes first"] = []string{"+a", "+b", "-a", "-b"}
		steps["three"] = []string{"+a", "+b", "-a", "+c", "-c", "-b"}
		steps["replaced"] = []string{"+a", "!a", "-a"}
	}
	for i, h := range hosts {
		t.Run(h.Name, func(t *testing.T) {
			t.Parallel()
			whole, open := h.emptySection()
			dir := t.TempDir()
			files := map[string]string{"no file": ""}
			for name, text := range found {
				before := strings.NewReplacer("SECTION", whole, "OPEN", open).Replace(text.json)
				if len(h.form.section) > 1 && strings.Contains(text.json, "OPEN") {
					continue
				}
				if h.form.toml {
					before = text.toml
				}
				files[name] = before
				files[name+", CRLF"] = strings.ReplaceAll(before, "\n", "\r\n")
			}
			for j, name := range slices.Sorted(maps.Keys(files)) {
				if !testlong.All() && (i+j)%3 != 0 { // the next host has the next third
					continue
				}
				before := files[name]
				for how, all := range steps {
					file := filepath.Join(dir, strings.ReplaceAll(name+" "+how, " ", "_"))
					if name != "no file" {
						if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
							t.Fatal(err)
						}
					}
					for _, step := range all {
						switch step[0] {
						case '+':
							add(t, h, file, step[1:], remote, false)
						case '!':
							add(t, h, file, step[1:], other, true)
						default:
							remove(t, h, file, step[1:])
						}
						if backup, err := os.ReadFile(file + BackupSuffix); name == "no file" && !errors.Is(err, fs.ErrNotExist) || name != "no file" && (err != nil || string(backup) != before) {
							t.Fatalf("%s, %s, %s: the backup is %q, %v", name, how, step, backup, err)
						}
					}
					got, err := os.ReadFile(file)
					if name == "no file" {
						if !errors.Is(err, fs.ErrNotExist) {
							t.Errorf("%s, %s: %q is left (%v)", name, how, got, err)
						}
					} else if err != nil || string(got) != before {
						t.Errorf("%s, %s: %q became %q (%v)", name, how, before, got, err)
					}
				}
			}
		})
	}
}

// Comments and empty sections also stay if there is no backup.
func TestWithoutBackup(t *testing.T) {
	t.Parallel()
	h, _ := Find("cursor")
	for _, before := range []string{
		`{"mcpServers": {"a": {"command": "b"}, /* one */}}`,
		`{ "a": 1, /* one */ }`,
		`{ "a": 1 /* one */ }`,
		"{\n  \"mcpServers\": {} // one\n}\n",
		"{\n  \"mcpServers\": /* one */ {}\n}\n",
		"{\n  \"mcpServers\": {\n    \"a\": {} // one\n  } // two\n}\n",
	} {
		file := put(t, "mcp.json", []byte(before))
		add(t, h, file, "x", remote, false)
		if err := os.Remove(file + BackupSuffix); err != nil {
			t.Fatal(err)
		}
		remove(t, h, file, "x")
		if got := string(get(t, file)); got != before {
			t.Errorf("%q became %q", before, got)
		}
	}
}

// Servers that other programs have written are in the backup. They are not removed with the added servers, nor taken for them.
func TestOthersWrite(t *testing.T) {
	t.Parallel()
	h, _ := Find("cursor")
	foreign := &Server{Command: []string{"node", "theirs.js"}} // in the same form as Add writes it
	t.Run("a server of the user in a file that was made", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "mcp.json")
		add(t, h, file, "x", remote, false)
		write(t, h, file, "theirs", foreign)
		before := get(t, file)
		add(t, h, file, "y", remote, false)
		if got := get(t, file+BackupSuffix); !bytes.Equal(got, before) {
			t.Errorf("the backup is %q", got)
		}
		remove(t, h, file, "x")
		remove(t, h, file, "y")
		if got := string(get(t, file)); !strings.Contains(got, "theirs.js") || strings.Contains(got, "example.com") {
			t.Errorf("what is left is %q", got)
		}
		remove(t, h, file, "theirs")
		if got := string(get(t, file)); !strings.Contains(got, "{") {
			t.Errorf("what is left is %q", got)
		}
	})
	t.Run("a server of the user after the backup", func(t *testing.T) {
		file := put(t, "mcp.json", []byte("{}\n"))
		add(t, h, file, "x", remote, false)
		write(t, h, file, "theirs", foreign)
		before := get(t, file)
		remove(t, h, file, "theirs")
		if got := get(t, file+BackupSuffix); !bytes.Equal(got, before) {
			t.Errorf("the backup is %q, and has not the server that was taken out", got)
		}
	})
	t.Run("an old backup", func(t *testing.T) {
		file := put(t, "mcp.json", []byte("{}\n"))
		add(t, h, file, "x", remote, false)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		add(t, h, file, "x", remote, false)
		remove(t, h, file, "x")
		if got, err := os.ReadFile(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q is left (%v)", got, err)
		}
	})
	t.Run("a backup with a user's servers", func(t *testing.T) {
		const before = "{\n  \"mcpServers\": {\"mine\": {\"command\": \"m\"}}\n}\n"
		file := put(t, "mcp.json", []byte(before))
		add(t, h, file, "x", remote, false)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		add(t, h, file, "x", remote, false)
		add(t, h, file, "y", remote, false)
		remove(t, h, file, "y")
		remove(t, h, file, "x")
		if got := string(get(t, file+BackupSuffix)); got != before {
			t.Errorf("the backup is %q", got)
		}
		if got, err := os.ReadFile(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q is left (%v)", got, err)
		}
	})
	t.Run("a file with one server of the user alone", func(t *testing.T) {
		file := put(t, "mcp.json", []byte("{\n  \"mcpServers\": {\n    \"x\": {\n      \"command\": \"node\"\n    }\n  }\n}\n"))
		remove(t, h, file, "x")
		if got := string(get(t, file)); got != "{}\n" {
			t.Errorf("what is left is %q", got)
		}
	})
}

// write writes a server into a file as another program would: without a backup.
func write(t *testing.T, h *Host, file, name string, s *Server) {
	t.Helper()
	change, err := h.Add(file, name, s, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(change.After), 0o600); err != nil {
		t.Fatal(err)
	}
}
