// Package backpressure makes writers wait for the reader of their stream: if the stream has more entries than the store keeps, a slower reader
// would lose the oldest. The reader is waited for as long as it gets on. The package knows nothing of calls.
//
// The lock of a [Pace] comes after those of its [Stream]. It is not held while the stream or the store is asked.
package backpressure

import (
	"sync"
	"time"

	"holdfast/stream"
)

const (
	// stalled is how long a reader may write nothing before it is not waited for.
	stalled = time.Second
	// Most is how long a reader may take to catch up before it is too slow: other messages of its session's backend wait, too.
	Most = 5 * time.Second
	// entryRoom is about how many bytes an entry costs the store beside its data.
	entryRoom = 64
	// pressedKept is the denominator of the part of the kept bytes of a stream that its reader may be behind if the store has little room.
	pressedKept = 8
	// marksKept is how many places in a stream are remembered.
	marksKept = 32
)

// Options are those of all paces of a node.
type Options struct {
	Kept int64           // how much of a stream the store keeps, in bytes; 0: not known
	Room Room            // the store, if it has a bound in all; else nil
	Quit <-chan struct{} // closed when no reader is waited for any more
}

// A Room is a store that has a bound for all that it keeps.
type Room interface {
	Pressed(stream.Lease) bool      // entries that it can't drop take more than half of that
	Tight(stream.Lease) bool        // they take nearly all
	Shed(id stream.ID, upTo uint64) // drops the entries of a stream up to one that were read, while room is tight
}

// A Stream is a stream that is written at the pace of its reader.
type Stream interface {
	ID() stream.ID
	Lease() stream.Lease
	// IsOver reports whether no more entries are added to the stream here.
	IsOver() bool
	// Read returns the last entry that was said, and since when the stream has its reader; zero: it has none. expected says that a reader will come.
	Read() (said uint64, since time.Time, expected bool)
}

// A Pace is how far the reader of one stream is. Its methods may be called concurrently.
type Pace struct {
	mu    sync.Mutex
	told  uint64 // sequence of the last entry that a reader has written out
	bytes int64  // of all entries, if it is known how many bytes are kept
	lag   *lag   // nil for streams that say little
}

// A lag is how far a reader is behind.
type lag struct {
	marks []mark        // places that were not told yet, one in each 1/marksKept of the kept bytes
	told  int64         // bytes that were told, at the least
	at    time.Time     // when the reader last told an entry
	slow  bool          // it is not waited for until it has caught up
	room  chan struct{} // closed when it has caught up; nil if no goroutine waits
}

// A mark is a place in a stream.
type mark struct {
	seq   uint64
	bytes int64 // of the entries up to there
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
	if len(l.marks) > 2*marksKept { // no client reads
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

// Await waits while the stream's reader is behind by nearly all kept bytes, and gets on. If the store has
// hardly any room, Await waits until the reader has all entries, and frees their room. No lock is held.
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

// isBehind returns a channel that is closed when the stream's reader has caught up; nil: the wait, which
// began at a time, is over.
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

// lacks is isBehind for a wait until the stream's reader has all entries, however few: it may not have begun
// to read, and the next entries would take their room.
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

// awaitRoom returns a channel that is closed when the reader has caught up.
func (l *lag) awaitRoom() <-chan struct{} {
	if l.room == nil {
		l.room = make(chan struct{})
	}
	return l.room
}
