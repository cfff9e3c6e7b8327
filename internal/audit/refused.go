package audit

import (
	"sync"
	"time"

	"holdfast/internal/observe"
)

// mostRefused is how many refused requests get a line in a second, at most: so many with a proven
// principal, and so many of all others. So a client without a token can neither fill the disk, nor
// take a line from a client that has one.
const mostRefused = 10

// refusals bounds the lines of refused requests.
type refusals struct {
	mu      sync.Mutex
	until   time.Time // when the second is over
	anybody int       // lines in it, of requests without a proven principal
	proven  int       // of requests with one
	leftOut int       // requests without a line that no line has counted yet
	tell    *time.Timer
	closed  bool
}

// refused queues the line of a refused request, or counts it.
func (l *Log) refused(e observe.Refused) {
	b := &l.bound
	b.mu.Lock()
	now := time.Now()
	if !now.Before(b.until) {
		b.until, b.anybody, b.proven = now.Add(time.Second), 0, 0
	}
	lines := &b.anybody
	if e.Denied.Principal != "" {
		lines = &b.proven
	}
	*lines++
	written := *lines <= mostRefused
	if !written {
		if b.leftOut++; b.leftOut == 1 && !b.closed {
			b.tell = time.AfterFunc(b.until.Sub(now), l.tellLeftOut)
		}
	}
	b.mu.Unlock()
	if written {
		l.queue(line{at: e.Denied.At, refused: &e})
	}
}

// tellLeftOut queues the line that says how many requests have no line.
func (l *Log) tellLeftOut() {
	b := &l.bound
	b.mu.Lock()
	n := b.leftOut
	b.leftOut = 0
	b.mu.Unlock()
	if n > 0 {
		l.queue(line{at: time.Now(), leftOut: n})
	}
}

// stopRefusals queues the last count of requests without a line.
func (l *Log) stopRefusals() {
	b := &l.bound
	b.mu.Lock()
	b.closed = true
	tell := b.tell
	b.mu.Unlock()
	if tell != nil {
		tell.Stop()
	}
	l.tellLeftOut()
}
