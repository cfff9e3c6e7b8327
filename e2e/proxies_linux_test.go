package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

// printed returns the first code block of a language in docs/proxies.md.
func printed(t *testing.T, language string) string {
	t.Helper()
	m := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindStringSubmatch(string(fromRoot(t, "docs", "proxies.md")))
	if m == nil {
		t.Fatalf("docs/proxies.md has no block for %s", language)
	}
	return m[1]
}

// replaced replaces texts by pairs of old and new, and fails the test if an old text is missing.
func replaced(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("there is no %q in\n%s", pairs[i], text)
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

// A frontProxy is a proxy that is started with a configuration, and can be killed and started again.
type frontProxy struct {
	addr string
	args []string
	*mcptest.Process
}

func (p *frontProxy) start(t *testing.T) {
	t.Helper()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.Process = mcptest.Start(t, cmd)
	mcptest.Eventually(t, p.args[0]+" listens", 30*time.Second, func() bool {
		c, err := net.Dial("tcp", p.addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// kill kills all processes of the proxy.
func (p *frontProxy) kill() {
	_ = syscall.Kill(-p.Cmd.Process.Pid, syscall.SIGKILL) // the proxy may have ended
	<-p.Ended
}

// The configurations of proxies in docs/proxies.md work as described there: a message passes at once, a
// large body passes, a WebSocket passes, and a call survives a kill of the proxy.
func TestProxies(t *testing.T) {
	testlong.Only(t, "it needs nginx and Caddy")
	t.Parallel()
	for name, configure := range map[string]func(t *testing.T, dir, addr, upstream string) []string{
		"nginx": func(t *testing.T, dir, addr, upstream string) []string {
			block := replaced(t, printed(t, "nginx"), "127.0.0.1:8080", upstream, "443 ssl", addr)
			block = regexp.MustCompile(`(?m)^\s*ssl_.*$`).ReplaceAllString(block, "")
			file := filepath.Join(dir, "nginx.conf")
			var temporary strings.Builder
			for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				fmt.Fprintf(&temporary, "%s_temp_path %s;\n", kind, filepath.Join(dir, kind))
			}
			text := fmt.Sprintf("daemon off;\nuser root;\npid %s;\nerror_log stderr crit;\nevents {}\nhttp {\naccess_log off;\n%s%s}\n", filepath.Join(dir, "pid"), temporary.String(), block)
			mcptest.Check(t, os.WriteFile(file, []byte(text), 0o600))
			return []string{"nginx", "-c", file, "-e", "stderr"}
		},
		"caddy": func(t *testing.T, dir, addr, upstream string) []string {
			block := replaced(t, printed(t, "caddy"), "127.0.0.1:8080", upstream, "mcp.example.com", "http://"+addr)
			file := filepath.Join(dir, "Caddyfile")
			text := "{\n\tadmin off\n\tauto_https off\n\tlog {\n\t\tlevel ERROR\n\t}\n}\n" + block
			mcptest.Check(t, os.WriteFile(file, []byte(text), 0o600))
			return []string{"env", "HOME=" + dir, "caddy", "run", "--adapter", "caddyfile", "--config", file}
		},
	} {
		for _, scheme := range []string{"http", "ws"} {
			t.Run(name+"/"+scheme, func(t *testing.T) {
				t.Parallel()
				_, err := exec.LookPath(name)
				testlong.Needs(t, err == nil, name+": run .ci/run tools")
				w := newWaiter(t)
				upstream := strings.TrimPrefix(w.URL, "http://")
				p := &frontProxy{addr: testport.Addr(t)}
				p.args = configure(t, t.TempDir(), p.addr, upstream)
				p.start(t)
				t.Cleanup(func() { p.kill() })
				w.through(t, scheme+"://"+p.addr, func() {
					p.kill()
					p.start(t)
				})
			})
		}
	}
}

// through calls the waiter's tool at a URL. Once the tool's progress has arrived, it calls broken, which breaks the connection.
func (w *waiter) through(t *testing.T, url string, broken func()) {
	t.Helper()
	ctx := bounded(t, 2*time.Minute)
	client := mcptest.Must(connectOfficial(ctx, holdfast.NewClientTransport(url, nil), "", nil))(t)
	defer func() { _ = client.Close() }()
	failed := make(chan error, 1)
	go func() {
		params := &mcp.CallToolParams{Name: "pay", Arguments: map[string]any{"amount": 7, "note": strings.Repeat("x", 3<<20)}}
		params.SetProgressToken("p")
		res, err := client.CallTool(ctx, params)
		if err == nil && fmt.Sprint(res.StructuredContent) != "7" {
			err = fmt.Errorf("the result is %v", res.StructuredContent)
		}
		failed <- err
	}()
	mcptest.Eventually(t, "the progress of the call", 2*time.Minute, func() bool { return len(client.progressOf("p")) > 0 })
	broken()
	w.end()
	if err := <-failed; err != nil {
		t.Error(err)
	}
	w.ranOnce(t)
}
