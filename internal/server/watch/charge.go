package watch

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"holdfast/internal/budget"
)

// This file charges connections to their clients, from when they are accepted until they are closed.

// The charges of connections in bytes: about the memory that they take, most of it in net/http. A header's charge depends on
// its fields: a field of five bytes takes ninety, in the map that it is parsed to.
const (
	connectionCost = 20 << 10
	securedCost    = 12 << 10 // more, with TLS
	freeHeader     = 2 << 10  // bytes of a header without a charge of their own
	byteCost       = 3        // of a header, for each byte
	fieldCost      = 96       // and for each field
	hiddenCost     = 8        // for each byte under TLS, which may be of short fields
)

// A Bound bounds the memory of connections. All fields are required.
type Bound struct {
	Memory *budget.Connections
	// Tenant returns the tenant to charge for a connection from an address; "": none, as for a trusted proxy's.
	Tenant func(remote net.Addr) string
	// Refused is called for each connection that is closed because there is no room for it.
	Refused func(remote net.Addr)
}

// A charge is the charge of a connection.
type charge struct {
	bound  *Bound // nil: the connection is not counted
	tenant string

	phase   atomic.Int32
	head    int  // bytes of the present header that have come; used by the reader
	secured bool // under TLS; set before the first read

	// Guarded by Conn.mu.
	total  int64
	header int64 // the part of total that is for a header
	over   bool  // the connection is closed, and counts nothing
}

// The phases of a connection. Without calls of [State] it stays in the first.
const (
	phaseUnknown int32 = iota
	phaseAwaits        // no byte of the next header has come
	phaseHeader        // a header is read
	phaseRequest       // the header was read; the bytes that come are a body's
)

// State notes the state of a connection, for [http.Server.ConnState]. By it the beginning and the end of a request's header
// are known, so that headers are counted while they are read.
func State(c net.Conn, state http.ConnState) {
	secure, secured := c.(*tls.Conn)
	if secured {
		c = secure.NetConn()
	}
	w, ok := c.(*Conn)
	if !ok || w.bound == nil {
		return
	}
	switch state {
	case http.StateNew:
		if secured {
			w.secured = true
			w.add(securedCost)
		}
		w.phase.Store(phaseAwaits)
	case http.StateActive:
		w.phase.Store(phaseRequest)
		w.settle(false)
	case http.StateIdle:
		w.settle(true)
		w.phase.Store(phaseAwaits)
	case http.StateHijacked, http.StateClosed:
		w.phase.Store(phaseRequest)
	}
}

// accepts charges an accepted connection. It returns false if there was no room, and the connection was turned away.
func (c *Conn) accepts() bool {
	b := c.connections.Bound
	if b == nil {
		return true
	}
	c.bound, c.tenant = b, b.Tenant(c.RemoteAddr())
	if !b.Memory.Take(c.tenant, connectionCost) {
		b.Refused(c.RemoteAddr())
		c.connections.turned.away(c.TCPConn)
		return false
	}
	c.total = connectionCost
	return true
}

// add charges n more bytes, even beyond the bound.
func (c *Conn) add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.bound.Memory.Add(c.tenant, n)
		c.total += n
	}
}

// settle gives back the charge of a header that was read: all of it when the request has ended; before that, under TLS, the
// part above byteCost, as the request has no more fields than are allowed.
func (c *Conn) settle(ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	back := c.header
	if !ended {
		if back = 0; c.secured {
			back = c.header / hiddenCost * (hiddenCost - byteCost)
		}
	}
	if back > 0 && !c.over {
		c.bound.Memory.Add(c.tenant, -back)
		c.total -= back
		c.header -= back
	}
}

// uncharge gives the whole charge back.
func (c *Conn) uncharge() {
	if c.bound == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bound.Memory.Add(c.tenant, -c.total)
	c.total, c.header, c.over = 0, 0, true
}

// takes charges bytes that were read, if they are of a header. It returns false if there is no room.
func (c *Conn) takes(read []byte) bool {
	switch c.phase.Load() {
	case phaseAwaits:
		c.head = 0
		c.phase.CompareAndSwap(phaseAwaits, phaseHeader)
	case phaseHeader:
	default:
		return true
	}
	had := c.head
	if c.head += len(read); c.head <= freeHeader {
		return true
	}
	if !c.secured {
		if end := headerEnd(read); end >= 0 { // the rest is a body
			read = read[:end]
			c.phase.CompareAndSwap(phaseHeader, phaseRequest)
		}
	}
	read = read[min(len(read), max(0, freeHeader-had)):]
	cost := int64(len(read)) * hiddenCost
	if !c.secured {
		cost = int64(len(read))*byteCost + int64(bytes.Count(read, []byte{'\n'}))*fieldCost
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || !c.bound.Memory.Take(c.tenant, cost) {
		return false
	}
	c.total += cost
	c.header += cost
	return true
}

// headerEnd returns the index of a header's end in the bytes that were read, or -1.
func headerEnd(read []byte) int {
	end := bytes.Index(read, []byte("\r\n\r\n"))
	if bare := bytes.Index(read, []byte("\n\n")); bare >= 0 && (end < 0 || bare < end) {
		return bare
	}
	return end
}

// refusal is the answer on a connection that is turned away.
var refusal = func() []byte {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":%s}}`, strconv.Quote(budget.ErrConnections.Error()))
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}()

// turned counts the connections that are being turned away, which takes a moment.
type turned struct{ now atomic.Int32 }

// How many connections get the refusal at a time, and how long that may take; others are closed at once.
const (
	mostTurned = 64
	turnedFor  = 500 * time.Millisecond
)

// away closes a connection, on a goroutine that writes the refusal first, if fewer than mostTurned are being turned away.
func (t *turned) away(c *net.TCPConn) {
	if t.now.Add(1) > mostTurned {
		t.now.Add(-1)
		_ = c.Close()
		return
	}
	go func() {
		defer t.now.Add(-1)
		tell(c, true)
		_ = c.Close()
	}()
}

// tell writes the refusal to a client, within turnedFor. first says that no byte has come yet: then it reads some to see
// whether the client speaks TLS, and could not read the refusal. After the write it reads on, as unread bytes would make
// the system drop the answer.
func tell(c *net.TCPConn, first bool) {
	_ = c.SetDeadline(time.Now().Add(turnedFor))
	var began [512]byte
	if first {
		if n, err := c.Read(began[:]); n == 0 || err != nil || began[0] == recordHandshake {
			return
		}
	}
	if _, err := c.Write(refusal); err != nil {
		return
	}
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, io.LimitReader(c, 1<<20))
}

// recordHandshake is the first byte from a client that speaks TLS (RFC 8446, section 5.1).
const recordHandshake = 22

// turnAway refuses a connection when there is no room for a header, and returns the error for its reader.
func (c *Conn) turnAway() error {
	c.bound.Refused(c.RemoteAddr())
	t := &c.connections.turned
	if !c.secured && t.now.Add(1) <= mostTurned {
		tell(c.TCPConn, false)
	}
	if !c.secured {
		t.now.Add(-1)
	}
	return &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: budget.ErrConnections} // net/http does not answer this error
}
