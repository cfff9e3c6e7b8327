package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// A bridged is a client of holdfast that a host starts and speaks with over stdio.
type bridged struct {
	t     *testing.T
	in    io.Writer
	lines *bufio.Scanner
}

// remote starts mcp-remote and initializes a session through it.
func remote(t *testing.T, url, revision string) *bridged {
	t.Helper()
	dir := npm(t, mcpRemote)
	cmd := exec.Command("node", filepath.Join(dir, mcpRemote), url, "--transport", "http-only", "--allow-http")
	cmd.Env = append(os.Environ(), "MCP_REMOTE_CONFIG_DIR="+t.TempDir())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	late := time.AfterFunc(time.Minute, ended) // else nobody would end the reading
	t.Cleanup(func() {
		late.Stop()
		ended()
		if t.Failed() {
			t.Logf("mcp-remote:\n%s", log.String())
		}
	})
	b := &bridged{t: t, in: in, lines: bufio.NewScanner(out)}
	b.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"host","version":"1"}}}`, revision)
	if got := b.response("0"); !strings.Contains(got, revision) {
		t.Fatalf("initialize: %s", got)
	}
	b.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return b
}

func (b *bridged) say(format string, args ...any) {
	b.t.Helper()
	if _, err := fmt.Fprintf(b.in, format+"\n", args...); err != nil {
		b.t.Fatal(err)
	}
}

// response reads the response to a request, and passes over all that comes before.
func (b *bridged) response(id string) string {
	b.t.Helper()
	for b.lines.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		unmarshal(b.t, b.lines.Bytes(), &m)
		if m.Method == "" && string(m.ID) == id {
			return b.lines.Text()
		}
	}
	b.t.Fatalf("no response to %s: %v", id, b.lines.Err())
	return ""
}

// TestRemote is mcp-remote, whose silent call is cut before any event has arrived. The
// only connection that it has besides is its GET stream, which was there before.
func TestRemote(t *testing.T) {
	for _, revision := range []string{"2025-06-18", "2025-11-25"} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			p := serve(t, "--demo", "--retry", "100ms")
			sessionID := regexp.MustCompile(`(?i)\r\nmcp-session-id: (\S+)`)
			var first string // it begins two, and uses the second
			listens := make(chan struct{})
			listening := sync.OnceFunc(func() { close(listens) })
			url := cutting(t, p, p.URL, 1, func(request string) Cut {
				id := ""
				if m := sessionID.FindStringSubmatch(request); m != nil {
					id = m[1]
					first = cmp.Or(first, id)
				}
				switch {
				case id == "" || id == first:
				case strings.HasPrefix(request, "GET "):
					time.AfterFunc(500*time.Millisecond, listening) // it has arrived by then
				case strings.Contains(request, `"tools/call"`):
					return Cut{Bytes: 1, Body: true}
				}
				return Cut{}
			})
			b := remote(t, url, revision)
			<-listens
			if os.Getenv("CI") != "" {
				time.Sleep(11 * time.Second) // for as long as the order of two requests may be in doubt
			}
			b.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"to":1,"delay_ms":1000}}}`)
			if got := b.response("1"); !strings.Contains(got, `"text":"1"`) {
				t.Errorf("got %s", got)
			}
		})
	}
}
