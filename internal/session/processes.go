package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/backend"
)

// What follows bounds how many conversations with the backend are open at a time,
// where each costs a process. See docs/decisions/0018-bounds-and-tenants.md.

// places are those conversations. They are guarded by Manager.mu.
type places struct {
	taken   int                // open, being opened, or being closed
	leaving int                // of them, being closed
	freed   chan struct{}      // closed when one is free; nil if nobody waits
	links   map[*link]struct{} // that are open
	// promised are the sessions in which a call was admitted that is still to open a
	// conversation, and since when.
	promised map[*Session]time.Time
}

// placeWait is how long a new session waits for a conversation that is being closed:
// a process may take its time to end. placeAgainWait is how long a call waits that is made
// again after a take-over, of which there may be many at a time; nobody holds a connection
// for that. Any other call in flight waits as long as its backend may take to open.
const (
	placeWait      = 5 * time.Second
	placeAgainWait = 5 * time.Minute
)

// placeAgain is how often who waits looks again whether a session is unused by now.
const placeAgain = 500 * time.Millisecond

// A placed conversation has one of the places, until it is closed.
type placed struct {
	backend.Conn
	l *link
}

// Close implements [backend.Conn].
func (p *placed) Close() error {
	defer p.l.s.m.freePlace(p.l.s.tenant, true)
	return p.Conn.Close()
}

// needsPlace reports whether a conversation of the session costs a process, of which there is
// a bound.
func (s *Session) needsPlace() bool {
	return s.m.opts.MaxProcesses > 0 && (s.m.many == nil || s.m.many.StartsProcess(s.Server()))
}

// takePlace takes a place for a conversation of the session, if it needs one: took says so. It
// waits for one, if it is not patient only as long as one is about to be free. The error
// wraps [ErrBusy], or says that the session is closed.
func (m *Manager) takePlace(ctx context.Context, s *Session, wait time.Duration, patient bool) (took bool, err error) {
	if !s.needsPlace() {
		return false, nil
	}
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	for {
		m.mu.Lock()
		delete(m.places.promised, s)
		full, coming := m.noPlace(s)
		if full == nil {
			m.places.taken++
			s.tenant.processes++
			m.mu.Unlock()
			return true, nil
		}
		if m.places.freed == nil {
			m.places.freed = make(chan struct{})
		}
		freed := m.places.freed
		m.mu.Unlock()
		if !coming && !m.evict(s) && !patient {
			return false, full
		}
		again := time.NewTimer(placeAgain)
		select {
		case <-freed:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			return false, full
		}
		if s.isClosed() {
			return false, s.goneError()
		}
	}
}

// TakePlace takes a place for another process of the conversation, for a call that must be alone in one (package
// translate). It does not wait.
func (l *link) TakePlace() (free func(), ok bool) {
	took, err := l.s.m.takePlace(context.Background(), l.s, 0, false)
	switch {
	case err != nil:
		return nil, false
	case !took:
		return func() {}, true
	}
	return func() { l.s.m.freePlace(l.s.tenant, false) }, true
}

// noPlace reports whether there is no place for a conversation of the session, and then
// whether one is about to be free. A session that was taken over counts for nobody's
// share: it had its place at another node. m.mu is held.
func (m *Manager) noPlace(s *Session) (full error, coming bool) {
	t, most, share := s.tenant, m.opts.MaxProcesses, m.shareOf(m.opts.MaxProcesses)
	switch {
	case m.places.taken >= most:
		return errFull(most), m.places.leaving > 0
	case t.name != "" && !s.taken && t.processes >= share:
		return errShare(share), t.leaving > 0
	}
	return nil, false
}

