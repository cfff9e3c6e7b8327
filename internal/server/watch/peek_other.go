//go:build !unix

package watch

import "net"

// pending and peek are not available on this system.
func pending(*net.TCPConn) error { return nil }
func peek(*net.TCPConn) error    { return nil }
