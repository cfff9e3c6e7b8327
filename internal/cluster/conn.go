package cluster

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A conn is one end of a connection: numbered messages in each direction, of which
// no more are on their way than the reader has granted room for. It has no goroutine:
// what it waits for comes with the node's messages and ticks.
//
// It begins with open and accept. The dialler repeats open until it is answered.
// Close says fin, which like data has a number; the end that hears it reads what
// came before, then EOF, and can write no more. A message that does not come, or an
// end that is not there any more, is noticed by the node's checks (see check.go).
type conn struct {
	node *Node
	peer *peer
	id   connID

	mu       sync.Mutex
	canRead  sync.Cond
	canWrite sync.Cond
	readBy   deadline
	writeBy  deadline
	up       chan struct{} // the dialler's, until it is closed: accepted, or failed
	closed   bool          // by Close
	err      error         // why it has failed

	in      inbox
	next    uint64            // the number of the message that is waited for
	early   map[uint64][]byte // what came before its turn
	finAt   uint64            // the number after fin's, if it is among them
	told    uint64            // the number of the next message that the other end sends, as it has said
	got     uint64            // bytes that came, early ones too
	read    uint64            // bytes that were read
	granted uint64            // bytes that may come
	eof     bool              // fin came

	writing bool   // somebody writes
	sent    uint64 // the number of the next message
	handed  uint64 // the bus has got those before
	had     uint64 // the number that the other end waits for, as it has said
	written uint64 // bytes
	limit   uint64 // bytes that may be written
	starved bool   // a writer waits for more
	queued  bool   // a writer waits in the peer's flow
	called  bool   // and may go on

	watch
}

func (n *Node) newConn(p *peer, id connID) *conn {
	c := &conn{node: n, peer: p, id: id, granted: uint64(n.o.Window)}
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

// Read reads what has come.
func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	for {
		switch {
		case c.closed:
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
			c.read += uint64(n)
			grant := c.grant()
			next := c.next
			c.mu.Unlock()
			if grant > 0 {
				// A credit that is lost is asked for (see check.go).
				_ = c.send(c.node.compose(kindCredit).conn(c.id).number(grant).number(next))
			}
			return n, nil
		case c.eof:
			c.mu.Unlock()
			return 0, io.EOF
		case c.err != nil:
			defer c.mu.Unlock()
			return 0, c.err
		}
		c.canRead.Wait()
	}
}

// grant lets the other end write more once half of the window has been read, and
// says how much in all; 0: not yet. c.mu is held.
func (c *conn) grant() uint64 {
	window := uint64(c.node.o.Window)
	free := c.read + window
	if c.eof || c.err != nil || free-c.granted < window/2 {
		return 0
	}
	c.granted = free
	return free
}

// Write writes all, in one or several messages.
func (c *conn) Write(p []byte) (int, error) {
	if err := c.turn(); err != nil {
		return 0, err
	}
	defer c.endTurn()
	done := 0
	for done < len(p) {
		size, number, place, err := c.reserve(len(p) - done)
		if err != nil {
			return done, err
		}
		m := c.node.compose(kindData).conn(c.id).number(number).number(place).bytes(p[done : done+size]...)
		if err := c.send(m); err != nil {
			// Its number was given out, so nothing can follow.
			c.node.drop(c, fmt.Errorf("writing to node %s: %w", c.peer.name, err), true)
			return done, c.failure()
		}
		done += size
	}
	return done, nil
}

// turn waits until nobody else writes.
func (c *conn) turn() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.mayWrite(); err != nil {
			return err
		}
		if !c.writing {
			c.writing = true
			return nil
		}
		c.canWrite.Wait()
	}
}

func (c *conn) endTurn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing, c.starved, c.handed = false, false, c.sent
	c.canWrite.Broadcast()
}

// reserve waits until a message may be sent, and returns its size, its number and
// its place among all that is sent to the peer.
func (c *conn) reserve(want int) (size int, number, place uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handed = c.sent // by this writer, whose turn it is
	for {
		if err := c.mayWrite(); err != nil {
			return 0, 0, 0, err
		}
		free := c.limit - c.written
		size = min(want, c.node.chunk, int(min(free, 1<<30)))
		c.starved = free == 0
		if !c.starved && !c.queued {
			place, ok := c.peer.flow.take(c, size, c.called)
			c.called = false
			if ok {
				number = c.sent
				c.sent++
				c.written += uint64(size)
				return size, number, place, nil
			}
			c.queued = true
		}
		c.canWrite.Wait()
	}
}