// checkPlace reports whether a conversation could be opened for the session now or soon: the
// error wraps [ErrBusy] if not.
func (m *Manager) checkPlace(s *Session) error {
	if !s.needsPlace() {
		return nil
	}
	var full error
	s.mu.Lock()
	if s.backend.link == nil && s.backend.opening == nil {
		m.mu.Lock()
		full = m.promisePlace(s)
		m.mu.Unlock()
	}
	s.mu.Unlock()
	if full == nil || !m.evict(s) {
		return full
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.places.promised[s] = time.Now()
	return nil
}

// promisePlace promises the session a place that is free, or about to be. Without it many
// calls that come at a time, as after a take-over, would all be admitted for one place.
// m.mu is held.
func (m *Manager) promisePlace(s *Session) (full error) {
	p := &m.places
	if p.promised == nil {
		p.promised = make(map[*Session]time.Time)
	}
	own := 0 // promised to the tenant's other sessions
	for other, since := range p.promised {
		switch {
		case time.Since(since) > placePatience, other.isClosed():
			delete(p.promised, other) // its call was not delivered
		case other != s && other.tenant == s.tenant && !other.taken:
			own++
		}
	}
	full, coming := m.noPlace(s)
	if share := m.shareOf(m.opts.MaxProcesses); full == nil && own > 0 && s.tenant.name != "" && !s.taken && s.tenant.processes+own >= share {
		full = errShare(share)
	}
	if _, has := p.promised[s]; !has && (full == nil || coming) && p.taken-p.leaving+len(p.promised) >= m.opts.MaxProcesses {
		full, coming = errFull(m.opts.MaxProcesses), false
	}
	if full != nil && !coming {
		return full
	}
	p.promised[s] = time.Now()
	return nil
}

// breakPromise frees what was promised to a session in which nothing is to be delivered: its
// call was refused, or cancelled before that.
func (m *Manager) breakPromise(s *Session) {
	if m.opts.MaxProcesses <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.places.promised, s)
}

func errShare(share int) error {
	return fmt.Errorf("%w: %d server processes run for this client (--max-share or MaxShare, of --max-processes)", ErrBusy, share)
}

func errFull(most int) error {
	return fmt.Errorf("%w: %d server processes run on this node (--max-processes or MaxProcesses)", ErrBusy, most)
}

// freePlace frees a place. closed says that its conversation was closed, else it was not
// opened.
func (m *Manager) freePlace(t *tenant, closed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.places.taken--
	t.processes--
	if closed {
		m.places.leaving--
		t.leaving--
	}
	m.settle(t)
	if m.places.freed != nil {
		close(m.places.freed)
		m.places.freed = nil
	}
}

// placeLeaves notes that a conversation is about to be closed, if it has a place.
func (m *Manager) placeLeaves(conn backend.Conn) {
	p, ok := conn.(*placed)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.places.links, p.l)
	m.places.leaving++
	p.l.s.tenant.leaving++
}

// evict closes the conversation of the session that needs it least, for one of s: of
// those that nobody uses, and of idle carriers, the one that was used last the longest ago, if s's tenant has
// too many one of its own. It is false if there is none.
func (m *Manager) evict(s *Session) bool {
	m.mu.RLock()
	own := s.tenant.name != "" && s.tenant.processes >= m.shareOf(m.opts.MaxProcesses) && !s.taken
	all := make([]*Session, 0, len(m.places.links))
	for l := range m.places.links {
		if !own || l.s.tenant == s.tenant {
			all = append(all, l.s)
		}
	}
	m.mu.RUnlock()
	slices.SortFunc(all, byLastSeen)
	for _, x := range all { // each once: it may be used by now
		if x != s && x.isUnused() && x.closeUnused() {
			return true
		}
	}
	return false
}

// isUnused reports whether nothing was done in the session since its initialize, but calls that
// were made again after a take-over, nor is, and no client is connected: then its backend
// is in the state in which another would be that is opened for it when it is needed. Of a
// carrier, whose requests stand alone, it says whether none is in flight.
func (s *Session) isUnused() bool {
	if !s.use.isIdle() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isUnusedLocked()
}

// isUnusedLocked is unused for who holds s.mu, beside what is counted without it.
func (s *Session) isUnusedLocked() bool {
	if s.modern == "" && (s.backend.stateful || s.backend.initialize == nil || s.revision == "") {
		return false
	}
	return !s.isClosed() && s.requests.len() == 0 && s.asked.len() == 0 && s.backend.opening == nil && s.tools.learning == nil && s.use.isIdle()
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
	m.mu.RLock()
	own := m.overShare(t)
	m.mu.RUnlock()
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
	m.each(found, parallel, func(s *Session) { m.end(s, errUnused) })
	if len(found) > 0 {
		looked.Store(last)
	}
	return len(found) > 0
}

// byLastSeen orders sessions by when their clients last sent something.
func byLastSeen(x, y *Session) int { return cmp.Compare(x.use.lastSeen.Load(), y.use.lastSeen.Load()) }

var errUnused = errors.New("it was unused, and there are too many")
