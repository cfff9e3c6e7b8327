//go:build unix

package torture

import (
	"os/exec"
	"syscall"
)

// ownGroup makes a command run in a process group of its own, as package process does.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killAll kills this process's group: this process, the server, and the processes that the server
// has started.
func killAll(*exec.Cmd) { _ = syscall.Kill(0, syscall.SIGKILL) }
