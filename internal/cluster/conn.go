package cluster

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A conn is one end of a connection: numbered messages in each direction. No more bytes are on
// their way than the reader has granted room for. It has no goroutine: the node's messages and
// ticks drive it.
//
// A connection begins with open and accept. The dialler repeats open until it is answered. Close
// sends fin, which like data has a number. The end that gets fin reads the data before it, then
// EOF, and can write no more. The node's checks find messages that do not come, and ends that are
// not there any more (see confirm.go).
//
// It has more than fifteen fields, because each of the two directions has its own numbers and
// credit, and the checks have counts for both.
type conn struct {
	node *Node
	peer *peer
	id   connID

	mu       sync.Mutex
	canRead  sync.Cond
	canWrite sync.Cond
	readBy   deadline
	writeBy  deadline
	state    connState
	up       chan struct{} // of the dialler: closed when state is not opening any more
	err      error         // the first failure

	in  inbound
	out outbound
	checks
}

// An inbound is the direction in which the other end writes.
type inbound struct {
	inbox
	next      uint64            // the number of the message that this end waits for
	early     map[uint64][]byte // messages that came before their turn, by number
	finAt     uint64            // the number after fin's, if fin came early
	announced uint64            // the number of the next message that the other end sends, as it says
	arrived   uint64            // bytes that came, early ones too
	read      uint64            // bytes that were read
	granted   uint64            // bytes that may come in all
}

// An outbound is the direction in which this end writes.
type outbound struct {
	writing   bool // a goroutine writes; others wait for it to end
	turn      turn
	next      uint64 // the number of the next message
	handed    uint64 // the bus has all messages before this number
	confirmed uint64 // the number that the other end waits for, as it says
	written   uint64 // bytes
	limit     uint64 // bytes that may be written in all
}

// A connState is the state of one end of a connection. These are the transitions:
//
//	         accept  fin     Close    all confirmed  failure
//	opening  open    ended   closing  -              failed
//	open     -       ended   closing  -              failed
//	ended    -       -       closed   -              -
//	failed   -       -       closed   -              -
//	closing  -       closed  -        closed         closed
//	closed   -       -       -        -              -
//
// The node forgets a connection that is closed, has failed, or fails after it has ended. The user
// of a failed connection keeps it until Close.
type connState int

const (
	opening connState = iota // dialled, and not accepted yet
	open
	ended   // the other end has closed: Read returns the data that came, then EOF
	failed  // Read returns the data that came, then the error
	closing // Close was called; the other end has not confirmed all messages
	closed
)

func (s connState) String() string {
	return [...]string{"opening", "open", "ended", "failed", "closing", "closed"}[s]
}

// A connEvent is an event that changes the state of a connection.
type connEvent int

const (
	onAccept    connEvent = iota // the other end has accepted the connection
	onFin                        // fin has come, and all data before it
	onClose                      // Close was called
	onConfirmed                  // the other end has all data that was written before Close
	onFailure
)

// after returns the state that follows an event.
func (s connState) after(e connEvent) connState {
	switch s {
	case opening, open:
		switch e {
		case onAccept:
			return open
		case onFin:
			return ended
		case onClose:
			return closing
		case onFailure:
			return failed
		}
	case ended, failed:
		if e == onClose {
			return closed
		}
	case closing:
		if e == onFin || e == onConfirmed || e == onFailure {
			return closed
		}
	}
	return s
}

// take changes the state as an event demands, and wakes waiting goroutines. c.mu is held.
func (c *conn) take(e connEvent) {
	was := c.state
	c.state = was.after(e)
	if c.state == was {
		return
	}
	c.canRead.Broadcast()
	c.canWrite.Broadcast()
	if was == opening && c.up != nil {
		close(c.up)
	}
	switch c.state {
	case closing, closed:
		c.in.drop()
		fallthrough
	case failed:
		c.in.early = nil
		c.readBy.set(time.Time{}, &c.canRead)
		c.writeBy.set(time.Time{}, &c.canWrite)
	}
}

// newConn returns an end of a connection in a state. The dialler's end begins in opening.
func (n *Node) newConn(p *peer, id connID, s connState) *conn {
	c := &conn{node: n, peer: p, id: id, state: s, in: inbound{granted: uint64(n.o.Window)}}
	c.canRead.L, c.canWrite.L = &c.mu, &c.mu
	return c
}

