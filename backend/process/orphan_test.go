//go:build unix

package process

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A descendant that holds stdout open does not delay the end of a session, and does not survive it.
func TestGrandchildHoldsStdout(t *testing.T) {
	needLinux(t)
	f := newFixture(t, Options{}, sh("sleep 1000 & echo bye >&2; exit 1")...)
	_, r := f.open()
	why := within(t, soon, "Closed", r.closed)
	if want := "the server ended at its start (exit status 1)"; why.Error() != want {
		t.Errorf("got %q, want %q", why, want)
	}
	poll(t, "the grandchild gone", func() bool { return len(marked(f.mark)) == 0 })
}

// Failure 9: many sessions, each with descendants, end at the same time.
func TestCloseMany(t *testing.T) {
	needLinux(t)
	sessions := 20
	if testlong.All() {
		sessions = 50
	}
	f := newFixture(t, Options{Grace: 300 * time.Millisecond}, sh("cat >/dev/null & sleep 1000 & wait")...)
	first, r := f.open() // starts the guard and the poller
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	r.end()
	files := openFiles(t)
	conns := make([]*conn, sessions)
	for i := range conns {
		conns[i], _ = f.open()
	}
	poll(t, "all descendants there", func() bool { return len(marked(f.mark)) >= 2*sessions })
	var all sync.WaitGroup
	for _, c := range conns {
		all.Go(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	poll(t, "all descendants gone", func() bool { return len(marked(f.mark)) == 0 })
	if n := openFiles(t); n > files {
		t.Errorf("%d files are open, %d were", n, files)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.conns); n != 0 {
		t.Errorf("the backend keeps %d conversations", n)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files := mcptest.Must(os.ReadDir("/proc/self/fd"))(t)
	return len(files)
}

// A daemon that has left the process group ends with its session. A daemon of
// another session lives on.
func TestDaemon(t *testing.T) {
	needLinux(t)
	needSetsid(t)
	f := newFixture(t, Options{}, sh("setsid sleep 1000 >/dev/null 2>&1 & cat")...)
	a, _ := f.open()
	b, _ := f.open()
	poll(t, "all processes there", func() bool { return len(daemons(f.mark)) == 2 })
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	poll(t, "one daemon gone", func() bool { return len(daemons(f.mark)) == 1 })
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	poll(t, "the other daemon gone", func() bool { return len(daemons(f.mark)) == 0 })
}

// limited returns the context of a process that must not outlive a failing test. The
// test fails if the context's time runs out.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(func() {
		if ctx.Err() != nil {
			t.Errorf("a process had to be killed after %v", soon)
		}
		cancel()
	})
	return ctx
}

func needSetsid(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("no setsid program here")
	}
}

// daemons returns the processes of a test that lead a session.
func daemons(mark string) (pids []int) {
	for _, pid := range marked(mark) {
		if sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0); errno == 0 && int(sid) == pid {
			pids = append(pids, pid)
		}
	}
	return pids
}

const heldSessions = 4

