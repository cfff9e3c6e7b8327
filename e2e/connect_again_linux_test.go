package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"

	"holdfast/internal/mcptest"
)

func init() { modes["host"] = stdioHost } // this file is built on Linux only

// stdioHost makes the test binary a host: it runs a bridge, makes one call, and prints the
// bridge's output. Its arguments are the call and the bridge's command line.
func stdioHost(args []string) {
	cmd := exec.Command(args[1], args[2:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		panic(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		panic(err)
	}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	fmt.Println("bridge", cmd.Process.Pid)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"host","version":"1"}}}`)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		fmt.Println(lines.Text())
		if strings.Contains(lines.Text(), `"id":0,`) {
			fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			fmt.Fprintln(in, args[0])
		}
	}
	_ = cmd.Wait()
}

// A hostProcess is a running stdioHost.
type hostProcess struct {
	*mcptest.Process
	bridge int // the process id of its bridge
}

// startHost starts a host that makes a call through a bridge. Both are one process group.
func startHost(t *testing.T, url, state, call string) *hostProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0], "host", call, built, "connect", "--state", state, "--log-level", "error", url)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h := &hostProcess{Process: mcptest.Piped(t, cmd)}
	t.Cleanup(h.killBoth)
	mcptest.Must(fmt.Sscanf(h.Hear("bridge "), "bridge %d", &h.bridge))(t)
	return h
}

func (h *hostProcess) kill(pid int) {
	_ = syscall.Kill(pid, syscall.SIGKILL) // the process may have ended
}

func (h *hostProcess) killHost()   { h.kill(h.Cmd.Process.Pid) }
func (h *hostProcess) killBridge() { h.kill(h.bridge) }

// killBoth kills host and bridge together.
func (h *hostProcess) killBoth() {
	h.kill(-h.Cmd.Process.Pid)
	<-h.Ended
}

// A waiter is a server with a tool that reports progress and waits until it may end. The waiter
// counts its runs.
type waiter struct {
	URL   string
	ended chan struct{} // closed when the tool may end
	end   func()        // closes ended
	// The tool's call was cancelled.
	cancelled atomic.Bool

	mu   sync.Mutex
	runs int
}

func newWaiter(t *testing.T) *waiter {
	t.Helper()
	w := &waiter{ended: make(chan struct{})}
	w.end = sync.OnceFunc(func() { close(w.ended) })
	server := mcp.NewServer(&mcp.Implementation{Name: "waits", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(ctx context.Context, req *mcp.CallToolRequest, args struct {
		Amount float64 `json:"amount"`
		Note   string  `json:"note,omitempty"`
	}) (*mcp.CallToolResult, any, error) {
		w.mu.Lock()
		w.runs++
		w.mu.Unlock()
		if token := req.Params.GetProgressToken(); token != nil {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1}) // if it fails, the call ends without progress
		}
		select {
		case <-w.ended:
		case <-ctx.Done():
			w.cancelled.Store(true)
		}
		return nil, args.Amount, nil
	})
	w.URL = library(t, server, &holdfast.Options{Retry: 10 * time.Millisecond})
	t.Cleanup(w.end)
	return w
}

func (w *waiter) ran() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs
}

func pay(id int, amount, meta string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"_meta":%s,"name":"pay","arguments":{"amount":%s}}}`, id, meta, amount)
}

// Failure 15: a host is killed in mid-call, with its bridge, before it, or after it, and makes
// the call again with another id, another progress token and another _meta: the tool runs once.
// Some hosts put values that differ in each request into _meta (Codex: callId and the turn).
func TestConnectAskedAgain(t *testing.T) {
	t.Parallel()
	mcptest.Check(t, build())
	for name, kill := range map[string]func(*hostProcess){
		"both":   (*hostProcess).killBoth,
		"bridge": (*hostProcess).killBridge,
		"host":   (*hostProcess).killHost,
		"bridge first": func(h *hostProcess) {
			h.killBridge()
			h.killHost()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, state := newWaiter(t), t.TempDir()
			first := startHost(t, w.URL, state, pay(1, "10", `{"progressToken":"a","callId":"call_1","turn":{"id":"1"}}`))
			mcptest.Eventually(t, "the first call", time.Minute, func() bool { return w.ran() == 1 })
			kill(first)
			second := startHost(t, w.URL, state, pay(7, "1e1", `{"progressToken":3,"callId":"call_2","itemId":"i"}`))
			second.Hear(`"id":0,`)
			w.end()
			if line := second.Hear(`"id":7,`); !strings.Contains(line, `"structuredContent":10`) {
				t.Errorf("the host that came back was told %s", line)
			}
			if n := w.ran(); n != 1 {
				t.Errorf("the tool ran %d times", n)
			}
		})
	}
}

// If a host makes two calls through one process that differ only in their _meta, the tool runs
// twice: only a call through a new process may be a repetition.
func TestConnectAlike(t *testing.T) {
	t.Parallel()
	mcptest.Check(t, build())
	w := newWaiter(t)
	h := startHost(t, w.URL, t.TempDir(), pay(1, "10", `{"callId":"call_1"}`)+"\n"+pay(2, "10", `{"callId":"call_2"}`))
	mcptest.Eventually(t, "two runs", time.Minute, func() bool { return w.ran() == 2 })
	w.end()
	first := h.Hear(`"structuredContent":10`)
	if second := h.Hear(`"structuredContent":10`); first == second {
		t.Errorf("one call was answered twice: %s", second)
	}
}
