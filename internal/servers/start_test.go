package servers_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/config"
	"holdfast/internal/mcptest"
	"holdfast/internal/servers"
)

// TestNotStarted has commands that cannot be started. The log names each command and the reason, at level ERROR and
// once. Clients get only the server's name, in both eras, alone, shared and merged.
func TestNotStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain-s3cret")
	mcptest.Check(t, os.WriteFile(plain, []byte("x"), 0o600))
	script := filepath.Join(dir, "script-s3cret")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter-s3cret\n"), 0o700); err != nil { //nolint:gosec // it is to be run
		t.Fatal(err)
	}
	text := `{"mcpServers": {
		"gone": {"command": "gone-s3cret"},
		"gone shared": {"command": "gone-s3cret", "holdfast": {"share": true}},
		"nowhere": {"command": "cat", "cwd": "/nowhere/s3cret"},
		"not executable": {"command": "` + plain + `"},
		"no interpreter": {"command": "` + script + `"}
	}, "holdfast": {"merge": true}}`
	file := mcptest.Must(config.Parse("test.json", []byte(text), config.Options{Workspace: dir}))(t)
	var log mcptest.Log
	logger := slog.New(slog.NewTextHandler(&log, nil))
	set := servers.New(file, logger)
	url := serveSet(t, set, &holdfast.Options{Logger: logger, Eras: holdfast.ErasBoth})
	modern := func(name string) string {
		return mcptest.ModernRequest(1, "tools/call", "{}", fmt.Sprintf(`"name":%q,"arguments":{}`, name))
	}
	post := func(path, body string) (int, string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r := mcptest.Must(mcptest.Exchange(ctx, http.MethodPost, url+path, body))(t)
		return r.Status, r.Body
	}
	for _, s := range file.Servers {
		path := strings.ReplaceAll(s.Path, " ", "%20")
		for name, body := range map[string]string{"legacy": mcptest.Initialize("2025-11-25", "{}"), "modern": modern("x")} {
			status, answer := post(path, body)
			shared := s.Share // the sessions of a shared server begin before its process does
			if (status != http.StatusBadGateway) != shared || strings.Contains(answer, "s3cret") || !strings.Contains(answer, fmt.Sprintf(`the server \"%s\" cannot be started`, s.Name)) {
				t.Errorf("%s, %s: %d %s", s.Name, name, status, answer)
			}
		}
		status, answer := post("/mcp", modern(s.MergedPrefix()+"x"))
		if strings.Contains(answer, "s3cret") || !strings.Contains(answer, "error") {
			t.Errorf("%s, merged: %d %s", s.Name, status, answer)
		}
	}
	logged := log.Take()
	errors := make(map[string]int)
	for line := range strings.Lines(logged) {
		for _, s := range file.Servers {
			name := " server=" + s.Name + " "
			if strings.Contains(s.Name, " ") {
				name = fmt.Sprintf(" server=%q ", s.Name)
			}
			if strings.Contains(line, "level=ERROR") && strings.Contains(line, name) && strings.Contains(line, "s3cret") {
				errors[s.Name]++
			}
		}
	}
	for _, s := range file.Servers {
		if errors[s.Name] != 1 {
			t.Errorf("%s: %d lines of level ERROR in\n%s", s.Name, errors[s.Name], logged)
		}
	}
	if n := strings.Count(logged, "level=WARN"); n > 6 {
		t.Errorf("%d lines of level WARN:\n%s", n, logged)
	}
}

