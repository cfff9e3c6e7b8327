package session

import (
	"fmt"
	"hash/maphash"
	"sync"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file counts the memory that sessions hold for their clients, beside the messages of calls: docs/decisions/0019-memory.md.

// A keeper is a store that counts the bytes that sessions hold.
type keeper interface {
	// Hold counts n bytes more (or fewer, which always succeeds) until the session is deleted. It reports whether
	// there is room.
	Hold(lease stream.Lease, n int64) bool
	// MustHold is Hold, whether there is room or not.
	MustHold(lease stream.Lease, n int64)
}

const (
	// sessionCost is the least that a session holds, in bytes: its state in Holdfast, and a short initialize request.
	sessionCost = 4 << 10
	// shortInitialize is the length, in bytes, of an initialize request that sessionCost covers.
	shortInitialize = 1 << 10
	// decoded is how many times its length a client's text about itself takes, as it is kept here, and decoded by a backend.
	decoded = 4
)

// A holding counts the bytes that a session holds.
type holding struct {
	keeper keeper // nil: nothing is counted
	lease  *stream.Lease

	initialize int64 // bytes that the initialize request is counted with; guarded by Session.mu

	mu   sync.Mutex    // taken after all other locks
	subs subscriptions // nil if there are none
}

// keep counts n bytes more that the session holds, if there is room; or fewer, if n is negative.
func (h *holding) keep(n int64) error {
	if h.keeper != nil && !h.keeper.Hold(*h.lease, n) {
		return errNoMemory
	}
	return nil
}

// mustKeep is keep, whether there is room or not.
func (h *holding) mustKeep(n int64) {
	if h.keeper != nil && n != 0 {
		h.keeper.MustHold(*h.lease, n)
	}
}

// keepsInitialize counts an initialize request of a size, which is kept from now on, in the place of the one before. Session.mu is held, or no
// other goroutine knows the session.
func (h *holding) keepsInitialize(size int) {
	before := h.initialize
	h.initialize = initializeCost(size)
	h.mustKeep(h.initialize - before)
}

// errNoMemory refuses requests that would be kept for as long as the session.
var errNoMemory = fmt.Errorf("%w: sessions keep as much of this client, or of all, as --memory has room for", ErrBusy)

// initializeCost returns the bytes that a session holds for an initialize request of a size, beside sessionCost.
func initializeCost(size int) int64 { return decoded * int64(max(0, size-shortInitialize)) }

// keepState counts the bytes that the session holds for the requests among msgs: the initialize request, and
// subscriptions. Unless it is nil, settle has to be called once the requests have begun, or have not: those of initialize are
// taken back in any case, as they are counted for the request that is kept ([Session.addRequests]), those of subscriptions if they have not.
func (h *holding) keepState(msgs []jsonrpc.Message) (settle func(begun bool), err error) {
	for m := range protocol.Requests(msgs) {
		var one func(begun bool)
		switch m.Method {
		case protocol.MethodInitialize:
			n := initializeCost(len(m.Raw))
			err, one = h.keep(n), func(bool) { h.mustKeep(-n) }
		case protocol.MethodSubscribe:
			one, err = h.keepSubscription(uriOf(m))
		case protocol.MethodUnsubscribe:
			h.dropSubscription(uriOf(m))
		}
		if err != nil {
			break
		}
		if before := settle; one != nil && before != nil {
			settle = func(begun bool) { one(begun); before(begun) }
		} else if one != nil {
			settle = one
		}
	}
	if err != nil && settle != nil {
		settle(false)
	}
	return settle, err
}

func uriOf(m *jsonrpc.Message) string { return jsonrpc.String(jsonrpc.Field(m.Params, "uri")) }

// subscriptions are the bytes that a client's subscriptions count for, by the hashes of their URIs. A subscription counts
// until its client ends it, or the session ends, whatever the server has answered.
type subscriptions map[uint64]int64

// A subscription counts for subscriptionCost bytes and for uriCopies of its URI: it is kept here, and by backends, to be made again.
const (
	subscriptionCost = 512
	uriCopies        = 3
)

// seed is the seed of the hashes of URIs.
var seed = maphash.MakeSeed()

func subscriptionKey(uri string) uint64 { return maphash.String(seed, uri) }
func subscriptionSize(uri string) int64 { return int64(subscriptionCost + uriCopies*len(uri)) }

// keepSubscription counts a subscription, unless it is counted already. settle is as for keepState.
func (h *holding) keepSubscription(uri string) (settle func(begun bool), err error) {
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
	return func(begun bool) {
		if !begun {
			h.dropSubscription(uri)
		}
	}, nil
}

// subscribed notes a subscription that is counted, or will be ([holding.subscribedCost]). h.mu is held, or no other goroutine knows the session.
func (h *holding) subscribed(uri string) {
	if h.subs == nil {
		h.subs = make(subscriptions)
	}
	h.subs[subscriptionKey(uri)] = subscriptionSize(uri)
}

// subscribedCost returns the bytes that the subscriptions count for. No other goroutine knows the session.
func (h *holding) subscribedCost() (n int64) {
	for _, cost := range h.subs {
		n += cost
	}
	return n
}

// dropSubscription ends the count of a subscription.
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

// cost returns the bytes that a carrier holds for its clients; 0 if c is nil: the session is no carrier.
func (c *carrier) cost() int64 {
	if c == nil {
		return 0
	}
	return decoded * int64(len(c.capabilities)+len(c.key.client))
}
