package session

import (
	"fmt"
	"hash/maphash"
	"sync"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows counts what sessions hold against the memory that is kept for their clients, beside the messages of
// calls: docs/decisions/0019-memory.md.

// A keeper is a store that counts what sessions hold.
type keeper interface {
	// Hold counts n bytes more (or fewer, which always succeeds) until the session is deleted. It reports whether
	// there is room.
	Hold(lease stream.Lease, n int64) bool
	// MustHold is Hold, whether there is room or not.
	MustHold(lease stream.Lease, n int64)
}

const (
	// sessionCost is what a session holds at the least, in bytes: what Holdfast knows of it, and a short initialize request.
	sessionCost = 4 << 10
	// shortInitialize is how long, in bytes, an initialize request is that sessionCost covers.
	shortInitialize = 1 << 10
	// decoded is how many times its length what a client says of itself takes, as it is kept, and decoded by a backend.
	decoded = 4
)

// A holding counts what a session holds.
type holding struct {
	keeper keeper // nil: nothing is counted
	lease  *stream.Lease

	mu   sync.Mutex    // taken last
	subs subscriptions // nil if there are none
}

// keep counts n bytes more that the session holds, if there is room; or fewer, if n is negative.
func (h *holding) keep(n int64) error {
	if h.keeper != nil && !h.keeper.Hold(*h.lease, n) {
		return errNoMemory
	}
	return nil
}

// mustKeep counts n bytes that the session holds in any case.
func (h *holding) mustKeep(n int64) {
	if h.keeper != nil && n != 0 {
		h.keeper.MustHold(*h.lease, n)
	}
}

// errNoMemory refuses what would be kept for as long as the session.
var errNoMemory = fmt.Errorf("%w: sessions keep as much of this client, or of all, as --memory has room for", ErrBusy)

// initializeCost is what a session holds of an initialize request, beside sessionCost.
func initializeCost(size int) int64 { return decoded * int64(max(0, size-shortInitialize)) }

// keepState counts what the session holds because of the requests among msgs: the initialize request, and
// subscriptions. undo takes that back; it is nil if there was nothing.
func (h *holding) keepState(msgs []jsonrpc.Message) (undo func(), err error) {
	for m := range protocol.Requests(msgs) {
		var back func()
		switch m.Method {
		case protocol.MethodInitialize:
			n := initializeCost(len(m.Raw))
			err, back = h.keep(n), func() { h.mustKeep(-n) }
		case protocol.MethodSubscribe:
			back, err = h.keepSubscription(uriOf(m))
		case protocol.MethodUnsubscribe:
			h.dropSubscription(uriOf(m))
		}
		if err != nil {
			break
		}
		if before := undo; back != nil && before != nil {
			undo = func() { back(); before() }
		} else if back != nil {
			undo = back
		}
	}
	if err != nil && undo != nil {
		undo()
	}
	return undo, err
}

func uriOf(m *jsonrpc.Message) string { return jsonrpc.String(jsonrpc.Field(m.Params, "uri")) }

// subscriptions are those of a client, by the hashes of their URIs, with what they count for. One counts until its client
// ends it, or the session ends, whatever the server has answered.
type subscriptions map[uint64]int64

// A subscription counts for so many bytes beside its URI, of which there are so many copies: it is kept here, and by backends, to tell
// the server again.
const (
	subscriptionCost = 512
	uriCopies        = 3
)

// seed is that of the hashes of URIs.
var seed = maphash.MakeSeed()

func subscriptionKey(uri string) uint64 { return maphash.String(seed, uri) }
func subscriptionSize(uri string) int64 { return int64(subscriptionCost + uriCopies*len(uri)) }

// keepSubscription counts a subscription, unless it is counted.
func (h *holding) keepSubscription(uri string) (undo func(), err error) {
	key, n := subscriptionKey(uri), subscriptionSize(uri)
	h.mu.Lock()
	_, counted := h.subs[key]
	h.mu.Unlock()
	if counted {
		return nil, nil
	}
	if err := h.keep(n); err != nil {
		return nil, err
	}
	h.mu.Lock()
	if _, counted = h.subs[key]; !counted {
		h.subscribed(uri)
	}
	h.mu.Unlock()
	if counted { // by another request, meanwhile
		h.mustKeep(-n)
		return nil, nil
	}
	return func() { h.dropSubscription(uri) }, nil
}

// subscribed notes a subscription that is counted. h.mu is held, or no other goroutine knows the session.
func (h *holding) subscribed(uri string) {
	if h.subs == nil {
		h.subs = make(subscriptions)
	}
	h.subs[subscriptionKey(uri)] = subscriptionSize(uri)
}

// dropSubscription counts a subscription no more.
func (h *holding) dropSubscription(uri string) {
	key := subscriptionKey(uri)
	h.mu.Lock()
	n := h.subs[key]
	if delete(h.subs, key); len(h.subs) == 0 {
		h.subs = nil
	}
	h.mu.Unlock()
	h.mustKeep(-n)
}

// cost is what a carrier holds of its clients; nil: that of a session which is none.
func (c *carrier) cost() int64 {
	if c == nil {
		return 0
	}
	return decoded * int64(len(c.capabilities)+len(c.key.client))
}
