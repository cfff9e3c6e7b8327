package again

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/likeness"
	"holdfast/jsonrpc"
)

// A Standing is how a call stands to others that are like it. The zero value is that of a call that nothing is like.
type Standing struct {
	// These do not change after [Calls.Compared], but [Calls.Attach] takes beside.
	like   likeness.Likeness // of its one request; zero: nothing is like it
	conn   Connection        // on which the request came; nil: it cannot be asked
	beside *beside           // more data until the call is attached or delivered, or nil
	flight *flight           // nil: other nodes are not told of the call

	followers atomic.Int32 // requests that say its messages
	undecided atomic.Bool  // it may yet be found to be another call made again
	// back is the connection on which the client has come back last, or &gone.
	back atomic.Pointer[Connection]

	// Guarded by strandings.mu.
	following *Standing // the call that it waits for, if it is that call made again
	lent      bool      // to another node, where the call was made again
	taken     bool      // the call was made again here
	cancelled bool      // its client wants no answer
}

// gone stands for the connection of a client that had left before its call began, and made it again: no request finds the call.
var gone Connection

// beside has the data that only few requests have.
type beside struct {
	twins []twin // other calls that are like the request
	known []byte // the id by which a modern client knows it, if other nodes have told of calls
}

// more returns beside, and makes it if need be.
func (s *Standing) more() *beside {
	if s.beside == nil {
		s.beside = &beside{}
	}
	return s.beside
}

// Like returns the likeness that other requests are compared with, to see whether they are the call made again.
func (s *Standing) Like() likeness.Likeness { return s.like }

// IsLate reports whether the call has ended because its client had left before it began.
func (s *Standing) IsLate() bool { return s.back.Load() == &gone }

// IsFollowed reports whether a request that came again waits for the call.
func (s *Standing) IsFollowed() bool { return s.followers.Load() > 0 }

// IsNear reports whether other calls may be like the call, and its client is connected to this node.
func (s *Standing) IsNear() bool { return s.conn != nil && !s.conn.IsFar() && !s.like.IsZero() }

// client returns the connection that the call's client reads it on, or nil.
func (s *Standing) client() Connection {
	if back := s.back.Load(); back != nil {
		return *back
	}
	return s.conn
}

// CameBack notes that the client has come back for the call on another connection, which is nil if it cannot be asked. It is false if the call IsLate.
func (s *Standing) CameBack(conn Connection) bool {
	back := s.back.Load()
	for back != &gone && !s.back.CompareAndSwap(back, &conn) {
		back = s.back.Load()
	}
	return back != &gone
}

// Came notes the connection on which a call's request came, and the id by which a modern client knows the request, or nil. No other goroutine knows the call yet.
func (t *Calls) Came(s *Standing, id []byte, conn Connection) {
	s.conn = conn
	if id == nil {
		return
	}
	s.like.Sum = idSum(id)
	if t.hints.Kept() > 0 || t.far.Kept() > 0 {
		s.more().known = bytes.Clone(id)
	}
}

// Ended notes that the request of a call is no longer in flight.
func (t *Calls) Ended(c Call) {
	t.answered.add(c)
	t.lands(c)
}

// Cancelled notes that the client of a call wants no answer: an equal request is a new one. number is that of the call's stream, or 0. Locks may be held.
func (t *Calls) Cancelled(c Call, number uint64) {
	t.stranded.cancel(c.Standing())
	t.Drop(c.In(), number)
	t.answered.drop(c)
}

// A twin is another call that is like the call of a request.
type twin struct {
	like *likeness.Likeness
	conn Connection // nil: it cannot be asked
	call Call       // nil: it was answered
}

// MostCompared bounds how many requests a new one is compared with. If more are in flight, it waits for none.
const MostCompared = 64

// Liken sets the likeness of a call from its request and the request's sum. It is false if nothing is like the call. Else the caller calls
// [Calls.Meets] for each call in flight in the session, and then [Calls.Compared], with the session's lock held.
func (t *Calls) Liken(s *Standing, m *jsonrpc.Message, sum uint64) bool {
	id := s.like.Sum // of the id by which a modern client knows it
	if id == 0 {
		id = idSum(m.ID)
	}
	s.like = likeness.Of(m, sum+id, t.o.CallIDs)
	return !s.like.IsZero()
}

// Meets compares a call with another that is in flight.
func (t *Calls) Meets(s *Standing, other Call) {
	if o := other.Standing(); o != s {
		t.meets(s, twin{&o.like, o.conn, other})
	}
}

// Compared compares a call with the calls that were answered last. From then on requests may find it.
func (t *Calls) Compared(c Call) {
	st := c.Standing()
	for _, b := range t.answered.like(st, c.In()) {
		t.meets(st, twin{&b.like, b.conn, nil})
	}
	t.mayFly(c)
	st.undecided.Store(true)
}

// meets has a call wait for another that is like it, as the other's client may turn out to have lost its connection.
func (t *Calls) meets(s *Standing, other twin) {
	named := other.like.IsNamed(&s.like)
	asked := other.like.Asked == s.like.Asked && (t.o.AttachWithin > 0 || other.like.Sum == s.like.Sum) // equal sums: the whole request is the same
	switch {
	case !named && !asked:
	case named: // such a twin is looked at first
		s.more().twins = slices.Insert(s.more().twins, 0, other)
	default:
		s.more().twins = append(s.more().twins, other)
	}
}

// isUnsettled reports whether the client of a twin has left, and may turn out not to have its answer.
func (t *Calls) isUnsettled(other twin) bool {
	conn := other.conn
	if c := other.call; c != nil {
		st := c.Standing()
		taken, _ := t.stranded.state(st)
		switch conn = st.client(); {
		case st.IsLate(), taken:
			return false
		case st.undecided.Load() && t.stranded.knows(c.In(), c.Number()):
			return true
		}
	}
	return conn != nil && conn.Unsettled()
}

// An answeredRing has the calls that were answered last on this node: the network may tell later that a client has left without its answer. The zero value is ready to use.
type answeredRing struct {
	mu   sync.Mutex
	all  [MostCompared]answered
	next int
}

// An answered call.
type answered struct {
	s    Session
	like likeness.Likeness
	conn Connection
	at   time.Time
}

// add adds a call that is no longer in flight.
func (t *answeredRing) add(c Call) {
	st := c.Standing()
	conn := st.client()
	if st.like.IsZero() || conn == nil || st.IsLate() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[t.next] = answered{c.In(), st.like, conn, time.Now()}
	t.next = (t.next + 1) % len(t.all)
}

// drop forgets a call that was cancelled.
func (t *answeredRing) drop(c Call) {
	s, st := c.In(), c.Standing()
	if st.like.IsZero() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.all {
		if b := &t.all[i]; b.s == s && b.like == st.like && b.conn == st.client() {
			*b = answered{}
		}
	}
}

// mostRecent bounds how many answered calls a call is compared with.
const mostRecent = 8

// like returns the last calls answered in a session that are like a call, and came on another connection.
func (t *answeredRing) like(st *Standing, s Session) (found []answered) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.all); i > 0 && len(found) < mostRecent; i-- {
		b := &t.all[(t.next+i-1)%len(t.all)]
		if b.s == s && (b.like.Asked == st.like.Asked || b.like.IsNamed(&st.like)) && b.conn != st.conn && time.Since(b.at) <= resetWithin {
			found = append(found, *b)
		}
	}
	return found
}
