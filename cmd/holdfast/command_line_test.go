package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// TestCommandLine runs the commands of docs/command-line.md, and compares their output with the output on the page, except for names,
// ages, times, and the progress of a call.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("there is no sh")
	}
	demo := newDemo()
	var halt atomic.Bool // keeps the call from its end until the page resumes it, however slow the machine is
	halt.Store(true)
	halting(demo, halt.Load)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return demo }, nil)
	server := httptest.NewServer(handler)
	defer server.Close()
	defer func() {
		ctx, stop := context.WithCancel(context.Background())
		stop()
		_ = handler.Shutdown(ctx)
	}()
	at := strings.TrimPrefix(server.URL, "http://")
	home := t.TempDir()
	mcptest.Check(t, os.MkdirAll(filepath.Join(home, ".cursor"), 0o700))
	mcptest.Check(t, os.WriteFile(filepath.Join(home, ".cursor", "mcp.json"), []byte(`{"mcpServers":{"demo":{"url":"`+server.URL+`/mcp"}}}`), 0o600))
	page := mcptest.Must(os.ReadFile(filepath.Join(repository, "docs", "command-line.md")))(t)
	blocks := mcptest.Must(blocksOf("docs/command-line.md", string(page)))(t)
	const printed = "count-k3f9"
	name := printed
	resume := regexp.MustCompile(`holdfast resume (count-\w+)`)
	commands := 0
	for _, b := range blocks {
		if b.language != "console" {
			continue
		}
		for _, step := range strings.Split("\n"+b.text, "\n$ ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			commands++
			halt.Store(halt.Load() && !strings.HasPrefix(command, "holdfast resume"))
			within := "4s" // instead of 1s: so the call has emitted a message on a slow machine, too
			if testlong.All() {
				within = "10s"
			}
			run := func() string {
				cmd := exec.Command("sh", "-c", strings.NewReplacer("127.0.0.1:8080", at, printed, name, "--timeout 1s", "--timeout "+within).Replace(command))
				cmd.Dir = home
				cmd.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+home, "XDG_CONFIG_HOME=", "NO_COLOR=1")
				out, _ := cmd.CombinedOutput() // some commands fail, and print the error
				if m := resume.FindStringSubmatch(string(out)); m != nil {
					name = m[1]
				}
				return alike(strings.NewReplacer(at, "127.0.0.1:8080", name, printed, "within "+within, "within 1s").Replace(string(out)))
			}
			if got, want := run(), alike(want); got != want {
				t.Errorf("$ %s\n%s\nthe page says\n%s", command, got, want)
			}
		}
	}
	if commands < 5 {
		t.Errorf("the page has %d commands", commands)
	}
}

// alike returns the output of a command with placeholders for the parts that differ each time.
func alike(text string) string {
	for _, one := range []struct{ is, becomes string }{
		{`holdfast-demo \S+`, "holdfast-demo VERSION"},
		{`\d{4}-\d\d-\d\dT[\d:.]+Z`, "TIME"},
		{` \d+s  `, " AGE  "},
		{`\d+/8 counted to \d+`, "SO FAR"},
		{`"progress": \d+`, `"progress": N`},
		{`"counted to \d+"`, `"counted to N"`},
		{`"unread": \w+`, `"unread": BOOL`},
		{`(?m)^(progress|If this is interrupted,) .*\n`, ""},
		{` +`, " "},
	} {
		text = regexp.MustCompile(one.is).ReplaceAllString(text, one.becomes)
	}
	return strings.TrimSpace(text)
}
