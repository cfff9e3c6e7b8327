//go:build !linux

package watch

import "net"

// isAcknowledged and isReset can't be known here.
func isAcknowledged(*net.TCPConn) bool { return false }
func isReset(*net.TCPConn) bool        { return false }
