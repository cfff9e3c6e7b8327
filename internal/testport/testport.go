// Package testport finds TCP ports for tests that must know a port before its server listens, or
// while no server does, and has a [Relay] that stands in the place of a server.
package testport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Systems do not give the ports of this range to programs that ask for any port, nor those 10,000
// above (the second port of each server of a Redis Cluster). Tests ask for any port all the time:
// they would get the port of a server that is about to start, or was killed.
const first, last = 10_000, 20_000

// kept are UDP sockets with the numbers of the ports that this process has had.
var kept sync.Map

// Free returns n different ports of 127.0.0.1 that have no listener now. No other caller of Free,
// in this process or in another, gets one of them until this process ends: so no test takes the
// server of another for its own that was killed. Free may be called concurrently.
func Free(n int) ([]int, error) {
	const attempts = 1000
	ports := make([]int, 0, n)
	var err error
	for range attempts {
		if len(ports) == n {
			return ports, nil
		}
		port := first + rand.IntN(last-first)
		if err = keep(port); err == nil {
			ports = append(ports, port)
		}
	}
	return nil, fmt.Errorf("testport: no free port after %d attempts: %w", attempts, err)
}

// keep takes a free port. No test uses UDP, so a UDP socket of the same number marks the port as
// taken, and needs no clearing up.
func keep(port int) error {
	taken, err := net.ListenPacket("udp", Loopback(port))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", Loopback(port))
	if err != nil {
		taken.Close()
		return err
	}
	kept.Store(port, taken)
	return l.Close()
}

// Addr returns the address of one port from [Free].
func Addr(t testing.TB) string {
	t.Helper()
	ports, err := Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return Loopback(ports[0])
}

// Loopback returns the address of a port of 127.0.0.1.
func Loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
