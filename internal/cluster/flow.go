package cluster

import "sync"

const (
	// flight is how many bytes of data may be on their way to a peer, of all its
	// connections: what servers keep for a node that is slow to take it is little,
	// and they cut it off when it is more.
	flight = 2 << 20
	// light is a message that goes before those who wait for their turn.
	light = 4 << 10
	// arrival is after how many bytes the sender is told that they have arrived.
	arrival = flight / 8
)

// A flow is what is on its way to a peer, and from it. Each data message says how
// many bytes were sent before and with it, so that what is lost counts as arrived
// once something after it has.
type flow struct {
	mu      sync.Mutex
	sent    uint64 // bytes in all
	arrived uint64 // as the peer says
	waiting []waiter

	seen uint64 // bytes that the peer has sent
	told uint64 // and has been told of
}

// A waiter is a connection that waits to send a message.
type waiter struct {
	conn *conn
	size int
}

// take lets a message go, and returns its place, or remembers the connection until
// it may. called: it has waited. The connection's lock is held.
func (f *flow) take(c *conn, size int, called bool) (place uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	away, most := f.sent-f.arrived, uint64(flight)
	if size <= light {
		called, most = true, 2*flight
	}
	if away+uint64(size) > most || !called && len(f.waiting) > 0 {
		f.waiting = append(f.waiting, waiter{c, size})
		return 0, false
	}
	f.sent += uint64(size)
	return f.sent, true
}

// free hears that bytes have arrived, and calls those who may go on.
func (f *flow) free(arrived uint64) {
	f.mu.Lock()
	f.arrived = min(max(f.arrived, arrived), f.sent)
	room := int(flight) - int(f.sent-f.arrived)
	called := 0
	for called < len(f.waiting) && f.waiting[called].size <= room {
		room -= f.waiting[called].size
		called++
	}
	next := f.waiting[:called]
	f.waiting = f.waiting[called:]
	if len(f.waiting) == 0 {
		f.waiting = nil
	}
	f.mu.Unlock()
	for _, w := range next {
		w.conn.call()
	}
}

// came hears how much the peer has sent, and says whether to tell it so, and how
// much it was.
func (f *flow) came(place uint64) (seen uint64, tell bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = max(f.seen, place)
	if tell = f.seen-f.told >= arrival; tell {
		f.told = f.seen
	}
	return f.seen, tell
}

// held says whether somebody waits, and how much was sent.
func (f *flow) held() (sent uint64, waits bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent, len(f.waiting) > 0
}
