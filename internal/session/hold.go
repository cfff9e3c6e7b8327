package session

import (
	"fmt"
	"hash/maphash"

	"holdfast/internal/budget"
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

// keep counts n bytes more that the session holds, if there is room; or fewer, if n is negative.
func (s *Session) keep(n int64) error {
	if k := s.m.keeper; k != nil && !k.Hold(s.lease, n) {
		return errNoMemory
	}
	return nil
}

// mustKeep counts n bytes that the session holds in any case.
func (s *Session) mustKeep(n int64) {
	if k := s.m.keeper; k != nil && n != 0 {
		k.MustHold(s.lease, n)
	}
}

// errNoMemory refuses what would be kept for as long as the session.
var errNoMemory = fmt.Errorf("%w: sessions keep as much of this client, or of all, as --memory has room for", ErrBusy)

// initializeCost is what a session holds of an initialize request, beside sessionCost.
func initializeCost(size int) int64 { return decoded * int64(max(0, size-shortInitialize)) }

// keepState counts what the session holds because of the requests among msgs: the initialize request, and
// subscriptions. undo takes that back; it is nil if there was nothing.
func (s *Session) keepState(msgs []jsonrpc.Message) (undo func(), err error) {
	for i := range msgs {
		m := &msgs[i]
		if m.Kind != jsonrpc.Request {
			continue
		}
		var back func()
		switch m.Method {
		case protocol.MethodInitialize:
			n := initializeCost(len(m.Raw))
			err, back = s.keep(n), func() { s.mustKeep(-n) }
		case protocol.MethodSubscribe:
			back, err = s.keepSubscription(uriOf(m))
		case protocol.MethodUnsubscribe:
			s.dropSubscription(uriOf(m))
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
// ends it, or the session ends, whatever the server has answered. Guarded by Session.mu.
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
func (s *Session) keepSubscription(uri string) (undo func(), err error) {
	key, n := subscriptionKey(uri), subscriptionSize(uri)
	s.mu.Lock()
	_, counted := s.subs[key]
	s.mu.Unlock()
	if counted {
		return nil, nil
	}
	if err := s.keep(n); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if _, counted = s.subs[key]; !counted {
		if s.subs == nil {
			s.subs = make(subscriptions)
		}
		s.subs[key] = n
	}
	s.mu.Unlock()
	if counted { // by another request, meanwhile
		s.mustKeep(-n)
		return nil, nil
	}
	return func() { s.dropSubscription(uri) }, nil
}

// dropSubscription counts a subscription no more.
func (s *Session) dropSubscription(uri string) {
	key := subscriptionKey(uri)
	s.mu.Lock()
	n := s.subs[key]
	if delete(s.subs, key); len(s.subs) == 0 {
		s.subs = nil
	}
	s.mu.Unlock()
	s.mustKeep(-n)
}

// cost is what a carrier holds of its clients; nil: that of a session which is none.
func (c *carrier) cost() int64 {
	if c == nil {
		return 0
	}
	return decoded * int64(len(c.capabilities)+len(c.key.client))
}

// Account implements [budget.Accounted].
func (l *link) Account() budget.Account { return l }

// Arrive implements [budget.Account].
func (l *link) Arrive(done <-chan struct{}) *budget.Arrival {
	return l.s.m.opts.Flight.Arrive(l.s.tenant.name, done)
}

// Hold implements [budget.Account].
func (l *link) Hold(n int64) error {
	s := l.s
	s.mu.Lock()
	if l.over { // what it holds was given back
		s.mu.Unlock()
		if n < 0 {
			return nil
		}
		return errEnded
	}
	l.held += n
	s.mu.Unlock()
	err := s.keep(n)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	over := l.over
	if !over {
		l.held -= n
	}
	s.mu.Unlock()
	if over { // which has given back what was not had
		s.mustKeep(n)
	}
	return err
}
