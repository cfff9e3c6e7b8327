package flight

import (
	"sync"
	"time"

	"holdfast/internal/again"
)

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
	like again.Likeness
	conn Connection
	at   time.Time
}

// add adds a call that leaves the record.
func (t *answeredRing) add(c Call) {
	st := c.Standing()
	conn := st.client()
	if st.like.IsZero() || conn == nil || st.late.Load() {
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
