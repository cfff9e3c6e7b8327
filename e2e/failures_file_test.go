package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// toldStdio makes the test binary a server on stdio with the tool "odd", which returns args and the test's environment variables.
func toldStdio(args []string) {
	tells := func(m jsonrpc.Message, _ func(string)) string {
		return mcptest.Text(m, fmt.Sprintf("args %s, own %s, secret %s", strings.Join(args, " "), os.Getenv("FAILURE23_OWN"), os.Getenv("FAILURE23_SECRET")))
	}
	mcptest.Stdio(mcptest.Answers{"tools/call odd": tells, "tools/call even": tells}.Script)
}

// regexpBase finds the base URL in the log.
var regexpBase = regexp.MustCompile(`http://127\.0\.0\.1:\d+`)

// FAILURES 23: a host's file as people write it, with a byte order mark, comments, variables of the server's own env, PATH in
// env, secrets with $, and tools that are off by the host's members. A wrong entry is left out, and the others are served.
func TestFailure23File(t *testing.T) {
	t.Setenv("FAILURE23_OWN", "of-holdfast")
	self := mcptest.Must(os.Executable())(t)
	bin := t.TempDir()
	mcptest.Check(t, os.Symlink(self, filepath.Join(bin, "failure23-server")))
	file := filepath.Join(t.TempDir(), "mcp.json")
	text := "\xef\xbb\xbf" + fmt.Sprintf(`{
  // as people have it
  "mcpServers": {
    "own": {"command": %[1]q, "args": ["told", "Authorization:${FAILURE23_OWN}"], "env": {"FAILURE23_OWN": "Bearer of-the-file"}},
    "default": {"command": %[1]q, "args": ["told", "${FAILURE23_NONE:-or-this}", "${env:FAILURE23_OWN}"]},
    "dollars": {"command": %[1]q, "args": ["told", "a$b", "$1", "100$"], "env": {"FAILURE23_SECRET": "p$ss$$w0rd$"}},
    "path": {"command": "failure23-server", "args": ["told", "found"], "env": {"PATH": %[2]q}},
    "off": {"command": %[1]q, "args": ["told"], "disabled": true},
    "tools": {"command": %[1]q, "args": ["told"], "disabledTools": ["odd"], "alwaysAllow": ["even"], "timeout": 60},
    /* wrong in several ways */
    "unset": {"command": %[1]q, "args": ["told", "${FAILURE23_NONE}"]},
    "missing": {"command": "no-such-command-here"},
  },
  "theme": "dark",
}`, self, bin)
	mcptest.Check(t, os.WriteFile(file, []byte(text), 0o600))
	mcptest.Check(t, build())
	p := serveBy(t, exec.Command(built, "serve", "--listen", "127.0.0.1:0", "--config", file))
	base := regexpBase.FindString(p.log.String())
	for name, want := range map[string]string{
		"own":     "args Authorization:Bearer of-the-file, own Bearer of-the-file",
		"default": "args or-this of-holdfast,",
		"dollars": "args a$b $1 100$, own of-holdfast, secret p$ss$$w0rd$",
		"path":    "args found,",
		"tools":   "",
	} {
		c := connect(t, &program{URL: base + "/" + name + "/mcp"})
		if want == "" {
			names, _ := toolNames(t, c)
			if all := strings.Join(names, " "); all != "even holdfast_wait holdfast_cancel" {
				t.Errorf("%s: the tools are %q", name, all)
			}
			if got := c.ask(oddCall(8, "odd", "")); !strings.Contains(got, `"error"`) {
				t.Errorf("%s: a tool that is off answers %s", name, got)
			}
			continue
		}
		if got := c.ask(oddCall(7, "odd", "")); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	for _, name := range []string{"off", "unset", "missing"} {
		r := post(t, base+"/"+name+"/mcp", "", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
		if r.Status == http.StatusOK {
			t.Errorf("%s: %s", name, r.Body)
		}
	}
	if log := p.log.String(); !strings.Contains(log, "FAILURE23_NONE") || strings.Contains(log, "w0rd") {
		t.Errorf("the log is %s", log)
	}
}
