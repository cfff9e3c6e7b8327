//go:build unix

package watch

import (
	"io"
	"net"
	"syscall"
)

// pending returns the pending error of a connection's socket, or nil.
func pending(c *net.TCPConn) (err error) {
	control(c, func(fd int) {
		if n, e := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ERROR); e == nil && n != 0 {
			err = syscall.Errno(n)
		}
	})
	return err
}

// peek returns the error that the next read would return, io.EOF at the end; nil
// if the read would return bytes or wait.
func peek(c *net.TCPConn) (err error) {
	control(c, func(fd int) {
		var one [1]byte
		n, _, e := syscall.Recvfrom(fd, one[:], syscall.MSG_PEEK) // does not wait, as Go's sockets are non-blocking
		switch {
		case e == nil && n == 0:
			err = io.EOF
		case e != nil && e != syscall.EAGAIN && e != syscall.EINTR:
			err = e
		}
	})
	return err
}

// control calls f with the connection's descriptor, unless it is closed.
func control(c *net.TCPConn, f func(fd int)) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}