// TestStartsAgain has a command that cannot be started, or that ends at its start, in one way after the other, at the server's own
// path, shared and merged. The log has one line for each way, however often the command is tried, and one when it has started.
func TestStartsAgain(t *testing.T) {
	t.Parallel()
	exe := mcptest.Must(os.Executable())(t)
	for _, door := range []struct{ name, path, more string }{
		{"own path", "/a/mcp", ""}, {"shared", "/a/mcp", `, "holdfast": {"share": true}`}, {"merged", "/mcp", ""},
	} {
		t.Run(door.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			at := filepath.Join(dir, "run")
			text := fmt.Sprintf(`{"mcpServers": {"a": {"command": %q%s}}, "holdfast": {"merge": true}}`, at, door.more)
			file := mcptest.Must(config.Parse("test.json", []byte(text), config.Options{Workspace: dir}))(t)
			var log mcptest.Log
			logger := slog.New(slog.NewTextHandler(&log, nil))
			set := servers.New(file, logger)
			url := serveSet(t, set, &holdfast.Options{Logger: logger})
			set.TellNotRunnable()
			for _, step := range []struct {
				script string
				mode   string
				once   string // a part of the only line for the operator
			}{
				{once: "cannot start for now"},
				{script: "exit 0", mode: "600", once: "permission denied"},
				{script: "#!/bin/sh\necho no module $$ >&2; exit 3", once: "exit status 3"},
				{script: "#!/bin/sh\necho not json; echo no module $$ >&2; exit 4", once: "exit status 4"},
				{script: "#!/bin/sh\necho no room at $$ >&2; exit 4", once: "no room"},
				{script: "#!/bin/sh\nkill -9 $$", once: "signal: killed"},
				{script: "#!/bin/sh\nexec env " + standIn + "=1 '" + exe + "' a", once: "the server has started again"},
			} {
				_ = os.Remove(at)
				if step.script != "" {
					// Another process writes the script: a child that this process forks meanwhile
					// would hold the file open, and a file that is open for writing cannot be run.
					write := exec.CommandContext(t.Context(), "sh", "-c", `cat >"$0" && chmod "$1" "$0"`, at, cmp.Or(step.mode, "700"))
					write.Stdin = strings.NewReader(step.script)
					mcptest.Check(t, write.Run())
				}
				for range 4 {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					_, err := mcptest.Exchange(ctx, http.MethodPost, url+door.path, mcptest.Initialize("2025-11-25", "{}"))
					cancel()
					if err != nil {
						t.Fatal(err)
					}
				}
				logged := log.Take()
				lines, saidOnce := 0, 0
				for line := range strings.Lines(logged) {
					if strings.Contains(line, "level=ERROR") || strings.Contains(line, "started again") {
						lines++
						if strings.Contains(line, step.once) {
							saidOnce++
						}
					}
				}
				if lines != 1 || saidOnce != 1 || strings.Count(logged, "stderr=") > 2 || strings.Count(logged, "is no message") > 1 || strings.Count(logged, "\n") > 5 {
					t.Errorf("%s: the log has\n%s", step.once, logged)
				}
			}
		})
	}
}

// TestOwnPath has commands that are only in the PATH of their server, which is set by env or by an envFile, and
// relative to the server's folder.
func TestOwnPath(t *testing.T) {
	exe := mcptest.Must(os.Executable())(t)
	dir := t.TempDir()
	bin := filepath.Join(dir, "node_modules", ".bin")
	mcptest.Check(t, os.MkdirAll(bin, 0o700))
	script := "#!/bin/sh\nexec env " + standIn + "=1 '" + exe + "' only-here \"$PWD\" \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "only-here"), []byte(script), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	mcptest.Check(t, os.WriteFile(filepath.Join(dir, ".env"), []byte("PATH="+bin+":/usr/bin:/bin\n"), 0o600))
	text := fmt.Sprintf(`{"mcpServers": {
		"env": {"command": "only-here", "env": {"PATH": "%s:${PATH}"}},
		"file": {"command": "only-here", "envFile": "${workspaceFolder}/.env"},
		"relative": {"command": "only-here", "env": {"PATH": "node_modules/.bin:${PATH}"}},
		"wrong": {"command": "only-here", "env": {"PATH": "/nowhere"}},
		"none": {"command": "only-here"}
	}}`, bin)
	f := newFarm(t, `{"mcpServers": {"a": "$a"}}`, "a")
	file := mcptest.Must(config.Parse(filepath.Join(dir, ".vscode", "mcp.json"), []byte(text), config.Options{}))(t)
	f.set.Apply(file)
	for _, s := range file.Servers {
		bad := s.Name == "wrong" || s.Name == "none"
		if err := servers.Runnable(s); (err != nil) != bad {
			t.Errorf("%s: %v", s.Name, err)
		}
		if bad {
			continue
		}
		if got := call(t, f.connect(s.Path), "about"); got != dir {
			t.Errorf("%s runs in %s", s.Name, got)
		}
	}
}

// TestLeftOut has a server with a variable that is gone after a change of the file: the server runs on
// unchanged, and other servers change.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	f := newFarm(t, `{"mcpServers": {"a": "$a", "b": "$b"}}`, "a", "b")
	s := f.connect("/a/mcp")
	did := f.set.Apply(f.parse(`{"mcpServers": {"a": {"$url_a", "headers": {"X": "${NOT_SET_HERE}"}}, "b": {"$url_b", "headers": {"X": "y"}}}}`))
	if got := fmt.Sprint(did.Kept, did.Changed, did.Removed); got != "[a] [b] []" {
		t.Errorf("%s", got)
	}
	if got := call(t, s, "echo"); got != "a:echo:hi" {
		t.Error(got)
	}
	if got := call(t, f.connect("/a/mcp"), "echo"); got != "a:echo:hi" {
		t.Error(got)
	}
}
