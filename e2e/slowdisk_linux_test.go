package e2e

import (
	"bufio"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A node with a file: store starts, though slowly, on a disk that takes a tenth of a second for each operation on a file.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	if testlong.Race {
		t.Skip("a program with the race detector takes its time under strace")
	}
	mcptest.Check(t, build())
	args := append(recorder(t, "/dev/null"),
		"-e", "inject=openat,mkdir,mkdirat,renameat,unlinkat,ftruncate,fsync:delay_enter=100000", // in microseconds
		built, "serve", "--demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", "file:"+t.TempDir())
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	log := mcptest.Must(cmd.StderrPipe())(t)
	mcptest.Check(t, cmd.Start())
	defer func() { // this also kills the program that strace runs
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	var said []string
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if said = append(said, lines.Text()); strings.Contains(lines.Text(), "msg=serving") {
			return
		}
	}
	t.Errorf("it does not serve: %q", said)
}
