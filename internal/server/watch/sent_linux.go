package watch

import (
	"net"

	"golang.org/x/sys/unix"
)

// isAcknowledged reports whether the client's system has acknowledged all bytes written to a connection, and has not
// reset it. A reset empties the queue too, and its error is gone once a goroutine has read it, maybe before it is
// noted. So the connection's state is checked, which stays.
func isAcknowledged(c *net.TCPConn) (all bool) {
	control(c, func(fd int) {
		queued, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		if err != nil || queued != 0 {
			return
		}
		closed, known := isClosed(fd)
		all = known && !closed
	})
	return all
}

// isReset reports whether the client has reset a connection that this side has not ended.
func isReset(c *net.TCPConn) (reset bool) {
	control(c, func(fd int) { reset, _ = isClosed(fd) })
	return reset
}

// isClosed reports whether a connection is in the state after a reset, if that is known.
func isClosed(fd int) (closed, known bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == unix.BPF_TCP_CLOSE, err == nil
}
