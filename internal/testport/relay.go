package testport

import (
	"net"
	"sync"
)

// A Relay listens in the place of a TCP server. Once it is started, its methods may be called concurrently.
type Relay struct {
	Target string // host and port of the server
	// Carry carries a connection, which is closed when Carry returns. Connections are numbered from 1.
	Carry func(number uint64, c *net.TCPConn)

	listener net.Listener
	work     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	away  bool // the relay keeps no connections
}

// Start begins to listen, on a port of its own, until [Relay.Close].
func (r *Relay) Start() (err error) {
	r.conns = make(map[net.Conn]struct{})
	if r.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	r.Go(func() {
		for number := uint64(1); ; number++ {
			c, err := r.listener.Accept()
			if err != nil {
				return
			}
			if r.keep(c) {
				r.Go(func() {
					defer r.Drop(c)
					r.Carry(number, c.(*net.TCPConn))
				})
			}
		}
	})
	return nil
}

// Addr returns the host and port at which the relay listens.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Go runs a function that Close waits for.
func (r *Relay) Go(do func()) { r.work.Go(do) }

// Dial connects to the server. It returns nil if it cannot, or the relay is away. The caller must Drop the
// connection.
func (r *Relay) Dial() *net.TCPConn {
	c, err := net.Dial("tcp", r.Target)
	if err != nil || !r.keep(c) {
		return nil
	}
	return c.(*net.TCPConn)
}

// keep notes a connection, which is closed with the relay. If the relay is away, keep closes the connection and
// returns false.
func (r *Relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		_ = c.Close()
		return false
	}
	r.conns[c] = struct{}{}
	return true
}

// Drop closes a connection.
func (r *Relay) Drop(c net.Conn) {
	r.mu.Lock()
	delete(r.conns, c)
	r.mu.Unlock()
	_ = c.Close()
}

// Away closes all connections, and new ones at once, until it is called with false. With reset it closes the present
// ones with RST.
func (r *Relay) Away(away, reset bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away = away; !away {
		return
	}
	for c := range r.conns {
		if reset {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
		_ = c.Close()
	}
}

// Close ends the relay and all its connections, and waits for the functions of [Relay.Go].
func (r *Relay) Close() {
	_ = r.listener.Close()
	r.Away(true, false)
	r.work.Wait()
}
