//go:build unix

package watch

import (
	"io"
	"net"
	"syscall"
)

// pending returns the error that waits on a connection, if there is one.
func pending(c *net.TCPConn) (err error) {
	control(c, func(fd int) {
		if n, e := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ERROR); e == nil && n != 0 {
			err = syscall.Errno(n)
		}
	})
	return err
}

// peek returns the error that the next read will find, io.EOF at the end, and nil
// if it will find bytes, or would have to wait.
func peek(c *net.TCPConn) (err error) {
	control(c, func(fd int) {
		var one [1]byte
		n, _, e := syscall.Recvfrom(fd, one[:], syscall.MSG_PEEK) // does not wait: Go's sockets don't
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