// mayWrite says why not. c.mu is held.
func (c *conn) mayWrite() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.err != nil:
		return c.err
	case c.eof:
		return fmt.Errorf("node %s has closed the connection: %w", c.peer.name, syscall.EPIPE)
	case c.writeBy.passed:
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (c *conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// send sends a message to the other end.
func (c *conn) send(m *parcel) error { return c.node.send(c.peer, m) }

// Close ends the connection. The other end reads what was written before.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed = true
	c.in.drop()
	c.early = nil
	c.wakeAll()
	over := c.err != nil || c.eof
	number := c.sent
	if !over {
		c.sent++
	}
	c.mu.Unlock()
	if over {
		c.node.remove(c)
		return nil
	}
	// The node remembers it until the other end has got all.
	if err := c.send(c.node.compose(kindFin).conn(c.id).number(number)); err != nil {
		c.node.drop(c, fmt.Errorf("closing a connection to node %s: %w", c.peer.name, err), true)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.writing {
		c.handed = c.sent
	}
	return nil
}

// wakeAll lets all who wait look again. c.mu is held.
func (c *conn) wakeAll() {
	c.canRead.Broadcast()
	c.canWrite.Broadcast()
	if c.closed || c.err != nil {
		c.readBy.set(time.Time{}, &c.canRead)
		c.writeBy.set(time.Time{}, &c.canWrite)
	}
	if c.up != nil && c.err != nil {
		close(c.up)
		c.up = nil
	}
}

// fail ends the connection for a reason, if it has not ended.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.early = nil
		c.wakeAll()
	}
}

// accepted says that the other end is there.
func (c *conn) accepted(window uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = max(c.limit, window)
	if c.up != nil {
		close(c.up)
		c.up = nil
	}
}

// arrive takes a message. over: it was the last one. An error says that the other
// end does not keep to the rules.
func (c *conn) arrive(number uint64, data []byte, fin bool) (over bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, twice := c.early[number]
	switch {
	case c.err != nil, c.eof, number < c.next, twice:
		return c.eof, nil
	case c.got+uint64(len(data)) > c.granted:
		return false, fmt.Errorf("node %s wrote more than there is room for", c.peer.name)
	}
	c.got += uint64(len(data))
	if number > c.next {
		if len(c.early) >= maxEarly {
			return false, fmt.Errorf("a message of node %s is missing, and %d came after it", c.peer.name, len(c.early))
		}
		if c.early == nil {
			c.early = make(map[uint64][]byte)
		}
		var held []byte
		if !c.closed && !fin {
			held = append(held, data...)
		}
		c.early[number] = held
		if fin {
			c.finAt = number + 1
		}
		return false, nil
	}
	c.place(data, fin)
	for len(c.early) > 0 {
		data, ok := c.early[c.next]
		if !ok {
			break
		}
		delete(c.early, c.next)
		c.place(data, c.finAt == c.next+1)
	}
	if len(c.early) == 0 {
		c.early = nil
	}
	return c.eof, nil
}

// place takes the message whose turn it is. c.mu is held.
func (c *conn) place(data []byte, fin bool) {
	c.next++
	if fin {
		c.eof = true
		c.canWrite.Broadcast()
	} else if !c.closed {
		c.in.add(data)
	}
	c.canRead.Broadcast()
}

// A deadline of reads or writes.
type deadline struct {
	passed bool
	timer  *time.Timer
	turn   int // how often it was set
}

// set changes a deadline; zero: there is none. The lock of cond is held.
func (d *deadline) set(t time.Time, cond *sync.Cond) {
	d.turn++
	d.passed = false
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.passed = true
		cond.Broadcast()
		return
	}
	turn := d.turn
	d.timer = time.AfterFunc(left, func() {
		cond.L.Lock()
		defer cond.L.Unlock()
		if d.turn == turn {
			d.passed = true
			cond.Broadcast()
		}
	})
}

// SetDeadline sets both deadlines.
func (c *conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, true, true) }

// SetReadDeadline sets when reads fail.
func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, true, false) }

// SetWriteDeadline sets when writes fail.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, false, true) }

func (c *conn) setDeadlines(t time.Time, read, write bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	if c.err != nil {
		return nil // what it would wake is awake
	}
	if read {
		c.readBy.set(t, &c.canRead)
	}
	if write {
		c.writeBy.set(t, &c.canWrite)
	}
	return nil
}
