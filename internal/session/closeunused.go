package session

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"holdfast/backend"
	"holdfast/internal/handover"
)

// This file closes the conversations of unused sessions, and ends unused sessions if there are too many.

// isUnused reports whether nothing was or is done in the session since its initialize, except calls that were
// made again after a take-over, and no client is connected: a new backend for this session would be in the
// same state. Of a carrier, with requests that stand alone, it reports whether none is in flight.
func (s *Session) isUnused() (is bool) {
	locked(s, func() { is = s.isUnusedLocked() })
	return is
}

// isUnusedLocked is isUnused for callers that hold s.mu. The counts in s.use may change meanwhile.
func (s *Session) isUnusedLocked() bool {
	if s.modern == "" && (s.backend.stateful || s.backend.initialize == nil || s.revision == "") {
		return false
	}
	return s.isStill() && s.requests.len() == 0 && s.use.isIdle()
}

// closeUnused closes the conversation of the session if that is unused. The next message opens another. It
// reports whether the session has no conversation now: it may have been closed just before.
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

// unusedFor is how long an unused session is left alone when there are too many:
// nothing is lost with it, and its client begins another.
const unusedFor = time.Minute

// mostThinned bounds how many unused sessions are ended at a time, for a new one.
const mostThinned = 16

// endUnused makes room for a session of the tenant if there are too many, in all or of that tenant. It ends
// unused carriers, the least recently used first, and unused sessions. As it looks at all sessions, it does
// so at most once a second after it has found none. It reports whether there is room.
func (m *Manager) endUnused(t *tenant) bool {
	own := m.checkShare(t, 0) != nil
	looked := &m.unusedEnded
	if own {
		looked = &t.looked // a tenant with too many does not keep others from looking
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
	handover.Each(found, handover.Parallel, func(s *Session) { m.end(s, errUnused) })
	if len(found) > 0 {
		looked.Store(last)
	}
	return len(found) > 0
}

// byLastSeen orders sessions by when their clients last sent something.
func byLastSeen(x, y *Session) int { return cmp.Compare(x.use.lastSeen.Load(), y.use.lastSeen.Load()) }

var errUnused = errors.New("it was unused, and there are too many")
