// Package watch wraps the connections on which a handler is served. The handler learns of
// clients that left with bytes unread, and the memory of connections is bounded (charge.go).
package watch

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Connections are the watched connections, by their client's address. They are added
// and removed as they are accepted and closed. The zero value has none. Its methods
// may be called concurrently.
type Connections struct {
	Bound *Bound // nil: no bound. Set before the first connection is accepted

	open   sync.Map
	turned turned
}

// A Source is the origin of bytes that were written to a client.
type Source = interface {
	// Disconnected is called when the client at an address has left with bytes unread that were
	// written after since; zero: not known. It may be called more than once.
	Disconnected(from string, since time.Time)
}

// At returns the connection of a request, or nil if it is not watched, carries several
// requests at a time, or is under TLS: there a client that has read all bytes may reset it
// nevertheless, because of the alert at its end.
func (cs *Connections) At(r *http.Request) *Conn {
	if r.ProtoMajor != 1 || r.TLS != nil {
		return nil
	}
	c, _ := cs.open.Load(r.RemoteAddr)
	w, _ := c.(*Conn)
	return w
}

// Client reports whether a connection from an address is open, and whether its client has left.
func (cs *Connections) Client(address string) (open, left bool) {
	c, _ := cs.open.Load(address)
	w, open := c.(*Conn)
	return open, open && w.Gone()
}

// Listener wraps a listener to watch its connections. A reset says that a client left with bytes unread. Only TCP
// connections are watched, and under TLS not for resets. Each is charged to [Connections.Bound], until it is closed.
//
// Answers of net/http itself with 501 or 505, to a client that speaks another HTTP, become 400.
func (cs *Connections) Listener(l net.Listener) net.Listener { return listener{l, cs} }

type listener struct {
	net.Listener
	connections *Connections
}

func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			return c, err
		}
		w := &Conn{TCPConn: tcp, addr: tcp.RemoteAddr().String(), connections: l.connections}
		if !w.accepts() {
			continue
		}
		w.connections.open.Store(w.addr, w)
		return w, nil
	}
}

// A Conn is a connection that notes when it was reset. A client that closes it too
// early first ends its own side, and resets the connection when more bytes come.
type Conn struct {
	*net.TCPConn
	connections *Connections
	addr        string      // the client's
	ended       atomic.Bool // the client sends no more
	reset       atomic.Bool
	closed      atomic.Bool // no later check whether the client has left
	sourced     atomic.Bool // source is not nil
	halfClosed  atomic.Bool // this side was ended
	charge

	mu     sync.Mutex
	source Source // of the bytes last written, until they have arrived; nil: none
}

// Wrote notes that bytes of a source were written. It calls the source if the
// client turns out to have left with some of them unread.
func (c *Conn) Wrote(what Source) {
	c.mu.Lock()
	c.source = what
	c.sourced.Store(true)
	c.mu.Unlock()
	if c.reset.Load() {
		what.Disconnected(c.addr, time.Time{})
	}
}

// arrived notes that the bytes written so far have arrived: the client has sent more on the connection.
func (c *Conn) arrived() {
	if c.sourced.Load() {
		c.mu.Lock()
		c.source = nil
		c.sourced.Store(false)
		c.mu.Unlock()
	}
}

// last returns the source of the bytes last written, or nil.
func (c *Conn) last() Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.source
}

// Gone reports whether the client has left, as far as the network knows. It
// knows sooner than a reader.
func (c *Conn) Gone() bool {
	if !c.ended.Load() && !c.reset.Load() {
		c.note(peek(c.TCPConn))
	}
	return c.ended.Load() || c.reset.Load()
}

// HasRead reports whether the client has left and has read all bytes, as far as the network knows: its system has
// acknowledged all, and has not reset the connection, as it does when bytes are left unread.
func (c *Conn) HasRead() bool {
	return c.ended.Load() && !c.reset.Load() && isAcknowledged(c.TCPConn)
}

// Acknowledged reports whether the client's system has acknowledged all bytes written, as far as that can be known.
func (c *Conn) Acknowledged() bool { return isAcknowledged(c.TCPConn) }

// Unsettled reports whether the client has left, and may yet turn out not to have read all bytes: Close has not made the last check.
func (c *Conn) Unsettled() bool { return c.Gone() && !c.closed.Load() }

// HasLeft is Gone.
func (c *Conn) HasLeft() bool { return c.Gone() }

// IsFar reports whether the client is connected to another node: never.
func (c *Conn) IsFar() bool { return false }

func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if n > 0 {
		c.arrived()
	}
	c.note(err)
	if errors.Is(err, io.EOF) {
		c.noteReset()
	}
	if n > 0 && !c.takes(b[:n]) {
		return 0, c.turnAway()
	}
	return n, err
}

func (c *Conn) Write(b []byte) (int, error) {
	if c.ended.Load() {
		c.note(syscall.EPIPE)
	}
	if mistake := notOurs(b); mistake != nil {
		_, err := c.TCPConn.Write(mistake)
		c.note(err)
		return len(b), err
	}
	n, err := c.TCPConn.Write(b)
	c.note(err)
	return n, err
}

// fault begins the answers of net/http itself, without a handler, with status 501 to a
// transfer coding and 505 to a version that it does not know. faultHead ends their
// header, and never that of a handler's answer, which has a date.
var (
	fault     = []byte("HTTP/1.1 50")
	faultHead = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")
)

// notOurs returns the bytes to write in the place of such an answer, or nil for
// others. The mistake is the client's, and must not look like a failure of the server.
func notOurs(b []byte) []byte {
	if !bytes.HasPrefix(b, fault) || len(b) == len(fault) || b[len(fault)] != '1' && b[len(fault)] != '5' {
		return nil
	}
	line, _, _ := bytes.Cut(b, []byte("\r\n"))
	if !bytes.HasPrefix(b[len(line):], faultHead) {
		return nil
	}
	const text = "400 Bad Request: an unknown Transfer-Encoding or HTTP version"
	return []byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n" + text)
}

// Close closes the connection, and checks once more whether the client has left.
func (c *Conn) Close() error {
	c.uncharge()
	if c.last() != nil {
		c.noteReset()
	}
	c.closed.Store(true)
	c.connections.open.CompareAndDelete(c.addr, c) // after the last check
	return c.TCPConn.Close()
}

// CloseWrite ends this side of the connection. After that the connection's state does not count as a reset.
func (c *Conn) CloseWrite() error {
	c.halfClosed.Store(true)
	return c.TCPConn.CloseWrite()
}

// noteReset notes a reset that no read or write has found, or that another goroutine has found but not noted yet.
func (c *Conn) noteReset() {
	c.note(pending(c.TCPConn))
	if !c.halfClosed.Load() && !c.reset.Load() && isReset(c.TCPConn) {
		c.note(syscall.ECONNRESET)
	}
}

// note notes the end or the reset of the connection that an error means.
func (c *Conn) note(err error) {
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		c.ended.Store(true)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		c.reset.Store(true)
		if what := c.last(); what != nil {
			what.Disconnected(c.addr, time.Time{})
		}
	}
}
