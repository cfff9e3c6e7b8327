package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

// A wild is a stdio server that people run.
type wild struct {
	command []string // $DIR stands for the server's own directory
	call    toolCall
	want    string // a text in the answer
}

// wildServers returns the servers that people run, by their names.
func wildServers(t *testing.T) map[string]wild {
	dir := npm(t, everything, memoryNpm, filesNpm, playwright, devTools, mcpRemote)
	script := func(name string, args ...string) []string {
		return append([]string{"node", filepath.Join(dir, name)}, args...)
	}
	self := mcptest.Must(os.Executable())(t)
	demo := serve(t, "--demo")
	return map[string]wild{
		"Playwright": { // it has no browser, and its error says so
			command: script(playwright, "--headless", "--browser", "firefox", "--output-dir", "$DIR"),
			call:    toolCall{"browser_navigate", map[string]any{"url": "data:text/html,hello"}}, want: "install",
		},
		"Chrome DevTools": { // it asks for the roots before it answers initialize
			command: script(devTools, "--headless", "--executablePath", "/no/such/browser", "--userDataDir", "$DIR"),
			call:    toolCall{"list_pages", map[string]any{}}, want: "/no/such/browser",
		},
		"server-everything": {command: script(everything, "stdio"), call: toolCall{"echo", map[string]any{"message": "hello"}}, want: "Echo: hello"},
		"server-memory":     {command: script(memoryNpm), call: toolCall{"read_graph", map[string]any{}}, want: "entities"},
		"server-filesystem": {command: script(filesNpm, "$DIR"), call: toolCall{"list_allowed_directories", map[string]any{}}, want: "Allowed directories"},
		"mcp-remote": {
			command: script(mcpRemote, demo.URL, "--transport", "http-only", "--allow-http"),
			call:    toolCall{"echo", map[string]any{"text": "hello"}}, want: "hello",
		},
		"go-sdk with KeepAlive": {command: []string{self, "alive"}, call: toolCall{"pings", map[string]any{}}, want: "of process"},
	}
}

// serve serves w with a store in the directory state, which outlives the program.
func (w wild) serve(t *testing.T, dir, state string) *program {
	t.Helper()
	args := []string{"--store", "file:" + state, "--retry", "50ms", "--response", "sse", "--"}
	for _, arg := range w.command {
		args = append(args, strings.ReplaceAll(arg, "$DIR", dir))
	}
	mcptest.Check(t, build())
	cmd := exec.Command(built, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), "MEMORY_FILE_PATH="+filepath.Join(dir, "memory.jsonl"), "MCP_REMOTE_CONFIG_DIR="+filepath.Join(dir, "remote"),
		"CHROME_DEVTOOLS_MCP_NO_UPDATE_CHECKS=1", "PLAYWRIGHT_MCP_PING_TIMEOUT_MS=1000")
	return serveBy(t, cmd)
}

// asks calls the server's tool in a peer's session.
func (w wild) asks(t *testing.T, c *peer, id int) {
	t.Helper()
	arguments := mcptest.Must(json.Marshal(w.call.Arguments))(t)
	wantOdd(t, c.ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, w.call.Name, arguments)), id, w.want)
}

// peers has the tests run that need many other programs and take minutes: before a release, and when the version of such a
// program changes.
var peers = flag.Bool("peers", false, "run the tests with real servers, hosts and the go-sdk's own tests, and all of some long tables, which take minutes")

// peersOnly skips a test without -peers.
func peersOnly(t *testing.T, why string) {
	t.Helper()
	if !*peers {
		t.Skipf("only with -long -peers: %s", why)
	}
	testlong.Only(t, why)
}

// TestPeers serves servers that people run to clients that people use. Sessions and calls survive cuts, a minute of silence, and
// a SIGKILL of Holdfast.
func TestPeers(t *testing.T) {
	peersOnly(t, "it runs servers from npm, and is silent for a minute")
	t.Parallel()
	for name, server := range wildServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, state := t.TempDir(), t.TempDir()
			p := server.serve(t, dir, state)
			c := connect(t, p)
			if names, last := toolNames(t, c); !strings.Contains(strings.Join(names, " "), server.call.Name) {
				t.Fatalf("the tools are %q, at last %s", names, last)
			}
			server.asks(t, c, 4)
			for _, sdk := range []int{1, 2} {
				t.Run(fmt.Sprintf("TypeScript %d.x, cut", sdk), func(t *testing.T) {
					url := behind(t, p.URL, 1, func(request string) Cut {
						if strings.HasPrefix(request, "POST ") && has(request, "mcp-session-id") {
							return Cut{Bytes: 150, Body: true} // within the event after the first event with an id
						}
						return Cut{}
					})
					r := client(t, script{SDK: sdk, URL: url, Calls: []toolCall{server.call}, Retries: 20})
					if r.Calls[0].Result == nil || !strings.Contains(fmt.Sprint(r.Calls[0].Result.Content), server.want) {
						t.Errorf("the call got %+v, %s", r.Calls[0].Result, r.Calls[0].Error)
					}
				})
			}
			t.Run("Inspector", func(t *testing.T) {
				out := run(t, "node", filepath.Join(npm(t, inspector1), inspector1), "--cli", p.URL, "--transport", "http", "--method", "tools/list")
				if !strings.Contains(string(out), `"`+server.call.Name+`"`) {
					t.Errorf("it lists %.500s", out)
				}
			})
			t.Run("mcp-remote in front", func(t *testing.T) {
				b := remote(t, p.URL, "2025-11-25")
				arguments, _ := json.Marshal(server.call.Arguments)
				b.Say(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, server.call.Name, arguments)
				wantOdd(t, b.response("5"), 5, server.want)
			})
			time.Sleep(time.Minute) // in this time the server checks its peer, and proxies and clients would give up
			server.asks(t, c, 6)
			p.signal(t, os.Kill)
			_ = p.wait(t, time.Minute)
			c.URL = server.serve(t, dir, state).URL
			server.asks(t, c, 7)
		})
	}
}

