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

// What follows charges connections to their clients, from when they are accepted until they are closed.

// What connections count for, in bytes. It is about what they cost, of which net/http has most. A header's cost depends on what
// it has: a field of five bytes takes ninety, in the map that it is parsed to.
const (
	connectionCost = 20 << 10
	securedCost    = 12 << 10 // more, with TLS
	freeHeader     = 2 << 10  // bytes of a header that cost nothing beside
	byteCost       = 3        // of a header, for each byte
	fieldCost      = 96       // and for each field
	hiddenCost     = 8        // for each byte of what TLS hides; it may be nothing but short fields
)

// A Bound bounds what connections take. All fields are required.
type Bound struct {
	Memory *budget.Connections
	// Tenant names whom a connection from an address is charged to; "": its client has no share, as a proxy has that is
	// trusted.
	Tenant func(remote net.Addr) string
	// Refused is called for each connection that is closed because there is no room for it.
	Refused func(remote net.Addr)
}

// A charge is what a connection counts for.
type charge struct {
	bound  *Bound // nil: nothing is counted
	tenant string

	phase   atomic.Int32
	head    int  // bytes that have come of a header; used by the reader, while one is read
	secured bool // there is TLS; set before anything is read

	// Guarded by Conn.mu.
	total  int64
	header int64 // of that, for a header
	over   bool  // the connection is closed, and counts nothing
}

// Which phase a connection is in. Where no http.Server tells ([State]), it stays in the first.
const (
	phaseUnknown int32 = iota
	phaseAwaits        // nothing has come of the next header
	phaseHeader        // a header is read
	phaseRequest       // it was read; what comes is a body
)

// State notes the state of a connection, for [http.Server.ConnState]: it says where the header of a request begins and ends,
// so that headers can be counted while they are read.
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

// accepts charges a connection that was accepted, or turns it away.
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

// add counts n bytes more, in any case.
func (c *Conn) add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.bound.Memory.Add(c.tenant, n)
		c.total += n
	}
}

// settle gives back what a header was charged that has been read: all of it when the request has ended, and before that, with
// TLS, what it does not cost because it has no more fields than a request may have.
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

// uncharge gives all back.
func (c *Conn) uncharge() {
	if c.bound == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bound.Memory.Add(c.tenant, -c.total)
	c.total, c.header, c.over = 0, 0, true
}

// takes counts what was read, if it is of a header. It is false if there is no room for that.
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

// headerEnd returns where a header ends in what was read, or -1.
func headerEnd(read []byte) int {
	end := bytes.Index(read, []byte("\r\n\r\n"))
	if bare := bytes.Index(read, []byte("\n\n")); bare >= 0 && (end < 0 || bare < end) {
		return bare
	}
	return end
}

// refusal is the answer to a client whose connection is turned away.
var refusal = func() []byte {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":%s}}`, strconv.Quote(budget.ErrConnections.Error()))
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}()

// turned counts the connections that are being turned away: their clients are told why, and that takes a moment.
type turned struct{ now atomic.Int32 }

// How many connections are told at a time why they are closed, and for how long at most; the others are closed at once.
const (
	mostTurned = 64
	turnedFor  = 500 * time.Millisecond
)

// away closes a connection, after its client was told why, if that can be.
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

// tell tells a client why its connection is closed. A client that speaks TLS could not read it; what comes first tells, if
// nothing has come yet. What comes is read for a moment, as an answer is lost when bytes wait that were not read.
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

// recordHandshake begins what a client sends that speaks TLS (RFC 8446, section 5.1).
const recordHandshake = 22

// turnAway ends a connection whose header there is no room for, and returns the error for its reader.
func (c *Conn) turnAway() error {
	c.bound.Refused(c.RemoteAddr())
	t := &c.connections.turned
	if !c.secured && t.now.Add(1) <= mostTurned {
		tell(c.TCPConn, false)
	}
	if !c.secured {
		t.now.Add(-1)
	}
	return &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: budget.ErrConnections} // which net/http does not answer
}
