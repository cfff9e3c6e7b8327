package session

import (
	"context"
	"errors"
	"maps"
	"time"

	"holdfast/jsonrpc"
	"holdfast/stream"
)

const (
	// handOften is how often it is looked for sessions in which nothing is in flight.
	handOften = 50 * time.Millisecond

	// farewell is how long readers are given to read what was said to the end, in a
	// session that is cut.
	farewell = 2 * time.Second
)

// HandOver gives up all sessions for other nodes to take over, each as soon as
// nothing is in flight in it. When ctx is done it cuts what is left: calls that
// may be made again are left to the next owner, others end with their outcome
// unknown. It returns when no session is left; the error is ctx's if it had to cut.
// It does nothing where the store is not shared. From now on no session is taken
// over any more.
func (m *Manager) HandOver(ctx context.Context) error {
	if m.shared == nil {
		return nil
	}
	m.mu.Lock()
	m.handing = true
	m.mu.Unlock()
	m.taken(ctx)
	tick := time.NewTicker(handOften)
	defer tick.Stop()
	for {
		all := m.all()
		if len(all) == 0 {
			return nil
		}
		var quiet []*Session
		for _, s := range all {
			if s.ongoing.Load() == 0 && !s.streams.behind() {
				quiet = append(quiet, s)
			}
		}
		m.each(quiet, atOnce, m.yield)
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.each(m.all(), departed, m.cut)
			return ctx.Err()
		}
	}
}

// behind says whether readers have yet to tell their clients what there is.
func (t *table) behind() bool {
	t.mu.Lock()
	calls := make([]*Call, 0, len(t.readers))
	for _, r := range t.readers {
		calls = append(calls, r.call)
	}
	t.mu.Unlock()
	for _, c := range calls {
		if c == nil {
			return true // until it has read the end
		}
		c.mu.Lock()
		behind := c.told < c.said
		c.mu.Unlock()
		if behind {
			return true
		}
	}
	return false
}

// stepDown gives up a session at the beginning of a request in it, if this node gives
// up its sessions and nothing else is in flight in this one; it reports whether it
// has. Clients that make one call right after the other leave no other gap.
func (m *Manager) stepDown(s *Session) bool {
	m.mu.RLock()
	handing := m.handing
	m.mu.RUnlock()
	s.mu.Lock()
	begun := s.initialize != nil
	s.mu.Unlock()
	if !handing || !begun || s.ongoing.Load() > 0 {
		return false
	}
	m.outlast(handOften, func() bool { return !s.streams.behind() }) // a client may be faster than we
	m.yield(s)
	return s.Moved()
}

// yield gives up a session if nothing is in flight in it.
func (m *Manager) yield(s *Session) {
	s.mu.Lock()
	if s.closed || len(s.open) > 0 || s.ongoing.Load() > 0 || s.lease.Epoch == 0 {
		s.mu.Unlock()
		return
	}
	s.closed, s.moves = true, true
	conn := s.link.finish()
	s.asked = nil
	s.mu.Unlock()
	m.part(s, conn, false)
}

// cut gives up a session, whatever is in flight in it.
func (m *Manager) cut(s *Session) {
	s.mu.Lock()
	if s.closed || s.lease.Epoch == 0 {
		s.mu.Unlock()
		return
	}
	s.closed, s.moves = true, true
	all := s.takeOpen(true)
	conn := s.link.finish()
	s.asked = nil
	s.mu.Unlock()
	var again, lost []*inflight
	open := false
	for _, rq := range all {
		if stored, safe := rq.call.stored(), rq.call.kept != nil && rq.call.kept.safe; safe && (stored || !s.single) {
			again = append(again, rq)
			open = open || stored
		} else {
			lost = append(lost, rq)
		}
	}
	s.log.hold()
	s.failAll(lost, jsonrpc.Errorf(jsonrpc.CodeServer, "outcome unknown: the session ended: %v", ErrClosing))
	s.log.let()
	m.drop(s, again)
	m.outlast(farewell, func() bool { return s.ongoing.Load() == 0 && !s.streams.behind() })
	m.part(s, conn, open)
}

// stored says whether the next owner of the session will know of the call.
func (c *Call) stored() bool {
	return c.kept != nil && (c.Number() != 0 || c.kept.journal != 0)
}

// part releases a session that was closed. open says that calls in it have not
// ended.
func (m *Manager) part(s *Session, conn Conn, open bool) {
	if conn != nil {
		defer m.release(conn)
	}
	s.ring()
	s.noteStored(false)
	m.outlast(patience, s.log.rests) // what the backend has said is not given up before it is stored
	open = open || !s.log.rests()
	m.mu.Lock()
	m.unlist(s)
	m.mu.Unlock()
	lost := s.moved.Swap(true) // meanwhile
	s.streams.dismissAll()
	if lost {
		m.shared.Forget(s.lease)
		return
	}
	ctx, stop := context.WithTimeout(m.ctx, asks)
	defer stop()
	err := m.shared.Release(ctx, s.lease, open)
	if err == nil {
		return
	}
	if !errors.Is(err, stream.ErrFenced) {
		m.logger.Warn("session not released", "session", s.Name(), "error", err)
	}
	m.shared.Forget(s.lease)
}

// ring tells the webhooks of calls that have ended and that nobody reads.
func (s *Session) ring() {
	t := &s.streams
	t.mu.Lock()
	all := maps.Clone(t.hooked)
	if h := s.aside.hooks(); h != nil {
		if all == nil {
			all = make(map[uint64]*hooks)
		}
		all[standalone] = h
	}
	for _, h := range all {
		h.held = false
	}
	t.mu.Unlock()
	for number, h := range all {
		s.dispatch(number, h)
	}
}

// rests says whether nothing is being appended.
func (a *appender) rests() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.busy && len(a.waiting) == 0
}
