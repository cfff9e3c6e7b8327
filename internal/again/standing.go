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

// A Standing is how a call stands to others that are like it. The zero value is that of one that nothing is like.
type Standing struct {
	// They do not change after [Calls.Compared].
	like   likeness.Likeness // of its one request; zero: nothing is like it
	conn   Connection        // on which the request came; nil: it cannot be asked
	beside *beside           // what is known of it until it is attached or delivered, if anything is
	flight *flight           // nil: no other node is to know it

	followers atomic.Int32 // requests that say what it says
	undecided atomic.Bool  // whether it is another call made again
	// back is the connection on which its client has come back for it last, or &gone.
	back atomic.Pointer[Connection]

	// Guarded by strandings.mu.
	following *Standing // what it waits for, if it is another call made again
	lent      bool      // to another node, as made again there
	taken     bool      // it was made again here
}

// gone stands for the connection of a client that had left before its call began, and made it again: nothing is found by the call.
var gone Connection

// beside is what few requests have.
type beside struct {
	twins []twin // others that are like it
	known []byte // the id by which a modern client knows it, while other nodes know stranded calls
}

// more returns what is known besides, which is made if there is nothing.
func (s *Standing) more() *beside {
	if s.beside == nil {
		s.beside = &beside{}
	}
	return s.beside
}

// Like is what other requests are compared with, to see whether they are the call made again.
func (s *Standing) Like() likeness.Likeness { return s.like }

// IsLate reports whether the call has ended as one whose client had left before it began.
func (s *Standing) IsLate() bool { return s.back.Load() == &gone }

// IsFollowed reports whether a request that came again waits for the call.
func (s *Standing) IsFollowed() bool { return s.followers.Load() > 0 }

// IsNear reports whether others may be like the call, and its client is connected to this node.
func (s *Standing) IsNear() bool { return s.conn != nil && !s.conn.IsFar() && !s.like.IsZero() }

// client returns the connection that the call's client reads it on, or nil.
func (s *Standing) client() Connection {
	if back := s.back.Load(); back != nil {
		return *back
	}
	return s.conn
}

// CameBack notes that the client has come back for the call on another connection, which is nil if it cannot be asked. It is false if the request has
// ended as one that came late.
func (s *Standing) CameBack(conn Connection) bool {
	back := s.back.Load()
	for back != &gone && !s.back.CompareAndSwap(back, &conn) {
		back = s.back.Load()
	}
	return back != &gone
}

// Came notes on which connection the request of a call came, which nobody else knows yet, and the id by which a modern client knows it, or nil.
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

// Ended notes that a call is on record no more.
func (t *Calls) Ended(c Call) {
	t.answered.add(c)
	t.lands(c)
}

// Cancelled notes that the client of a call, which is that of a stream if number is not 0, wants no answer: an equal request is a new one. Locks may be held.
func (t *Calls) Cancelled(c Call, number uint64) {
	t.Drop(c.In(), number)
	t.answered.drop(c)
}

// A twin is another call that is like one.
type twin struct {
	like *likeness.Likeness
	conn Connection // nil: it cannot be asked
	call Call       // nil: it was answered
}

// MostCompared bounds how many requests a new one is compared with. Where there are more in flight, none is waited for.
const MostCompared = 64

// Liken gives a call the likeness of its request, whose sum is known. It is false if nothing is like it; else the call [Calls.Meets] all in flight
// in its session, whose lock is held, and is [Calls.Compared].
func (t *Calls) Liken(s *Standing, m *jsonrpc.Message, sum uint64) bool {
	id := s.like.Sum // of the one by which a modern client knows it
	if id == 0 {
		id = idSum(m.ID)
	}
	s.like = likeness.Of(m, sum+id, t.o.CallIDs)
	return !s.like.IsZero()
}

// Meets compares a call with one that is in flight.
func (t *Calls) Meets(s *Standing, other Call) {
	if o := other.Standing(); o != s {
		t.meets(s, twin{&o.like, o.conn, other})
	}
}

// Compared compares a call with those that were answered last. From then on it may be found.
func (t *Calls) Compared(c Call) {
	st := c.Standing()
	for _, b := range t.answered.like(st, c.In()) {
		t.meets(st, twin{&b.like, b.conn, nil})
	}
	t.mayFly(c)
	st.undecided.Store(true)
}

// meets has a call wait for another one that is like it, and whose client may turn out to have lost it.
func (t *Calls) meets(s *Standing, other twin) {
	named := other.like.IsNamed(&s.like)
	asked := other.like.Asked == s.like.Asked && (t.o.AttachWithin > 0 || other.like.Sum == s.like.Sum) // the latter: whole
	switch {
	case !named && !asked:
	case named: // it is looked at first
		s.more().twins = slices.Insert(s.more().twins, 0, other)
	default:
		s.more().twins = append(s.more().twins, other)
	}
}

// isUnsettled reports whether the client of a twin has left, and may turn out to have lost it.
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

// An answeredRing has what was answered last on this node: the network may tell later that a client has left without its answer. The zero value is
// ready to use.
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

// add adds a call that leaves the record.
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

// mostRecent bounds how many of them one call is compared with.
const mostRecent = 8

// like returns those in a session that are like a call, and came on another connection: the last ones.
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
