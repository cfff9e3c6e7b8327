//go:build unix

package server

import (
	"net"
	"syscall"
)

// pending returns the error that waits on a connection, if there is one.
func pending(c *net.TCPConn) (err error) {
	raw, e := c.SyscallConn()
	if e != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) { // fails for a closed connection only
		if n, e := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR); e == nil && n != 0 {
			err = syscall.Errno(n)
		}
	})
	return err
}
