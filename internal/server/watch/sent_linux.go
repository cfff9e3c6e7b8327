package watch

import (
	"net"
	"syscall"
	"unsafe"
)

// isAcknowledged reports whether the client's system has all that was written to a connection.
func isAcknowledged(c *net.TCPConn) (all bool) {
	control(c, func(fd int) {
		var left int32
		_, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&left)))
		all = e == 0 && left == 0
	})
	return all
}
