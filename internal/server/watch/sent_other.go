//go:build !linux

package watch

import "net"

// isAcknowledged and isReset are not available on this system.
func isAcknowledged(*net.TCPConn) bool { return false }
func isReset(*net.TCPConn) bool        { return false }
