package main

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

// asFirstProcess runs this program a second time, as a child, if it is the first process of a PID
// namespace, as in a container. It returns the exit code of the child, and whether there was one.
//
// The kernel makes the first process the parent of all orphans: processes that MCP servers started,
// and did not wait for. Each would remain a zombie, which takes a process id, until the container
// ends. The child cannot reap them itself, since it cannot tell them from processes that it started
// and will wait for. The first process has one child of its own, and can reap all others.
func asFirstProcess() (code int, ok bool) {
	if os.Getpid() != 1 {
		return 0, false
	}
	signals := make(chan os.Signal, 16) // before the start: no signal is lost
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	attr := &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		// ^C is then a signal for the child alone. Else the child gets two: the terminal's and ours.
		attr.Sys = &syscall.SysProcAttr{Foreground: true, Ctty: int(os.Stdin.Fd())}
	}
	path, err := os.Executable()
	var child *os.Process
	if err == nil {
		child, err = os.StartProcess(path, os.Args, attr)
	}
	if err != nil {
		signal.Reset()
		slog.Warn("this is the first process of a container, and cannot reap orphans", "error", err)
		return 0, false
	}
	go func() {
		for s := range signals {
			_ = child.Signal(s) // it may have ended
		}
	}()
	return reapUntil(child.Pid), true
}

// reapUntil reaps every child that ends, until child has, and returns its exit code as a shell does.
func reapUntil(child int) int {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return exitError // there is no child, although nothing else waits for it
		case pid != child:
		case status.Signaled():
			return 128 + int(status.Signal())
		default:
			return status.ExitStatus()
		}
	}
}
