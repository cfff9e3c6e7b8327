package reading

import (
	"context"
	"sync/atomic"
	"time"
)

// Some clients open two standalone streams, and open each again when it ends: each would end the other for ever. So after
// a few times the older connection stays, and says nothing, while the newer one has the stream: docs/decisions/0041-clients-as-they-are.md.

const (
	// seconds is how soon after one standalone stream has taken the place of another that happens again, if two
	// connections contend. A client comes back after the time that it was asked to wait, or that it waits by itself.
	seconds = 15 * time.Second
	// endedAtFirst is how many readers in a row are ended before one steps aside. As a rule they are connections that a
	// proxy holds open after their client has come back.
	endedAtFirst = 3
	// mostAside is how many readers of a session may have stepped aside.
	mostAside = 4
)

// displaced is how often a reader of the standalone stream has taken the place of another. Guarded by Streams.mu.
type displaced struct {
	at    time.Time
	times int // in a row; more than endedAtFirst: its client has several streams
}

// aside is whether a reader has stepped aside:
//
//	reads → asked   a newer reader takes its place
//	asked → aside   it has seen that, and writes nothing more
//	asked, aside → reads   the newer reader has left
type aside struct {
	patient bool // its connection may stay, with nothing to say
	asked   atomic.Bool
	seen    bool // used by the reader's goroutine alone
	done    bool // the reader writes nothing more; guarded by Streams.mu
}

// displace makes the reader of the standalone stream give way to another: it is ended, or steps aside. t.mu is held.
func (t *Streams) displace(r *Reader) {
	if r.Gone() || r.aside.asked.Load() {
		return
	}
	d := &t.displaced
	if d.times <= endedAtFirst && time.Since(d.at) > seconds {
		d.times = 0
	}
	d.at = time.Now()
	d.times++
	if d.times <= endedAtFirst || !r.aside.patient {
		r.end()
		return
	}
	r.aside.asked.Store(true)
	r.wake()
}

// boundAside ends the oldest of the readers that have stepped aside for r, if there are too many. t.mu is held.
func (t *Streams) boundAside(r *Reader) {
	n := 0
	for old := r.older; old != nil; old = old.older {
		if n++; n > mostAside {
			old.end()
		}
	}
}

// comeBack makes a reader, which may be nil, read on if it has stepped aside. Streams.mu is held.
func (r *Reader) comeBack() {
	if r == nil || !r.aside.asked.Swap(false) {
		return
	}
	r.aside.done = false
	r.lostChanged.Store(true)
	r.wake()
}

// Aside reports whether a newer reader has the stream, so that this one must not read. Once the newer one has left,
// this one reads on after the last entry that the newer one has told.
func (r *Reader) Aside(ctx context.Context) bool {
	x := &r.aside
	switch asked := x.asked.Load(); {
	case !asked && !x.seen:
	case asked && !x.seen:
		x.seen = true
		r.t.steppedAside(r)
	case !asked:
		x.seen = false
		if told := r.t.Delivered(); told > r.cursor.Seq {
			r.cursor.Seq = told
			r.cursor.Epoch = r.t.epochOf(ctx, r.cursor)
		}
	}
	return x.seen
}

// steppedAside notes that a reader writes nothing more.
func (t *Streams) steppedAside(r *Reader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.aside.done = r.aside.asked.Load()
	if t.superseded == r {
		close(t.left)
		t.superseded, t.left = nil, nil
	}
}
