package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// markVariable is in the environment of all processes that the command of marked starts, and of
// no others.
const markVariable = "HOLDFAST_E2E_MARK"

// marked returns a command line that runs a shell script, and a function that returns the
// processes that the script has started.
func marked(script string, args ...string) (command []string, pids func() []int) {
	mark := markVariable + "=" + rand.Text()
	command = append([]string{"--", "env", mark, "sh", "-c", script, "sh"}, args...)
	return command, func() (pids []int) {
		mcptest.Processes("environ", func(pid int, environ []byte) {
			if bytes.Contains(environ, []byte(mark)) {
				pids = append(pids, pid)
			}
		})
		return pids
	}
}

// children returns the child processes of pid.
func children(pid int) (pids []int) {
	mcptest.Processes("stat", func(child int, stat []byte) {
		_, rest, _ := bytes.Cut(stat, []byte(") ")) // this cuts the name of the process, which may contain anything
		if fields := strings.Fields(string(rest)); len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(pid) {
			pids = append(pids, child)
		}
	})
	return pids
}

// Failure 9: holdfast is killed while it has sessions that are idle or in a call, and have
// started daemons. No process that it started is left.
func TestKilled(t *testing.T) {
	t.Parallel()
	sessions := testlong.Either(4, 12)
	command, pids := marked(`trap '' TERM; sleep 1000 & (setsid sleep 1000 >/dev/null 2>&1 &); "$1" stdio; wait`, os.Args[0])
	p := serve(t, command...)
	for i := range sessions {
		if c := connect(t, p); i%2 == 0 {
			c.count(100, 50*time.Millisecond).until(1)
		}
	}
	const each = 4 // the shell, sleep, the daemon, the server
	mcptest.Eventually(t, "all processes there", time.Minute, func() bool { return len(pids()) >= each*sessions })
	guards := slices.DeleteFunc(children(p.cmd.Process.Pid), func(pid int) bool { return slices.Contains(pids(), pid) })
	if len(guards) != 1 {
		t.Errorf("%d children that are no servers, want one guard", len(guards))
	}

	p.signal(t, syscall.SIGKILL)
	if err := p.wait(t, time.Minute); err == nil || err.Error() != "signal: killed" {
		t.Errorf("holdfast ended with %v", err)
	}
	mcptest.Eventually(t, "all processes gone", time.Minute, func() bool { return len(pids()) == 0 })
	for _, pid := range guards {
		mcptest.Eventually(t, "the guard gone", time.Minute, func() bool { return syscall.Kill(pid, 0) != nil })
	}
}

// Failure 9: clients, 200 with -long, vanish without DELETE, some of them during set-up. The
// processes of their sessions end when the sessions expire; the process of a busy session stays.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	sessions := testlong.Either(30, 200)
	// A server that answers initialize only, so that many can run.
	command, pids := marked(`sleep 1000 & while read -r line; do case $line in *'"initialize"'*)
		echo '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"sh","version":"1"}}}';;
		esac; done`)
	p := serve(t, append([]string{"--session-ttl", "3s", "--drain", "100ms"}, command...)...)
	busy := connect(t, p)
	stays := busy.listen("POST", "", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"never"}}`)
	stays.Close() // no client reads the call, but it runs
	own := len(pids())

	var all sync.WaitGroup
	room := make(chan struct{}, 16)
	for i := range sessions {
		all.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			// The client closes its connection after the answer, or at any moment of the set-up.
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if patience := time.Duration(i%2*i/8) * time.Millisecond; patience > 0 {
				time.AfterFunc(patience, stop)
			}
			if _, err := (&mcptest.Client{URL: p.URL, HTTP: mcptest.Unpooled}).Exchange(ctx, http.MethodPost, strangeInit); err != nil && ctx.Err() == nil {
				t.Errorf("initialize: %v", err)
			}
		})
	}
	all.Wait() // clients that waited have received an answer of their own process
	mcptest.Eventually(t, "the processes of those who vanished gone", time.Minute, func() bool { return len(pids()) == own })
	if err := p.stop(t); err != nil {
		t.Errorf("holdfast: %v", err)
	}
	mcptest.Eventually(t, "all processes gone", time.Minute, func() bool { return len(pids()) == 0 })
}

// Failure 9: the calls of a server that is killed fail soon, with an error that says so; the
// next call of the session gets a new server. Sessions do not get messages of other sessions,
// though all use the same request ids.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	command, pids := marked(`exec "$1" stdio`, os.Args[0])
	p := serve(t, command...)
	victim := connect(t, p)
	doomed := pids()
	other := connect(t, p).count(20, 50*time.Millisecond)
	l := victim.count(1000, 50*time.Millisecond)
	l.until(1)
	for _, pid := range doomed {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	killed := time.Now()
	l.rest()
	if got := l.received[len(l.received)-1]; !strings.HasPrefix(got, "error ") || !strings.Contains(got, "server process exited: signal: killed") {
		t.Errorf("received %q in the end", got)
	}
	if d := time.Since(killed); d > 20*time.Second {
		t.Errorf("the call failed after %v", d)
	}
	if got := victim.count(3, 0).rest().received; !slices.Equal(got, counted(0, 3)) {
		t.Errorf("the next call received %q", got)
	}
	if got := other.rest().received; !slices.Equal(got, counted(0, 20)) {
		t.Errorf("the other session received %q", got)
	}
}
