//go:build !unix

package watch

import "net"

// pending and peek can't be known here without trying.
func pending(*net.TCPConn) error { return nil }
func peek(*net.TCPConn) error    { return nil }
