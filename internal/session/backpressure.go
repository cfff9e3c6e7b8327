package session

import (
	"time"

	"holdfast/stream"
)

// A paced is a call as its pace knows it: see [pace.Stream].
type paced struct{ *Call }

func (c paced) ID() stream.ID       { return stream.ID{Session: c.s.key, Number: c.Number()} }
func (c paced) Lease() stream.Lease { return c.s.lease }
func (c paced) IsOver() bool        { return c.isOver() || c.s.Moved() }

func (c paced) Read() (said uint64, since time.Time, expected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said, c.s.streams.Since(c.number), c.expected
}

// told notes that a client was told the entries of the stream up to seq.
func (c paced) told(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pace.Reach(&c.s.m.pace, seq, c.said)
}
