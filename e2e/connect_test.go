package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestConnect has a host that knows stdio only, the command line of the MCP Inspector, use a
// remote server: the host starts "holdfast connect" as its server.
func TestConnect(t *testing.T) {
	eachInspector(t, func(t *testing.T, command []string) {
		u := &user{state: t.TempDir(), command: command}
		t.Run("restarted in between", func(t *testing.T) { // the session that connect has on record is lost when the host comes back
			p := serve(t, "--demo")
			u.wantCount(t, p.URL, "3", "1")
			kept, err := filepath.Glob(filepath.Join(u.state, "holdfast", "connect", "*.json"))
			if err != nil || len(kept) == 0 {
				t.Errorf("nothing is kept: %v", err)
			}
			u.wantCount(t, p.URL, "3", "1")
			restarted(t, p)
			u.wantCount(t, p.URL, "3", "1")
		})
		t.Run("restarted meanwhile", func(t *testing.T) { // while the host is connected, which does not notice
			p := serve(t, "--demo")
			var once sync.Once
			url := behind(t, p.URL, 0, func(request string) Cut {
				if strings.Contains(request, "tools/list") {
					once.Do(func() { restarted(t, p) })
				}
				return Cut{}
			})
			var list struct {
				Tools []struct{ Name string }
			}
			unmarshal(t, u.inspect(t, url, "--method", "tools/list"), &list)
			if len(list.Tools) != 5 { // including the tools of the hand-off
				t.Errorf("tools/list: %+v", list)
			}
			ran := false
			once.Do(func() { ran = true })
			if ran {
				t.Error("the server was not restarted")
			}
		})
		t.Run("cut", func(t *testing.T) {
			url := behind(t, serve(t, "--demo").URL, 2, always(Cut{After: 200 * time.Millisecond}))
			u.wantCount(t, url, "20", "100")
		})
	})
}

// A user runs the Inspector, again and again.
type user struct {
	state   string // the directory that connect keeps its state in
	command []string
}

// inspect runs the Inspector with "holdfast connect URL" as its server.
func (u *user) inspect(t *testing.T, url string, args ...string) []byte {
	t.Helper()
	all := append(append([]string{}, u.command[1:]...),
		"--cli", "-e", "XDG_STATE_HOME="+u.state, built, "connect", url)
	return run(t, u.command[0], append(all, args...)...)
}

// restarted kills a server, as a crash would, and starts it again at the same address.
func restarted(t *testing.T, p *program) {
	t.Helper()
	p.signal(t, os.Kill)
	_ = p.wait(t, 5*time.Second) // the error says that it was killed
	serve(t, "--demo", "--listen", p.Addr)
}

// wantCount calls the tool count, and checks its result.
func (u *user) wantCount(t *testing.T, url, to, delay string) {
	t.Helper()
	wantText(t, u.inspect(t, url, "--method", "tools/call", "--tool-name", "count",
		"--tool-arg", "to="+to, "--tool-arg", "delay_ms="+delay), to)
}