// TestPeersPing serves Playwright's server over HTTP. After the first call of a tool, the server pings its client every three
// seconds, and ends the session if no answer comes within a second. The client reads no standalone stream.
func TestPeersPing(t *testing.T) {
	peersOnly(t, "it runs a server from npm, and is silent for twenty seconds")
	t.Parallel()
	dir := npm(t, playwright)
	for _, kind := range []string{"serve", "stateless", "merged"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			addr := testport.Addr(t)
			_, port, _ := net.SplitHostPort(addr)
			cmd := exec.Command("node", filepath.Join(dir, playwright), "--headless", "--browser", "firefox", "--host", "127.0.0.1", "--port", port, "--allowed-hosts", "*")
			cmd.Env = append(os.Environ(), "PLAYWRIGHT_MCP_PING_TIMEOUT_MS=1000")
			cmd.Dir = t.TempDir()
			mcptest.Check(t, cmd.Start())
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // killed
			})
			mcptest.Eventually(t, "Playwright's server listens", time.Minute, func() bool {
				c, err := net.DialTimeout("tcp", addr, time.Second)
				if err == nil {
					_ = c.Close()
				}
				return err == nil
			})
			var begun atomic.Int32
			to, _ := neturl.Parse("http://" + addr)
			pass := mcptest.Early(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
			front := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost && r.Header.Get("Mcp-Session-Id") == "" {
					begun.Add(1)
				}
				pass.ServeHTTP(w, r)
			}))
			url, prefix := "", ""
			switch kind {
			case "serve":
				url = serve(t, "--upstream", front+"/mcp").URL
			case "stateless":
				url = serve(t, "--upstream", front+"/mcp", "--stateless").URL
			case "merged":
				url, prefix = serveFile(t, fmt.Sprintf(`{"mcpServers":{"p":{"url":%q}},"holdfast":{"merge":true}}`, front+"/mcp"))+"/mcp", "p_"
			}
			call := func(id int) string {
				return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%sbrowser_navigate","arguments":{"url":"data:text/html,hello"}}}`, id, prefix)
			}
			if kind == "stateless" {
				for range 2 {
					wantOdd(t, post(t, url, "", "", call(4)).Message(), 4, "install")
				}
				return
			}
			c := connect(t, &program{URL: url})
			wantOdd(t, c.ask(call(4)), 4, "install")
			before := begun.Load()
			time.Sleep(20 * time.Second) // six pings
			wantOdd(t, c.ask(call(5)), 5, "install")
			if n := begun.Load() - before; n != 0 {
				t.Errorf("%d sessions were begun for the second call", n)
			}
		})
	}
}

// aliveStdio makes the test binary a server of the go-sdk that pings its client every half second, and ends if no answer comes.
func aliveStdio([]string) {
	var pings atomic.Int64
	server := mcp.NewServer(&mcp.Implementation{Name: "alive", Version: "1"}, &mcp.ServerOptions{KeepAlive: 500 * time.Millisecond})
	server.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			result, err := next(ctx, method, r)
			if method == "ping" && err == nil {
				pings.Add(1)
			}
			return result, err
		}
	})
	mcp.AddTool(server, &mcp.Tool{Name: "pings"}, func(ctx context.Context, _ *mcp.CallToolRequest, args struct {
		More int64 `json:"more,omitempty"`
	}) (*mcp.CallToolResult, any, error) {
		for until := pings.Load() + args.More; pings.Load() < until; {
			select {
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			case <-time.After(10 * time.Millisecond):
			}
		}
		return said(fmt.Sprintf("%d of process %d", pings.Load(), os.Getpid())), nil, nil
	})
	runStdio(server)
}

// FAILURES 19: a go-sdk server with KeepAlive is the same process before, in and after a call in which its client is away.
func TestFailure19KeepAliveProcess(t *testing.T) {
	t.Parallel()
	self := mcptest.Must(os.Executable())(t)
	for name, flags := range map[string][]string{"a process for each session": nil, "shared": {"--share"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := connect(t, serve(t, append(flags, "--", self, "alive")...))
			call := func(id, more int) string {
				return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"pings","arguments":{"more":%d}}}`, id, more)
			}
			process := func(answer string) string {
				_, of, _ := strings.Cut(answer, "of process ")
				of, _, _ = strings.Cut(of, `"`)
				return of
			}
			first := process(c.ask(call(1, 0)))
			away := c.listen("POST", "", call(2, 2))
			away.next() // an event with an id
			away.Close()
			back := c.listen("GET", away.LastID, "").rest()
			if got := strings.Join(back.received, " "); !strings.HasPrefix(got, "result ") || !strings.HasSuffix(got, "of process "+first) {
				t.Errorf("the client that was away gets %q, and the process was %s", got, first)
			}
			if last := process(c.ask(call(3, 2))); last != first || first == "" {
				t.Errorf("the process was %q, and is %q", first, last)
			}
		})
	}
}
