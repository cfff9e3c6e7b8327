package server

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

	"holdfast/internal/session"
)

// Listener wraps l, on which the handler is served, so that the handler learns of
// clients that left with bytes unread: the network says so with a reset. A call
// that was written to its end for such a client may be told again to it when it
// comes back with nothing but its session id; without Listener that can't be
// known, and is not done. Only TCP connections, without TLS, are watched.
//
// What net/http answers there with 501 or 505 by itself, to a client that speaks another
// HTTP, becomes 400.
func (h *Handler) Listener(l net.Listener) net.Listener { return listener{l, &h.watched} }

// connections are those that are watched, by their client's address. Entries are
// added and removed as connections are accepted and closed.
type connections struct{ open sync.Map }

// at returns the connection on which a request came, or nil if it is not watched
// or carries several requests at a time. One below TLS says nothing: a client that has read all
// may reset it all the same, because of the alert at its end.
func (cs *connections) at(r *http.Request) *watched {
	if r.ProtoMajor != 1 || r.TLS != nil {
		return nil
	}
	c, _ := cs.open.Load(r.RemoteAddr)
	w, _ := c.(*watched)
	return w
}

type listener struct {
	net.Listener
	connections *connections
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c, err
	}
	w := &watched{TCPConn: tcp, addr: tcp.RemoteAddr().String(), connections: l.connections}
	w.connections.open.Store(w.addr, w)
	return w, err
}

// watched is a connection that says when it was reset. A client that closes it
// before all was sent ends it first, and resets it when more comes.
type watched struct {
	*net.TCPConn
	connections *connections
	addr        string      // the client's
	ended       atomic.Bool // nothing more comes from the client
	reset       atomic.Bool
	teller      atomic.Pointer[session.Session] // of what was last written, and may not arrive
	far         atomic.Pointer[leftNotice]      // the same where that is on another node
}

// wrote notes that what the session has told was written. The session is told if
// the client turns out to have left with some of it unread.
func (c *watched) wrote(s *session.Session) {
	c.teller.Store(s)
	c.far.Store(nil)
	if c.reset.Load() {
		s.Disconnected(c.addr, time.Time{})
	}
}

// passed notes that all was written of what another node has told.
func (c *watched) passed(p *leftNotice) {
	c.far.Store(p)
	c.teller.Store(nil)
	if c.reset.Load() {
		p.send()
	}
}

// gone reports whether the client has left, as far as the network knows. That is
// sooner than a reader is told.
func (c *watched) gone() bool {
	if !c.ended.Load() && !c.reset.Load() {
		c.note(peek(c.TCPConn))
	}
	return c.ended.Load() || c.reset.Load()
}

func (c *watched) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	c.note(err)
	if errors.Is(err, io.EOF) {
		c.note(pending(c.TCPConn))
	}
	return n, err
}

func (c *watched) Write(b []byte) (int, error) {
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

func (c *watched) Close() error {
	c.connections.open.CompareAndDelete(c.addr, c)
	if c.teller.Load() != nil || c.far.Load() != nil {
		c.note(pending(c.TCPConn))
	}
	return c.TCPConn.Close()
}

// note notes what an error says of the client.
func (c *watched) note(err error) {
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		c.ended.Store(true)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		c.reset.Store(true)
		if s := c.teller.Load(); s != nil {
			s.Disconnected(c.addr, time.Time{})
		}
		if p := c.far.Load(); p != nil {
			p.send()
		}
	}
}
