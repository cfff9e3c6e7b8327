package session

import (
	"time"

	"holdfast/stream"
)

// Backpressure: a backend that sends more than the store keeps of a call waits for the
// call's reader, as long as that makes progress. Without this, a reader that is slower
// than the backend would lose the oldest entries.

const (
	// stalled is how long a reader may write nothing before it is not waited for.
	stalled = time.Second
	// mostPaced is how long it may take to catch up before it is too slow: what else
	// its session's backend has to say waits too.
	mostPaced = 5 * time.Second
	// entryRoom is about what an entry costs the store beside its bytes.
	entryRoom = 64
	// pressedKept is the part of what is kept of a call that its reader may be behind
	// where the store has little room.
	pressedKept = 8
	// marksKept is how many places in a stream are remembered.
	marksKept = 32
)

// readerPace is how far a call's reader is behind.
type readerPace struct {
	marks []readerMark  // places that were not told yet, by a 1/marksKept of what is kept
	told  int64         // bytes that were told, at the least
	at    time.Time     // when the reader told anything last
	slow  bool          // it is not waited for until it has caught up
	room  chan struct{} // closed when it has; nil if nobody waits
}

// A readerMark is a place in a stream.
type readerMark struct {
	seq   uint64
	bytes int64 // said up to there
}

// countBytes counts what the call says. c.mu is held.
func (c *Call) countBytes(n int) {
	kept := c.s.m.streamBytes
	if kept <= 0 {
		return
	}
	c.delivery.bytes += int64(n) + entryRoom
	last := int64(0)
	if c.delivery.pace != nil {
		if last = c.delivery.pace.told; len(c.delivery.pace.marks) > 0 {
			last = c.delivery.pace.marks[len(c.delivery.pace.marks)-1].bytes
		}
	}
	if c.delivery.bytes-last < kept/marksKept {
		return
	}
	if c.delivery.pace == nil {
		c.delivery.pace = &readerPace{}
	}
	p := c.delivery.pace
	p.marks = append(p.marks, readerMark{c.said, c.delivery.bytes})
	if len(p.marks) > 2*marksKept { // nobody reads
		p.marks = append(p.marks[:0], p.marks[marksKept:]...)
	}
}

// caughtUp notes that the call's entries were told up to c.delivery.told. c.mu is held.
func (c *Call) caughtUp() {
	p := c.delivery.pace
	if p == nil {
		return
	}
	p.at = time.Now()
	n := 0
	for n < len(p.marks) && p.marks[n].seq <= c.delivery.told {
		p.told = p.marks[n].bytes
		n++
	}
	p.marks = append(p.marks[:0], p.marks[n:]...)
	if c.delivery.bytes-p.told <= c.s.m.streamBytes/2 || c.delivery.told >= c.said {
		p.slow = false
		if p.room != nil {
			close(p.room)
			p.room = nil
		}
	}
}

// awaitReader waits while the call's reader is behind by nearly what is kept, and gets on.
// Where the store has hardly any room it waits for the reader to have all, and gives the room
// of that back. No lock is held.
func (c *Call) awaitReader() {
	if c.s.m.room != nil && c.s.m.room.Tight(c.s.lease) {
		c.awaitLag(c.readerLacks)
		c.mu.Lock()
		id, told := stream.ID{Session: c.s.key, Number: c.number}, c.delivery.told
		c.mu.Unlock()
		c.s.m.room.Shed(id, told)
		return
	}
	if c.behind() > c.s.m.streamBytes/pressedKept { // hardly ever
		c.awaitLag(c.readerLag)
	}
}

// awaitLag waits while lag, which is given the time of the beginning, returns a channel.
func (c *Call) awaitLag(lag func(began time.Time) <-chan struct{}) {
	var tick *time.Ticker
	for began := time.Now(); ; {
		room := lag(began)
		if room == nil {
			return
		}
		if tick == nil {
			tick = time.NewTicker(stalled / 10)
			defer tick.Stop()
		}
		select {
		case <-room:
		case <-tick.C:
		case <-c.s.m.work.Quit():
			return
		}
	}
}

// behind is how many bytes the call's reader is behind; 0 if that is little.
func (c *Call) behind() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.delivery.pace == nil {
		return 0
	}
	return c.delivery.bytes - c.delivery.pace.told
}

// A room is a store that has a bound for all that it keeps.
type room interface {
	Pressed(stream.Lease) bool      // what it can't drop is more than half of that
	Tight(stream.Lease) bool        // and nearly all
	Shed(id stream.ID, upTo uint64) // drops what was read of a stream, while room is tight
}

// readerLag returns what is closed when the call's reader has caught up, if that is to be
// waited for, since a time.
func (c *Call) readerLag(began time.Time) <-chan struct{} {
	bound := c.s.m.streamBytes / pressedKept
	if c.s.m.room == nil || !c.s.m.room.Pressed(c.s.lease) {
		bound = c.s.m.streamBytes / 4 * 3
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.delivery.pace
	if c.isOver() || p.slow || c.delivery.bytes-p.told <= bound {
		return nil
	}
	switch came := c.s.streams.Since(c.number); { // zero if nobody reads
	case time.Since(came) > stalled && time.Since(p.at) > stalled, came.IsZero(), c.s.Moved():
		return nil
	case time.Since(began) > mostPaced:
		p.slow = true
		return nil
	}
	return p.awaitRoom()
}

// readerLacks is readerLag for when the call's reader is to have all, however little that is:
// it may not have begun to read, and what the call says next would take the room of that.
func (c *Call) readerLacks(began time.Time) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isOver() || c.delivery.told >= c.said {
		return nil
	}
	p := c.delivery.pace
	if p == nil {
		p = &readerPace{}
		c.delivery.pace = p
	}
	switch {
	case p.slow, c.s.Moved():
		return nil
	case !c.delivery.expected && c.s.streams.Since(c.number).IsZero():
		return nil
	case time.Since(began) > mostPaced, c.delivery.told == 0 && time.Since(began) > stalled: // the reader may begin only when we return
		p.slow = true
		return nil
	}
	return p.awaitRoom()
}

// awaitRoom returns what is closed when the reader gets on.
func (p *readerPace) awaitRoom() <-chan struct{} {
	if p.room == nil {
		p.room = make(chan struct{})
	}
	return p.room
}
