//go:build unix

package process

import (
	"errors"
	"os"
	"syscall"
)

// ownGroup starts a process in a group of its own, named by its id.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalGroup sends a signal to the group that p was started in, whether or not p itself
// still lives. It is no error if no process is left.
func signalGroup(p *os.Process, s syscall.Signal) error {
	if err := syscall.Kill(-p.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
