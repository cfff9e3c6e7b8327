package session

import (
	"sync"
	"time"
)

// table is a session's streams: which are written, and who reads them.
type table struct {
	mu      sync.Mutex
	last    uint64 // the last number given
	calls   map[uint64]*Call
	readers map[uint64]*Reader
	leaving *Reader           // a reader of the standalone stream that somebody waits for
	left    chan struct{}     // closed when it leaves
	hooked  map[uint64]*hooks // of calls that are over; nil for most sessions
	broken  []broken
	asked   time.Time            // when the client last came back with nothing but its session
	done    []uint64             // for the next note: read to the end
	rung    []uint64             // for the next note: of calls whose webhooks were told
	blind   map[uint64]bool      // streams of which it is not known any more what they answered; nil for most sessions
	unread  map[uint64]time.Time // what has ended and its client has yet to read to the end; since when it is away
	most    int                  // how many of those are worth looking through for old ones
	// followed are calls that may have more than one client: since when one of them is
	// not connected. Nil for most sessions.
	followed map[uint64]time.Time
}

// add gives a call a stream.
func (t *table) add(c *Call) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	if t.calls == nil {
		t.calls = make(map[uint64]*Call)
	}
	t.calls[t.last] = c
	return t.last
}

// number gives a number without a call.
func (t *table) number() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	return t.last
}

// remove forgets the call of a stream that has its last entry, and returns its
// webhooks, which must be dispatched.
func (t *table) remove(number uint64) *hooks {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.calls[number]
	delete(t.calls, number)
	if r := t.readers[number]; r == nil {
		t.leave(number)
	} else {
		r.poke() // nothing more comes, should it wait for that
	}
	return t.over(c, number)
}

// awaitedFor is how long a client may be away, at the most, and still be waited for.
const awaitedFor = 10 * time.Second

// leave notes that a stream has ended and its client has yet to read how, for
// as long as that can matter to [table.awaited]. t.mu is held.
func (t *table) leave(number uint64) {
	if len(t.unread) >= t.most {
		for n, at := range t.unread {
			if time.Since(at) > awaitedFor {
				delete(t.unread, n)
			}
		}
		t.most = 2*len(t.unread) + 8
	}
	if t.unread == nil {
		t.unread = make(map[uint64]time.Time)
	}
	t.unread[number] = time.Now()
}

// awaited says whether a client is likely to come back for the end of a stream:
// it has yet to read it, and has been away for no longer than patience.
func (t *table) awaited(patience time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, at := range t.unread {
		if time.Since(at) <= patience {
			return true
		}
	}
	return false
}

// isBlind says whether a stream's client can only be told that nobody knows.
func (t *table) isBlind(number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.blind[number]
}

// call returns the call whose stream is still written, or nil.
func (t *table) call(number uint64) *Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls[number]
}

// writes says whether the call's stream is still written, or will be.
func (t *table) writes(c *Call, number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return number == standalone || t.calls[number] == c
}

// read says whether a stream has a reader.
func (t *table) read(number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.readers[number] != nil
}

// kick asks the reader of a stream, if there is one, to end its connection.
func (t *table) kick(number uint64, k kick) {
	t.mu.Lock()
	r := t.readers[number]
	t.mu.Unlock()
	if r != nil {
		r.kick(k)
	}
}

// poke tells the reader of a stream, if there is one, to look again.
func (t *table) poke(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.readers[number]; r != nil {
		r.poke()
	}
}
