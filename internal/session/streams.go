package session

import (
	"sync"
	"time"
)

// table is a session's streams: which are written, and who reads them.
type table struct {
	mu      sync.Mutex
	last    uint64                // the last number given
	streams map[uint64]streamUser // of those that are used
	gaps    gaps
	told    tellings
	ends    []uint64 // the streams that were read to their end, for the next note

	unread   absences // of clients that have yet to read how a call ended
	followed absences // of one of the clients of a call that may have several

	superseded *Reader       // a reader of the standalone stream that somebody waits for
	left       chan struct{} // closed when that one leaves, or steps aside
	displaced  displaced
}

// A streamUser is who uses a stream. Its zero value stands for nobody.
type streamUser struct {
	call   *Call   // that writes it; nil if it has ended
	reader *Reader // the newest; nil if nobody is connected
	blind  bool    // it is not known any more what the stream answered
}

// set notes who uses a stream. t.mu is held.
func (t *table) set(number uint64, u streamUser) {
	switch {
	case u != streamUser{}:
		if t.streams == nil {
			t.streams = make(map[uint64]streamUser, 1)
		}
		t.streams[number] = u
	case len(t.streams) == 1:
		delete(t.streams, number)
		if len(t.streams) == 0 {
			t.streams = nil
		}
	default:
		delete(t.streams, number)
	}
}

// setCall notes which call writes a stream; nil: none any more. t.mu is held.
func (t *table) setCall(number uint64, c *Call) {
	u := t.streams[number]
	u.call = c
	t.set(number, u)
}

// setReader notes who reads a stream. t.mu is held.
func (t *table) setReader(number uint64, r *Reader) {
	u := t.streams[number]
	u.reader = r
	t.set(number, u)
}

// setBlind notes that nobody knows any more what a stream answered.
func (t *table) setBlind(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.streams[number]
	u.blind = true
	t.set(number, u)
}

// add gives a call a stream.
func (t *table) add(c *Call) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.setCall(t.last, c)
	return t.last
}

// number gives a number without a call.
func (t *table) number() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	return t.last
}

// remove forgets the call of a stream that has its last entry.
func (t *table) remove(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.streams[number]
	t.setCall(number, nil)
	switch {
	case u.reader == nil && u.call != nil && (u.call.s.modern != "" || u.call.deferred() != nil): // whose client does not come back for it
	case u.reader == nil:
		t.unread.add(number, awaitedFor)
	default:
		u.reader.all((*Reader).wake) // nothing more comes, should they wait for that
	}
	u.call.untold().End(number)
}

// awaitedFor is how long a client may be away, at the most, and still be waited for.
const awaitedFor = 10 * time.Second

// awaited reports whether a client is likely to come back for the end of a stream:
// it has yet to read it, and has been away for no longer than patience.
func (t *table) awaited(patience time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unread.within(patience)
}

// isBlind reports whether a stream's client can only be told that nobody knows.
func (t *table) isBlind(number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams[number].blind
}

// call returns the call whose stream is still written, or nil.
func (t *table) call(number uint64) *Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams[number].call
}

// writes reports whether the call's stream is still written, or will be.
func (t *table) writes(c *Call, number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return number == standalone || t.streams[number].call == c
}

// read reports whether a stream has a reader.
func (t *table) read(number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams[number].reader != nil
}

// disconnect asks the reader of a stream, if there is one, to end its connection.
func (t *table) disconnect(number uint64, k disconnect) {
	t.mu.Lock()
	r := t.streams[number].reader
	t.mu.Unlock()
	if r != nil {
		r.disconnect(k)
	}
}

// wake tells the readers of a stream to look again.
func (t *table) wake(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams[number].reader.all((*Reader).wake)
}
