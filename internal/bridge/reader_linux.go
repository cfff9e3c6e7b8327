package bridge

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// hasNoReader reports whether what is written to a pipe or socket can be read by no process any more.
func hasNoReader(w io.Writer) (none bool) {
	file, ok := w.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { // if it is closed, so is the bridge
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, 0)
		none = err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return none
}
