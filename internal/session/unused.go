package session

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"holdfast/backend"
	"holdfast/internal/departure"
)

// What follows closes what sessions have that nobody needs now, and ends such sessions where there are too many.

// isUnused reports whether nothing was done in the session since its initialize, but calls that
// were made again after a take-over, nor is, and no client is connected: then its backend
// is in the state in which another would be that is opened for it when it is needed. Of a
// carrier, whose requests stand alone, it says whether none is in flight.
func (s *Session) isUnused() (is bool) {
	locked(s, func() { is = s.isUnusedLocked() })
	return is
}

// isUnusedLocked is unused for who holds s.mu, beside what is counted without it.
func (s *Session) isUnusedLocked() bool {
	if s.modern == "" && (s.backend.stateful || s.backend.initialize == nil || s.revision == "") {
		return false
	}
	return s.isStill() && s.requests.len() == 0 && s.use.isIdle()
}

// closeUnused closes the session's conversation if it is unused. It is opened again when there
// is something to be said in it. It reports whether the session has no conversation now: it
// may have been closed just before.
func (s *Session) closeUnused() bool {
	s.mu.Lock()
	var conn backend.Conn
	none := s.backend.link == nil
	if !none && s.backend.link.conn != nil && s.isUnusedLocked() {
		conn = s.backend.link.finish()
	}
	s.mu.Unlock()
	if conn == nil {
		return none
	}
	s.m.logger.Debug("backend closed: the session does not need it now", "session", s.Name())
	s.m.closeBackend(conn)
	return true
}

// unusedFor is how long a session is left alone in which nothing was done since its
// initialize, and whose client is not connected, when there are too many: nothing is
// lost with it, and its client begins another.
const unusedFor = time.Minute

// mostThinned bounds how many of those are ended at a time, for a new one.
const mostThinned = 16

// endUnused makes room for a session of the tenant where there are too many, in all or of that
// tenant: by ending carriers that nobody uses, those first that were used last the longest ago,
// and sessions that are unused. As it looks at all of them it does so no more than once a second
// where there was none. It reports whether there is room.
func (m *Manager) endUnused(t *tenant) bool {
	own := m.checkShare(t, 0) != nil
	looked := &m.unusedEnded
	if own {
		looked = &t.looked // who has too many keeps nobody else from looking
	}
	now := m.clock()
	last := looked.Load()
	if now-time.Duration(last) < time.Second || !looked.CompareAndSwap(last, int64(now)) {
		return false
	}
	var carriers, unused []*Session
	for _, s := range m.all() {
		switch {
		case own && s.tenant != t, s.taken, !s.isUnused():
		case s.modern != "":
			carriers = append(carriers, s)
		case len(unused) < mostThinned && s.use.sinceSeen(now) > unusedFor:
			unused = append(unused, s)
		}
	}
	slices.SortFunc(carriers, byLastSeen)
	carriers = slices.DeleteFunc(carriers, func(s *Session) bool { return s.use.isHeld(now) })
	var found []*Session
	for _, s := range carriers[:min(mostThinned, len(carriers))] {
		if m.retire(s) {
			found = append(found, s)
		}
	}
	found = append(found, unused[:min(mostThinned-len(found), len(unused))]...)
	departure.Each(found, departure.Parallel, func(s *Session) { m.end(s, errUnused) })
	if len(found) > 0 {
		looked.Store(last)
	}
	return len(found) > 0
}

// byLastSeen orders sessions by when their clients last sent something.
func byLastSeen(x, y *Session) int { return cmp.Compare(x.use.lastSeen.Load(), y.use.lastSeen.Load()) }

var errUnused = errors.New("it was unused, and there are too many")
