// Package watch wraps the connections on which a handler is served, so that it learns of
// clients that left with bytes unread, and so that what connections take is bounded (charge.go).
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

// Connections are those that are watched, by their client's address. Entries are
// added and removed as connections are accepted and closed. The zero value has none.
type Connections struct {
	Bound *Bound // what they may take; nil: there is no bound. Set before any is accepted

	open   sync.Map
	turned turned
}

// A Source is where what a client was sent came from.
type Source = interface {
	// Disconnected is called when the client at an address has left with bytes unread that it
	// may have been sent since a time; zero: that is not known. It may be called more than once.
	Disconnected(from string, since time.Time)
}

// At returns the connection on which a request came, or nil if it is not watched
// or carries several requests at a time. One below TLS says nothing: a client that has read all
// may reset it all the same, because of the alert at its end.
func (cs *Connections) At(r *http.Request) *Conn {
	if r.ProtoMajor != 1 || r.TLS != nil {
		return nil
	}
	c, _ := cs.open.Load(r.RemoteAddr)
	w, _ := c.(*Conn)
	return w
}

// Client reports whether the connection of the client at an address is open, and whether that has left.
func (cs *Connections) Client(address string) (open, left bool) {
	c, _ := cs.open.Load(address)
	w, open := c.(*Conn)
	return open, open && w.Gone()
}

// Listener wraps a listener whose connections are to be watched. The network says with a reset
// that a client left with bytes unread. Only TCP connections are watched, and those below TLS say nothing of
// that. Each counts for what [Connections.Bound] bounds, until it is closed.
//
// What net/http answers there with 501 or 505 by itself, to a client that speaks another
// HTTP, becomes 400.
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

// A Conn is a connection that says when it was reset. A client that closes it
// before all was sent ends it first, and resets it when more comes.
type Conn struct {
	*net.TCPConn
	connections *Connections
	addr        string      // the client's
	ended       atomic.Bool // nothing more comes from the client
	reset       atomic.Bool
	closed      atomic.Bool // whether the client has left was asked for the last time
	sourced     atomic.Bool // source is not nil
	halfClosed  atomic.Bool // this side has ended
	charge

	mu     sync.Mutex
	source Source // of what was last written, and may not arrive; nil: nothing was, or it has
}

// Wrote notes that what a source has sent was written. The source is called if
// the client turns out to have left with some of it unread.
func (c *Conn) Wrote(what Source) {
	c.mu.Lock()
	c.source = what
	c.sourced.Store(true)
	c.mu.Unlock()
	if c.reset.Load() {
		what.Disconnected(c.addr, time.Time{})
	}
}

// arrived notes that what was written has arrived: the client has sent more on the same connection.
func (c *Conn) arrived() {
	if c.sourced.Load() {
		c.mu.Lock()
		c.source = nil
		c.sourced.Store(false)
		c.mu.Unlock()
	}
}

// last returns where what was written last came from, or nil.
func (c *Conn) last() Source {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.source
}

// Gone reports whether the client has left, as far as the network knows. That is
// sooner than a reader is told.
func (c *Conn) Gone() bool {
	if !c.ended.Load() && !c.reset.Load() {
		c.note(peek(c.TCPConn))
	}
	return c.ended.Load() || c.reset.Load()
}

// HasRead reports whether the client has left and has read all that was written, as far as the network knows: its system
// has acknowledged all, and has not reset the connection, as it does where bytes are left unread.
func (c *Conn) HasRead() bool {
	return c.ended.Load() && !c.reset.Load() && isAcknowledged(c.TCPConn)
}

// Acknowledged reports whether the client's system has acknowledged all that was written, as far as that can be known.
func (c *Conn) Acknowledged() bool { return isAcknowledged(c.TCPConn) }

// Unsettled reports whether the client has left, and the network may yet say that it has not read all that was written, or is about to be:
// it was not asked for the last time.
func (c *Conn) Unsettled() bool { return c.Gone() && !c.closed.Load() }

// HasLeft is Gone.
func (c *Conn) HasLeft() bool { return c.Gone() }

// IsFar reports whether the client is connected to another node: it is not.
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

// fault begins what net/http answers by itself, without a handler, with status 501 to a
// transfer coding and with 505 to a version that it does not know; faultHead is how its
// header ends there, and in no answer of a handler, which has a date.
var (
	fault     = []byte("HTTP/1.1 50")
	faultHead = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")
)

// notOurs returns what is to be written in the place of such an answer, or nil for all
// else. The mistake is the client's, and is not to look like a failure of the server.
func notOurs(b []byte) []byte {
	if !bytes.HasPrefix(b, fault) || b[len(fault)] != '1' && b[len(fault)] != '5' {
		return nil
	}
	line, _, _ := bytes.Cut(b, []byte("\r\n"))
	if !bytes.HasPrefix(b[len(line):], faultHead) {
		return nil
	}
	const text = "400 Bad Request: an unknown Transfer-Encoding or HTTP version"
	return []byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n" + text)
}

// Close closes the connection, and asks once more whether the client has left.
func (c *Conn) Close() error {
	c.uncharge()
	if c.last() != nil {
		c.noteReset()
	}
	c.closed.Store(true)
	c.connections.open.CompareAndDelete(c.addr, c) // now that all is known of it
	return c.TCPConn.Close()
}

// CloseWrite ends what this side says. The client's end of the connection is no reset then, whatever state it leaves.
func (c *Conn) CloseWrite() error {
	c.halfClosed.Store(true)
	return c.TCPConn.CloseWrite()
}

// noteReset notes a reset that no read and no write has found, or one that another goroutine has found, and has not noted yet.
func (c *Conn) noteReset() {
	c.note(pending(c.TCPConn))
	if !c.halfClosed.Load() && !c.reset.Load() && isReset(c.TCPConn) {
		c.note(syscall.ECONNRESET)
	}
}

// note notes what an error says of the client.
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