// hold is a process that uses the backend until it is killed. It writes its guard's
// tag when it is ready.
func hold() {
	b, err := New(sh(`trap '' TERM; sleep 1000 & setsid sleep 1000 & wait`), nil)
	for range heldSessions {
		if err == nil {
			_, err = b.Open(context.Background(), backend.Start{}, nil)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(b.tag)
	select {}
}

// When the process that uses the backend is killed, the guard kills all processes that it started.
func TestUserKilled(t *testing.T) {
	needLinux(t)
	needSetsid(t)
	mark := rand.Text()
	user := exec.CommandContext(limited(t), os.Args[0])
	// The user of the backend has a foreign tag, as if it were the child of another Holdfast.
	user.Env = append(os.Environ(), markVariable+"="+mark, modeVariable+"=holder", tagVariable+"=foreign.1")
	user.Stderr = os.Stderr
	out := mcptest.Must(user.StdoutPipe())(t)
	mcptest.Check(t, user.Start())
	tag := mcptest.Must(bufio.NewReader(out).ReadString('\n'))(t)
	poll(t, "all descendants there", func() bool { return len(daemons(mark)) == heldSessions && len(marked(mark)) >= 1+3*heldSessions })
	guards := commands(strings.TrimSpace(tag))
	if len(guards) != 1 {
		t.Fatalf("%d guards, want 1", len(guards))
	}
	environ, err := os.ReadFile(filepath.Join(guards[0], "environ"))
	if err != nil || bytes.Contains(environ, []byte(tagVariable)) {
		t.Errorf("the guard's environment is %q, %v", environ, err)
	}
	poll(t, "the guard to ignore signals", func() bool { return ignores(guards[0], syscall.SIGTERM) })
	// A signal to a whole process group, such as Ctrl-C, reaches the guard too.
	guard := 0
	mcptest.Must(fmt.Sscanf(guards[0], "/proc/%d", &guard))(t)
	mcptest.Check(t, syscall.Kill(guard, syscall.SIGTERM))

	mcptest.Check(t, user.Process.Kill())
	_ = user.Wait() // killed
	poll(t, "all descendants gone", func() bool { return len(marked(mark)) == 0 })
	poll(t, "the guard gone", func() bool { return len(commands(strings.TrimSpace(tag))) == 0 })
}

// ignores reports whether the process of a /proc directory ignores a signal.
func ignores(dir string, signal syscall.Signal) bool {
	status, _ := os.ReadFile(filepath.Join(dir, "status"))
	_, after, _ := strings.Cut(string(status), "SigIgn:")
	mask := uint64(0)
	_, err := fmt.Sscanf(after, "%x", &mask)
	return err == nil && mask&(1<<(signal-1)) != 0
}

// commands returns the /proc directories of the processes that have the text in
// their command line.
func commands(text string) (dirs []string) {
	mcptest.Processes("cmdline", func(pid int, line []byte) {
		if bytes.Contains(line, []byte(text)) {
			dirs = append(dirs, filepath.Join("/proc", strconv.Itoa(pid)))
		}
	})
	return dirs
}

// Without grep, or with a grep that stops at a NUL, the guard itself looks for
// daemons. It trusts any other grep, even one that finds no process.
func TestGuardGrep(t *testing.T) {
	needLinux(t)
	needSetsid(t)
	const findsNobody = "#!/bin/sh\ncase $1 in -l*) exit 1 ;; esac\n" // with other options it searches stdin
	for _, test := range []struct {
		name, grep string
		killed     bool
	}{
		{"none", "", true},
		{"stops at a NUL", findsNobody + "exit 1\n", true},
		{"goes on", findsNobody + "exit 0\n", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			mark := rand.Text()
			daemon := exec.CommandContext(limited(t), "setsid", "sleep", "1000")
			daemon.Env = append(os.Environ(), markVariable+"="+mark)
			mcptest.Check(t, daemon.Start())
			dir := t.TempDir()
			if test.grep != "" {
				mcptest.Check(t, os.WriteFile(filepath.Join(dir, "grep"), []byte(test.grep), 0o700))
			}
			t.Setenv("PATH", dir)
			guard := mcptest.Must(startGuard(markVariable + "=" + mark))(t)
			closePipes(guard.stdin)
			within(t, soon, "end of the guard", guard.exited)
			// SIGTERM ends a daemon that the guard has not killed. For the others SIGKILL is pending.
			_ = daemon.Process.Signal(syscall.SIGTERM)
			want := "signal: terminated"
			if test.killed {
				want = "signal: killed"
			}
			if err := daemon.Wait(); err == nil || err.Error() != want {
				t.Errorf("the daemon ended with %v, want %s", err, want)
			}
		})
	}
}

// The guard kills the groups that were added, but not a group that was removed.
func TestGuardGroups(t *testing.T) {
	guard := mcptest.Must(startGuard("nothing has this mark"))(t)
	var groups [3]*exec.Cmd
	for i := range groups {
		groups[i] = exec.CommandContext(limited(t), "sleep", "1000")
		groups[i].SysProcAttr = ownGroup()
		mcptest.Check(t, groups[i].Start())
		mcptest.Check(t, guard.write(fmt.Sprintf("+ %d\n", groups[i].Process.Pid)))
	}
	mcptest.Check(t, guard.write(fmt.Sprintf("- %d\n", groups[1].Process.Pid)))
	closePipes(guard.stdin)
	within(t, soon, "end of the guard", guard.exited)
	if err := groups[1].Process.Signal(syscall.SIGTERM); err != nil { // the process is alive
		t.Error(err)
	}
	for i, want := range []string{"signal: killed", "signal: terminated", "signal: killed"} {
		if err := groups[i].Wait(); err == nil || err.Error() != want {
			t.Errorf("group %d ended with %v, want %s", i, err, want)
		}
	}
}

// A guard that was killed is replaced, and the new one knows every group.
func TestGuardKilled(t *testing.T) {
	f := newFixture(t, Options{Grace: soon}) // between the end of a server's stdout and its exit, on a busy machine
	a, r := f.open()
	old := f.guard.running
	mcptest.Check(t, old.process.Kill())
	within(t, soon, "end of the guard", old.exited)
	b, _ := f.open()
	if f.guard.running == old || !f.guard.groups[a.pid] || !f.guard.groups[b.pid] {
		t.Fatalf("guard %v knows %v", f.guard.running, f.guard.groups)
	}
	deliver(t, a, "echo", "{}")
	within(t, soon, "answer", r.said)
	// The guard takes the end of its stdin for the user's death, and kills the groups that it knows.
	closePipes(f.guard.running.stdin)
	if why := within(t, soon, "Closed", r.closed); why.Error() != "server process exited: signal: killed" {
		t.Errorf("got %q", why)
	}
}
