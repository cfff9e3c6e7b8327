package memory

import (
	"holdfast/stream"
)

// This file decides which streams are dropped when there is no room: ended streams, of the
// tenant that keeps most. docs/decisions/0019-memory.md says why.

// makeWay drops a stream, so that a tenant may keep n bytes more, and reports whether it
// found one: an acknowledged stream, else a finished one of the session that keeps most,
// of the tenant that keeps most. A tenant that would exceed its share loses a stream of
// its own.
func (st *Store) makeWay(t *tenant, n int64) bool {
	st.fin.Lock()
	var l *log
	var s *session
	switch {
	case t.bytes.Load()+n > st.most(t):
		s = t.ranked.top()
	case st.spent.oldest != nil:
		l = st.spent.oldest
	default:
		s = st.greatest(t, n)
	}
	st.fin.Unlock()
	switch {
	case l != nil:
		st.forget(l)
	case s != nil:
		st.dropOldest(s)
	}
	return l != nil || s != nil
}

// greatest returns the session that keeps most, of the tenant that keeps most, among
// those with finished streams; nil: there are none. asker counts with the n bytes that
// it wants. st.fin is held.
func (st *Store) greatest(asker *tenant, n int64) *session {
	for range 64 { // concurrent appends change the order
		t := st.ranked.top()
		if t == nil {
			return nil
		}
		if now := t.bytes.Load(); now < t.kept {
			t.kept = now
			st.ranked.fix(t)
			continue
		}
		if asker.at >= 0 && asker.bytes.Load()+n > t.kept {
			t = asker
		}
		return t.ranked.top()
	}
	return st.ranked.top().ranked.top()
}

// Pressed reports whether streams that cannot be dropped take more than half of the room, in all or
// for the session's tenant: then a backend that writes faster than its reader reads should wait.
func (st *Store) Pressed(lease stream.Lease) bool { return st.holds(lease.Session, 4) }

// Tight reports the same of seven eighths: then a backend should wait until its reader has all
// messages, and [Store.Shed] should drop those, so that there is room for new calls.
func (st *Store) Tight(lease stream.Lease) bool { return st.holds(lease.Session, 7) }

// holds reports whether streams that cannot be dropped take more than so many eighths of the
// room, in all or for a session's tenant.
func (st *Store) holds(key stream.SessionKey, eighths int64) bool {
	held := st.total.Load() - st.spare.Load()
	switch {
	case held <= min(st.opts.TotalBytes, st.opts.TenantBytes)/8*eighths: // so the tenant's are not more either
		return false
	case held > st.opts.TotalBytes/8*eighths:
		return true
	}
	s := st.find(key)
	if s == nil {
		return false
	}
	s.mu.Lock()
	t := s.tenant
	s.mu.Unlock()
	return t.bytes.Load()-t.spare.Load() > st.most(t)/8*eighths
}

// Shed drops entries of a stream that has not ended, up to upTo, while room is tight:
// its client has read them. The newest entry is kept.
func (st *Store) Shed(id stream.ID, upTo uint64) {
	s := st.find(id.Session)
	if s == nil {
		return
	}
	for st.holds(id.Session, 7) {
		if !st.shed(s, id.Number, upTo) {
			return
		}
	}
}

// shed drops some entries, and reports whether there were any.
func (st *Store) shed(s *session, number, upTo uint64) bool {
	const some = 64
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[number]
	if l == nil || l.last {
		return false
	}
	n := 0
	for n < some && len(l.entries) > 1 && l.next-uint64(len(l.entries)) <= upTo {
		st.trim(s, l)
		n++
	}
	return n > 0
}

// rankSession updates the ranks of a session and its tenant. s.mu and st.fin are
// held.
func (st *Store) rankSession(s *session) {
	t := s.tenant
	if s.kept = s.bytes; s.finished.oldest != nil {
		t.ranked.fix(s)
	} else {
		t.ranked.remove(s)
	}
	if t.kept = t.bytes.Load(); t.ranked.top() != nil {
		st.ranked.fix(t)
	} else {
		st.ranked.remove(t)
	}
}

// unrank removes a session from the ranking of its tenant, which it is about to leave.
// Both locks are held.
func (st *Store) unrank(s *session) {
	t := s.tenant
	if t.ranked.remove(s); t.ranked.top() == nil {
		st.ranked.remove(t)
	}
}
