package cluster

import (
	"net"
	"sync"
	"time"
)

// A deadline of reads or writes.
type deadline struct {
	passed bool
	timer  *time.Timer
	turn   int // how often it was set
}

// set changes a deadline; the zero time removes it. The lock of cond is held.
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
	if c.state >= closing {
		return net.ErrClosed
	}
	if c.err != nil {
		return nil // no goroutine waits any more
	}
	if read {
		c.readBy.set(t, &c.canRead)
	}
	if write {
		c.writeBy.set(t, &c.canWrite)
	}
	return nil
}