// Addr is the name of a node.
type Addr string

// Network is "cluster".
func (Addr) Network() string { return "cluster" }

func (a Addr) String() string { return string(a) }

func (c *conn) LocalAddr() net.Addr  { return Addr(c.node.name) }
func (c *conn) RemoteAddr() net.Addr { return Addr(c.peer.name) }

// Read waits for data, and reads it.
func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	for {
		switch {
		case c.state >= closing:
			c.mu.Unlock()
			return 0, net.ErrClosed
		case c.readBy.passed:
			c.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			c.mu.Unlock()
			return 0, nil
		case c.in.len() > 0:
			n := c.in.take(p)
			c.in.read += uint64(n)
			grant := c.grant()
			next := c.in.next
			c.mu.Unlock()
			if grant > 0 {
				// If the credit is lost, a check of the other end asks for it (see confirm.go).
				_ = c.send(c.node.compose(kindCredit).conn(c.id).number(grant).number(next))
			}
			return n, nil
		case c.state == ended:
			c.mu.Unlock()
			return 0, io.EOF
		case c.state == failed:
			defer c.mu.Unlock()
			return 0, c.err
		}
		c.canRead.Wait()
	}
}

// grant lets the other end write more once half of the window has been read. It returns how many
// bytes that end may have written in all; 0: no more yet. c.mu is held.
func (c *conn) grant() uint64 {
	window := uint64(c.node.o.Window)
	free := c.in.read + window
	if c.state != open || free-c.in.granted < window/2 {
		return 0
	}
	c.in.granted = free
	return free
}

// Close ends the connection. The other end reads the data that was written before.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.state >= closing {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.take(onClose)
	if c.state == closed {
		c.mu.Unlock()
		c.node.remove(c)
		return nil
	}
	number := c.out.next
	c.out.next++
	c.mu.Unlock()
	// The node keeps the connection until the other end has all messages.
	if err := c.send(c.node.compose(kindFin).conn(c.id).number(number)); err != nil {
		c.node.drop(c, fmt.Errorf("closing a connection to node %s: %w", c.peer.name, err), true)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.out.writing {
		c.out.handed = c.out.next
	}
	return nil
}

// fail ends the connection with an error, if it has not ended.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.take(onFailure)
}

// failure returns the error of a connection that has failed, or nil.
func (c *conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// send sends a message to the other end.
func (c *conn) send(m *packet) error { return c.node.send(c.peer, m) }

// accepted notes that the other end is there, and has room for window bytes.
func (c *conn) accepted(window uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.limit = max(c.out.limit, window)
	c.take(onAccept)
}

// arrive takes a message. finished: fin has come, and all data before it. An error says that the
// other end breaks the rules.
func (c *conn) arrive(number uint64, data []byte, fin bool) (finished bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := &c.in
	_, twice := in.early[number]
	switch {
	case c.state == ended, c.state == closed, c.state == failed:
		return c.state != failed, nil
	case number < in.next, twice:
		return false, nil
	case in.arrived+uint64(len(data)) > in.granted:
		return false, fmt.Errorf("node %s wrote more than there is room for", c.peer.name)
	}
	in.arrived += uint64(len(data))
	if number > in.next {
		if len(in.early) >= maxEarly {
			return false, fmt.Errorf("a message of node %s is missing, and %d came after it", c.peer.name, len(in.early))
		}
		if in.early == nil {
			in.early = make(map[uint64][]byte)
		}
		var held []byte
		if c.state != closing && !fin {
			held = append(held, data...)
		}
		in.early[number] = held
		if fin {
			in.finAt = number + 1
		}
		return false, nil
	}
	c.place(data, fin)
	for len(in.early) > 0 {
		data, ok := in.early[in.next]
		if !ok {
			break
		}
		delete(in.early, in.next)
		c.place(data, in.finAt == in.next+1)
	}
	if len(in.early) == 0 {
		in.early = nil
	}
	return c.state == ended || c.state == closed, nil
}

// place takes the next message in order. c.mu is held.
func (c *conn) place(data []byte, fin bool) {
	c.in.next++
	switch {
	case fin:
		c.take(onFin)
	case c.state < closing:
		c.in.add(data)
		c.canRead.Broadcast()
	}
}
