package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// asPID1 returns a command that runs serve as the first process of a PID namespace, as in a container.
func asPID1(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	mcptest.Check(t, build())
	const mounted = `mount --make-rprivate / && mount -t proc proc /proc || exit 99; `
	run := func(script string, args ...string) *exec.Cmd {
		cmd := exec.Command("sh", append([]string{"-c", mounted + script, "sh"}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
		if os.Getuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		}
		return cmd
	}
	if out, err := run(`[ $$ = 1 ]`).CombinedOutput(); err != nil {
		t.Skipf("this machine allows no PID namespace with a /proc: %v %s", err, out)
	}
	return run(`exec "$@"`, append([]string{built, "serve", "--listen", "127.0.0.1:0"}, args...)...)
}

// In a container, Holdfast is the first process and inherits processes that servers have started and do
// not wait for. It reaps them, and handles signals and its exit code as everywhere.
func TestPID1(t *testing.T) {
	t.Parallel()
	// The orphan lives until a file exists; by then its parent has ended, and PID 1 has inherited it.
	end := filepath.Join(t.TempDir(), "end")
	command, pids := marked(`( sh -c 'while [ ! -e "$1" ]; do sleep 0.05; done' orphan "$1" >/dev/null 2>&1 & ); exec "$2" stdio`, end, os.Args[0])
	p := serveBy(t, asPID1(t, command...))
	c := connect(t, p)
	first := p.cmd.Process.Pid
	var orphan int
	mcptest.Eventually(t, "an orphan that PID 1 has inherited", time.Minute, func() bool {
		for _, pid := range children(first) {
			line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
			if bytes.Contains(line, []byte("\x00orphan\x00")) {
				orphan = pid
			}
		}
		return orphan != 0
	})
	mcptest.Check(t, os.WriteFile(end, nil, 0o600))
	mcptest.Eventually(t, "the orphan reaped", time.Minute, func() bool { return syscall.Kill(orphan, 0) != nil })
	if got := c.count(3, 0).rest().received; len(got) != 4 {
		t.Errorf("a call received %q", got)
	}
	if err := p.stop(t); err != nil {
		t.Errorf("holdfast: %v", err)
	}
	mcptest.Eventually(t, "all processes gone", time.Minute, func() bool { return len(pids()) == 0 })
}

// If a signal kills Holdfast in a container, the container's exit code says so, and all processes that Holdfast started end.
func TestPID1Killed(t *testing.T) {
	t.Parallel()
	command, pids := marked(`exec "$1" stdio`, os.Args[0])
	p := serveBy(t, asPID1(t, command...))
	connect(t, p)
	holdfast := children(p.cmd.Process.Pid)
	if len(holdfast) != 1 {
		t.Fatalf("PID 1 has the children %v", holdfast)
	}
	mcptest.Check(t, syscall.Kill(holdfast[0], syscall.SIGKILL))
	if err := p.wait(t, time.Minute); err == nil || err.Error() != "exit status 137" {
		t.Errorf("PID 1 ended with %v", err)
	}
	mcptest.Eventually(t, "all processes gone", time.Minute, func() bool { return len(pids()) == 0 })
}
