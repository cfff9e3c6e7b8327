package cluster

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// A turn is the state of a connection in the queue of connections that have data for one peer (see
// flowcontrol.go).
type turn int

const (
	noTurn   turn = iota // it is not queued
	waiting              // it is queued
	admitted             // it was queued, and may send
)

// Write writes all of p, in one or several messages. It waits for room.
func (c *conn) Write(p []byte) (int, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	defer c.endWrite()
	done := 0
	for done < len(p) {
		size, number, place, err := c.reserve(len(p) - done)
		if err != nil {
			return done, err
		}
		m := c.node.compose(kindData).conn(c.id).number(number).number(place).bytes(p[done : done+size]...)
		if err := c.send(m); err != nil {
			// The message's number was given out, so no other message can follow.
			c.node.drop(c, fmt.Errorf("writing to node %s: %w", c.peer.name, err), true)
			return done, c.failure()
		}
		done += size
	}
	return done, nil
}

// beginWrite waits until no other goroutine writes.
func (c *conn) beginWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.mayWrite(); err != nil {
			return err
		}
		if !c.out.writing {
			c.out.writing = true
			return nil
		}
		c.canWrite.Wait()
	}
}

func (c *conn) endWrite() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.writing, c.out.handed = false, c.out.next
	c.canWrite.Broadcast()
}

// reserve waits until a message may be sent, and returns its size, its number and
// its place among all that is sent to the peer.
func (c *conn) reserve(want int) (size int, number, place uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &c.out
	out.handed = out.next // this goroutine, the only one that writes, has handed all messages over
	for {
		if err := c.mayWrite(); err != nil {
			return 0, 0, 0, err
		}
		free := out.limit - out.written
		size = min(want, c.node.chunk, int(min(free, 1<<30)))
		if free > 0 && out.turn != waiting {
			place, ok := c.peer.flow.reserve(c, size, out.turn == admitted)
			out.turn = noTurn
			if ok {
				number = out.next
				out.next++
				out.written += uint64(size)
				return size, number, place, nil
			}
			out.turn = waiting
		}
		c.canWrite.Wait()
	}
}

// starved reports whether a writer waits for credit. c.mu is held.
func (c *conn) starved() bool { return c.out.writing && c.out.limit == c.out.written }

// mayWrite returns an error if the connection cannot be written. c.mu is held.
func (c *conn) mayWrite() error {
	switch {
	case c.state >= closing:
		return net.ErrClosed
	case c.err != nil:
		return c.err
	case c.state == ended:
		return fmt.Errorf("node %s has closed the connection: %w", c.peer.name, syscall.EPIPE)
	case c.writeBy.passed:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// admit lets the waiting writer send its message.
func (c *conn) admit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.turn = admitted
	c.canWrite.Broadcast()
}
