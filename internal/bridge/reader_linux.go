package bridge

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// hasNoReader reports whether no process can read any more from the other end of a pipe or socket.
func hasNoReader(w io.Writer) (none bool) {
	file, ok := w.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { // if the file is closed, so is the bridge
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, 0)
		none = err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return none
}
