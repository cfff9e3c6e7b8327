// Package testport finds TCP ports for tests that must know one before its server
// listens, or while nobody does.
package testport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Systems give the ports of this range to nobody who asks for any port, nor those 10,000
// above (the second port of each server of a Redis cluster). Tests ask for any all the
// time: they would get the port of a server that is about to start, or was killed.
const first, last = 10_000, 22_000

// Free returns n different ports of 127.0.0.1 that nobody listens on now. It may be
// called concurrently.
func Free(n int) ([]int, error) {
	const attempts = 1000
	ports := make([]int, 0, n)
	var err error
	for range attempts {
		if len(ports) == n {
			return ports, nil
		}
		port := first + rand.IntN(last-first)
		var l net.Listener
		if l, err = net.Listen("tcp", Loopback(port)); err != nil {
			continue
		}
		defer l.Close()
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("testport: no free port after %d attempts: %w", attempts, err)
}

// Addr returns the address of one such port.
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
