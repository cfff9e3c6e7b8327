//go:build !unix

package process

import (
	"errors"
	"os"
	"syscall"
)

// ownGroup does nothing: there are no process groups here.
func ownGroup() *syscall.SysProcAttr { return nil }

// signalGroup kills the process alone, if the signal is SIGKILL; there is no other signal
// here. It is no error if the process has ended.
func signalGroup(p *os.Process, s syscall.Signal) error {
	if s != syscall.SIGKILL {
		return nil
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}
