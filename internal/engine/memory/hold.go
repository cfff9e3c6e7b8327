package memory

import "holdfast/stream"

// Sessions hold data of a client beside the messages of its calls: its capabilities, its subscriptions, and the like.
// These cannot be dropped. So they may take three quarters of the limit at the most, in all and for a tenant: the rest
// is always left to messages. A session may hold half of SessionBytes, or leastHeld if that is more.

// leastHeld is how many bytes any session may hold, if there is room.
const leastHeld = 64 << 10

// Hold counts n bytes more that a session holds, if there is room for them: ended streams are dropped for that. They
// are counted until Hold is called with -n, which always succeeds, or the session is deleted. It reports whether
// there was room: true also for a session that is not here, which holds nothing.
func (st *Store) Hold(lease stream.Lease, n int64) bool {
	s := st.find(lease.Session)
	if s == nil || n == 0 {
		return true
	}
	s.mu.Lock()
	t := s.tenant
	here := s.epoch == lease.Epoch && !s.deleted
	fits := n < 0 || s.held+n <= max(st.opts.SessionBytes/2, leastHeld)
	s.mu.Unlock()
	switch {
	case !here:
		return true
	case !fits || !st.mayHold(t, n):
		return false
	}
	for !st.take(t, n, n < 0) {
		if !st.makeWay(t, n) {
			st.unhold(t, n)
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deleted {
		st.give(t, n)
		st.unhold(t, n)
		return true
	}
	s.held += n
	return true
}

// MustHold is Hold, whether there is room or not.
func (st *Store) MustHold(lease stream.Lease, n int64) {
	s := st.find(lease.Session)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch != lease.Epoch || s.deleted {
		return
	}
	st.take(s.tenant, n, true)
	st.unhold(s.tenant, -n)
	s.held += n
}

// Held returns how many bytes sessions hold.
func (st *Store) Held() int64 { return st.held.Load() }

// mayHold counts n bytes that a tenant's session holds, unless sessions would hold more than they may, and reports
// whether it did.
func (st *Store) mayHold(t *tenant, n int64) bool {
	if !grow(&st.held, n, st.opts.TotalBytes/4*3, n < 0) {
		return false
	}
	if !grow(&t.held, n, st.most(t)/4*3, n < 0) {
		st.held.Add(-n)
		return false
	}
	return true
}

// unhold counts n bytes less that a tenant's sessions hold.
func (st *Store) unhold(t *tenant, n int64) {
	st.held.Add(-n)
	t.held.Add(-n)
}
