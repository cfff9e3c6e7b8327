package server

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Listener wraps l, on which the handler is served, so that the handler learns of
// clients that left with bytes unread: the network says so with a reset. A call
// that was written to its end for such a client may be told again to it when it
// comes back with nothing but its session id; without Listener that can't be
// known, and is not done. Only TCP connections, without TLS, are watched.
func (h *Handler) Listener(l net.Listener) net.Listener {
	h.resets.watched.Store(true)
	return listener{l, &h.resets}
}

// resets are the clients that left with bytes unread.
type resets struct {
	watched atomic.Bool
	mu      sync.Mutex
	at      map[string]time.Time // by address
}

// remembered is how long a reset is remembered.
const remembered = time.Minute

func (r *resets) add(addr string) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil {
		r.at = make(map[string]time.Time)
	}
	for a, at := range r.at {
		if now.Sub(at) > remembered {
			delete(r.at, a)
		}
	}
	r.at[addr] = now
}

// since says whether the client at the address left with bytes unread, after the
// given time, at which bytes were written to it. A reset that was noticed just
// before they were is the same connection's: the write did not notice.
func (r *resets) since(addr string, at time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at[addr].After(at.Add(-time.Second))
}

type listener struct {
	net.Listener
	resets *resets
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		return &watched{TCPConn: tcp, resets: l.resets}, err
	}
	return c, err
}

// watched is a connection that says when it was reset. A client that closes it
// before all was sent ends it first, and resets it when more comes.
type watched struct {
	*net.TCPConn
	resets *resets
	ended  atomic.Bool // nothing more comes from the client
}

func (c *watched) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if errors.Is(err, io.EOF) {
		c.ended.Store(true)
		c.look(pending(c.TCPConn))
	}
	c.look(err)
	return n, err
}

func (c *watched) Write(b []byte) (int, error) {
	if c.ended.Load() {
		c.look(syscall.EPIPE)
	}
	n, err := c.TCPConn.Write(b)
	c.look(err)
	return n, err
}

func (c *watched) Close() error {
	if c.ended.Load() {
		c.look(pending(c.TCPConn))
	}
	return c.TCPConn.Close()
}

func (c *watched) look(err error) {
	if err != nil && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)) {
		c.resets.add(c.RemoteAddr().String())
	}
}
