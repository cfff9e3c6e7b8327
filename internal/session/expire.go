package session

import (
	"context"
	"errors"
	"time"

	"holdfast/internal/handover"
	"holdfast/internal/reading"
	"holdfast/internal/tools"
	"holdfast/stream"
)

// errClientEnded and errOperatorEnded are reasons for the end of a session.
var (
	errClientEnded   = errors.New("the client ended the session")
	errOperatorEnded = errors.New("an operator ended the session")
)

// End ends a session at its client's wish. If another client follows a call of the session, and may not have
// read the call's end, the streams are kept a little longer: End does not wait for that.
func (m *Manager) End(s *Session) { m.endFor(s, errClientEnded) }

// EndByOperator is End at the wish of an operator: the errors of its calls say so.
func (m *Manager) EndByOperator(s *Session) { m.endFor(s, errOperatorEnded) }

func (m *Manager) endFor(s *Session, why error) {
	m.bury(s)
	if s.modern == "" && s.Watched.HasHeirs() {
		m.leave(s, why)
		return
	}
	to := sessionEnded
	if s.Resumes() != nil && s.streams.HasFollowers() {
		to = sessionLingering
	}
	m.endAs(s, to, why)
}

// Abandon ends a session that its client has left, if the client has begun nothing in it: it has sent no
// initialize, or one that failed, and reads the session on no other connection.
func (m *Manager) Abandon(s *Session) {
	if s.Initializing() == nil && s.Revision() == "" && s.use.readers.Load() == 0 {
		m.End(s)
	}
}

// lingerFor is how long the streams of an ended session are kept for readers that have not read the ends of their calls.
const lingerFor = 5 * time.Second

// end ends a session: its requests in flight fail with why, and the backend is closed.
func (m *Manager) end(s *Session, why error) { m.endAs(s, sessionEnded, why) }

// endAs is end with the state that the session gets: it may linger.
func (m *Manager) endAs(s *Session, to sessionState, why error) {
	had, ok := closeIf(s, to, nil)
	if !ok {
		return
	}
	lingers := to == sessionLingering
	if m.shared != nil {
		m.roster.end(s, lingers)
	} else if !lingers {
		m.unlist(s)
	}

	failAll(had.inFlight, outcomeUnknown("the session ended: %v", why))
	s.streams.CloseStandalone()
	if had.conn != nil {
		defer m.closeBackend(had.conn)
	}
	if s.use.readers.Load() == 0 && !lingers || !m.work.Go(func() {
		if lingers {
			m.work.WaitFor(reading.FollowFor, func() bool { return m.work.Reached(handover.HandingOver) || !s.streams.HasFollowers() })
			m.stopLingering(s)
		}
		m.work.WaitFor(lingerFor, func() bool { return s.use.readers.Load() == 0 })
		m.forget(s)
	}) {
		m.stopLingering(s)
		m.forget(s)
	}
}

// stopLingering ends the time in which an ended session can be found by its resume tokens.
func (m *Manager) stopLingering(s *Session) {
	if s.step(sessionEnded) {
		m.unlist(s)
	}
}

// forget deletes a session that has ended, unless another node has taken it before.
func (m *Manager) forget(s *Session) {
	defer m.forgotten(s.key)
	if lease := s.leased(); m.shared != nil && lease.Epoch != 0 {
		err := s.confirm(m.work.Context())
		if err != nil && !errors.Is(err, stream.ErrNotFound) || s.Moved() {
			m.logger.Warn("session not deleted: it may be another's", "session", s.Name(), "error", err)
			s.step(sessionMoved)
			m.shared.Forget(lease)
			s.streams.Dismiss()
			return
		}
	}
	most := appendTimeout
	if m.shared != nil && s.leased().Epoch == 0 {
		most = storeTimeout // it is not in the store
	}
	m.work.WaitFor(storeTimeout, func() bool { return s.untold.HasTold() && s.log.IsIdle() }) // observers are told when the ends of calls are stored
	ctx, stop := context.WithTimeout(m.work.Context(), most)
	defer stop()
	s.step(sessionDeleted)
	if err := m.store.Delete(ctx, s.key); err != nil {
		m.logger.Warn("session not deleted", "session", s.Name(), "error", err)
	}
	if m.shared != nil && (s.keyed.Load() || s.taken) && !s.beginner().Scoped {
		m.keys.End(s.key, s.tenant.name)
	}
}

// expire ends sessions that have been idle for too long.
func (m *Manager) expire() {
	every := min(max(m.opts.TTL/8, 10*time.Millisecond), time.Minute)
	if m.opts.SleepAfter > 0 {
		every = min(every, max(m.opts.SleepAfter/8, 10*time.Millisecond))
	}
	if m.opts.Unused > 0 {
		every = min(every, max(m.opts.Unused/2, 10*time.Millisecond))
	}
	if m.many != nil {
		every = min(every, tendEvery)
	}
	t := time.NewTicker(every)
	defer t.Stop()
	common := make(tools.Common)
	expires := func(s *Session, now time.Duration) bool {
		return s.use.expires(now, m.opts.TTL, s.single && s.Initializing() != nil)
	}
	for next := m.clock() + every; ; next = m.clock() + every {
		select {
		case <-m.work.Quit():
			return
		case at := <-t.C:
			now := m.clock()
			m.noteStandstill(now, next, m.opts.TTL)
			m.keys.Tend(at)
			m.tendKeys(now)
			var due, sleepy, quiet []*Session
			for _, s := range m.all() {
				s.Resumes().Sweep(at)
				s.Watched.Sweep(at)
				if m.opts.Unused > 0 && s.modern == "" && s.use.sinceSeen(now) > m.opts.Unused && s.isUnused() {
					s.closeUnused()
				}
				if m.many != nil {
					m.tend(s, now, false)
				}
				if s.use.sinceSeen(now) > slimAfter {
					s.slim(common)
					if m.mayRest(s) {
						quiet = append(quiet, s)
					}
				}
				if m.canSleep(s, now) {
					sleepy = append(sleepy, s)
				}
				if expires(s, now) || s.renewDue(now, m.opts.TTL) {
					due = append(due, s)
				}
			}
			m.fallAsleep(sleepy)
			m.rest(quiet)
			handover.Each(due, handover.Parallel, func(s *Session) {
				switch { // looked at again: the session may have waited for others
				case expires(s, now) && m.retire(s):
					m.logger.Debug("session expired", "session", s.Name())
					s.use.expired.Store(true)
					m.end(s, errors.New("it was idle for too long"))
				case s.renewDue(now, m.opts.TTL):
					if err := s.renew(m.work.Context(), now); err != nil {
						s.went(err)
						m.leaveNode(s, 0)
					}
				}
			})
		}
	}
}
