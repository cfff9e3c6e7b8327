// Package pace has what is written wait for its reader: of a stream that says more than the store keeps of it, a reader that is slower
// would lose the oldest entries. It is waited for as long as it gets on. The package knows nothing of calls.
//
// The lock of a [Pace] comes after those of its [Stream]. It is not held while the stream or the store is asked.
package pace

import (
	"sync"
	"time"

	"holdfast/stream"
)

const (
	// stalled is how long a reader may write nothing before it is not waited for.
	stalled = time.Second
	// Most is how long a reader may take to catch up before it is too slow: what else its session's backend has to say
	// waits too.
	Most = 5 * time.Second
	// entryRoom is about what an entry costs the store beside its bytes.
	entryRoom = 64
	// pressedKept is the part of what is kept of a stream that its reader may be behind where the store has little room.
	pressedKept = 8
	// marksKept is how many places in a stream are remembered.
	marksKept = 32
)

// Options are what the paces of a node have in common.
type Options struct {
	Kept int64           // how much of a stream the store keeps, in bytes; 0: not known
	Room Room            // the store, if it has a bound in all; else nil
	Quit <-chan struct{} // closed when no reader is waited for any more
}

// A Room is a store that has a bound for all that it keeps.
type Room interface {
	Pressed(stream.Lease) bool      // what it can't drop is more than half of that
	Tight(stream.Lease) bool        // and nearly all
	Shed(id stream.ID, upTo uint64) // drops what was read of a stream, while room is tight
}

// A Stream is what is written at a pace.
type Stream interface {
	ID() stream.ID
	Lease() stream.Lease
	// IsOver reports whether nothing more is said in the stream here.
	IsOver() bool
	// Read returns the last entry that was said, and since when the stream has its reader; zero: it has none. expected says that one
	// is to come.
	Read() (said uint64, since time.Time, expected bool)
}

// A Pace is how far the reader of one stream is. Its methods may be called concurrently.
type Pace struct {
	mu    sync.Mutex
	told  uint64 // sequence of the last entry that a reader has written out
	bytes int64  // said, if it is known how many are kept
	lag   *lag   // nil for streams that say little
}

// A lag is how far a reader is behind.
type lag struct {
	marks []mark        // places that were not told yet, by a 1/marksKept of what is kept
	told  int64         // bytes that were told, at the least
	at    time.Time     // when the reader told anything last
	slow  bool          // it is not waited for until it has caught up
	room  chan struct{} // closed when it has; nil if nothing waits
}

// A mark is a place in a stream.
type mark struct {
	seq   uint64
	bytes int64 // said up to there
}

// Said notes that the entry seq was said, of n bytes.
func (p *Pace) Said(o *Options, seq uint64, n int) {
	if o.Kept <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += int64(n) + entryRoom
	last := int64(0)
	if p.lag != nil {
		if last = p.lag.told; len(p.lag.marks) > 0 {
			last = p.lag.marks[len(p.lag.marks)-1].bytes
		}
	}
	if p.bytes-last < o.Kept/marksKept {
		return
	}
	if p.lag == nil {
		p.lag = &lag{}
	}
	l := p.lag
	l.marks = append(l.marks, mark{seq, p.bytes})
	if len(l.marks) > 2*marksKept { // nobody reads
		l.marks = append(l.marks[:0], l.marks[marksKept:]...)
	}
}

// Told returns the last entry that was told.
func (p *Pace) Told() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told
}

// Reach notes that the entries up to seq were told, of those up to said.
func (p *Pace) Reach(o *Options, seq, said uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = max(p.told, seq)
	l := p.lag
	if l == nil {
		return
	}
	l.at = time.Now()
	n := 0
	for n < len(l.marks) && l.marks[n].seq <= p.told {
		l.told = l.marks[n].bytes
		n++
	}
	l.marks = append(l.marks[:0], l.marks[n:]...)
	if p.bytes-l.told <= o.Kept/2 || p.told >= said {
		l.slow = false
		if l.room != nil {
			close(l.room)
			l.room = nil
		}
	}
}

// Await waits while the stream's reader is behind by nearly what is kept, and gets on.
// Where the store has hardly any room it waits for the reader to have all, and gives the room
// of that back. No lock is held.
func (p *Pace) Await(o *Options, s Stream) {
	if o.Room != nil && o.Room.Tight(s.Lease()) {
		p.await(o, s, p.lacks)
		o.Room.Shed(s.ID(), p.Told())
		return
	}
	p.mu.Lock()
	behind := p.lag != nil && p.bytes-p.lag.told > o.Kept/pressedKept
	p.mu.Unlock()
	if behind { // hardly ever
		p.await(o, s, p.isBehind)
	}
}

// await waits while lag, which is given the time of the beginning, returns a channel.
func (p *Pace) await(o *Options, s Stream, lag func(o *Options, s Stream, began time.Time) <-chan struct{}) {
	var tick *time.Ticker
	for began := time.Now(); ; {
		room := lag(o, s, began)
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
		case <-o.Quit:
			return
		}
	}
}

// isBehind returns what is closed when the stream's reader has caught up, if that is to be
// waited for, since a time.
func (p *Pace) isBehind(o *Options, s Stream, began time.Time) <-chan struct{} {
	bound := o.Kept / pressedKept
	if o.Room == nil || !o.Room.Pressed(s.Lease()) {
		bound = o.Kept / 4 * 3
	}
	_, came, _ := s.Read()
	over := s.IsOver()
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lag
	switch {
	case over, l.slow, p.bytes-l.told <= bound, came.IsZero(), time.Since(came) > stalled && time.Since(l.at) > stalled:
		return nil
	case time.Since(began) > Most:
		l.slow = true
		return nil
	}
	return l.awaitRoom()
}

// lacks is isBehind for when the stream's reader is to have all, however little that is:
// it may not have begun to read, and what is said next would take the room of that.
func (p *Pace) lacks(_ *Options, s Stream, began time.Time) <-chan struct{} {
	said, came, expected := s.Read()
	over := s.IsOver()
	p.mu.Lock()
	defer p.mu.Unlock()
	if over || p.told >= said || !expected && came.IsZero() {
		return nil
	}
	if p.lag == nil {
		p.lag = &lag{}
	}
	l := p.lag
	switch {
	case l.slow:
		return nil
	case time.Since(began) > Most, p.told == 0 && time.Since(began) > stalled: // the reader may begin only when we return
		l.slow = true
		return nil
	}
	return l.awaitRoom()
}

// awaitRoom returns what is closed when the reader gets on.
func (l *lag) awaitRoom() <-chan struct{} {
	if l.room == nil {
		l.room = make(chan struct{})
	}
	return l.room
}
