package cluster

import "sync"

const (
	// maxInFlight is how many bytes of data of all connections may be on their way to a peer.
	// Engines keep little for a node that is slow to take it, and cut the node off beyond that.
	maxInFlight = 2 << 20
	// small is the size of the largest message that does not wait for its turn.
	small = 4 << 10
	// reportEvery is after how many bytes the receiver reports to the sender the bytes that have
	// arrived.
	reportEvery = maxInFlight / 8
)

// A flow counts the bytes that are on their way to a peer, and from it. Each data message says how
// many bytes were sent before and with it, so that a lost message counts as arrived once a later
// one has.
type flow struct {
	mu      sync.Mutex
	sent    uint64 // bytes in all
	arrived uint64 // how many of them have arrived, as the peer says
	waiting []waiter

	received uint64 // bytes that the peer has sent to this node
	reported uint64 // how many of them were reported to the peer as arrived
}

// A waiter is a connection that waits to send a message.
type waiter struct {
	conn *conn
	size int
}

// reserve returns the place of a message that may be sent now. If the message may not be sent, the
// connection is queued. admitted: it was queued before. The connection's lock is held.
func (f *flow) reserve(c *conn, size int, admitted bool) (place uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	away, most := f.sent-f.arrived, uint64(maxInFlight)
	if size <= small {
		admitted, most = true, 2*maxInFlight
	}
	if away+uint64(size) > most || !admitted && len(f.waiting) > 0 {
		f.waiting = append(f.waiting, waiter{c, size})
		return 0, false
	}
	f.sent += uint64(size)
	return f.sent, true
}

// acknowledge notes that bytes have arrived, and admits the connections that may send now.
func (f *flow) acknowledge(arrived uint64) {
	f.mu.Lock()
	f.arrived = min(max(f.arrived, arrived), f.sent)
	room := int(maxInFlight) - int(f.sent-f.arrived)
	admitted := 0
	for admitted < len(f.waiting) && f.waiting[admitted].size <= room {
		room -= f.waiting[admitted].size
		admitted++
	}
	next := f.waiting[:admitted]
	f.waiting = f.waiting[admitted:]
	if len(f.waiting) == 0 {
		f.waiting = nil
	}
	f.mu.Unlock()
	for _, w := range next {
		w.conn.admit()
	}
}

// receive notes how many bytes the peer has sent, and returns the highest number so far. report: it
// is time to report it to the peer.
func (f *flow) receive(place uint64) (received uint64, report bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.received = max(f.received, place)
	if report = f.received-f.reported >= reportEvery; report {
		f.reported = f.received
	}
	return f.received, report
}

// blocked returns how many bytes were sent, and whether a connection waits.
func (f *flow) blocked() (sent uint64, waits bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent, len(f.waiting) > 0
}
