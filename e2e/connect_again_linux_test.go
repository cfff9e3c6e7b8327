package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

func init() { modes["host"] = stdioHost } // this file is built on Linux only

// stdioHost makes the test binary a host: it runs a bridge, makes one call, and prints the
// bridge's output. Its arguments are the call and the bridge's command line.
func stdioHost(args []string) {
	cmd := exec.Command(args[1], args[2:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
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

// Failure 15: a host is killed in mid-call, with its bridge, before it, or after it, and makes
// the call again with another id, another progress token and another _meta: the tool runs once.
// Some hosts put values that differ in each request into _meta (Codex: callId and the turn).
func TestConnectAskedAgain(t *testing.T) {
	t.Parallel()
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
			w.began(t)
			kill(first)
			second := startHost(t, w.URL, state, pay(7, "1e1", `{"progressToken":3,"callId":"call_2","itemId":"i"}`))
			second.Hear(`"id":0,`)
			w.end()
			if line := second.Hear(`"id":7,`); !strings.Contains(line, `"structuredContent":10`) {
				t.Errorf("the host that came back was told %s", line)
			}
			w.ranOnce(t)
		})
	}
}

// If a host makes two calls through one process that differ only in their _meta, the tool runs
// twice: only a call through a new process may be a repetition.
func TestConnectAlike(t *testing.T) {
	t.Parallel()
	w := newWaiter(t)
	h := startHost(t, w.URL, t.TempDir(), pay(1, "10", `{"callId":"call_1"}`)+"\n"+pay(2, "10", `{"callId":"call_2"}`))
	mcptest.Eventually(t, "two runs", time.Minute, func() bool { return w.runs.Load() == 2 })
	w.end()
	first := h.Hear(`"structuredContent":10`)
	if second := h.Hear(`"structuredContent":10`); first == second {
		t.Errorf("one call was answered twice: %s", second)
	}
}
