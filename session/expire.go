package session

import (
	"context"
	"errors"
	"time"

	"holdfast/jsonrpc"
	"holdfast/stream"
)

// End ends a session at its client's wish. One whose calls are over, but somebody
// else who follows one of them has yet to read how it ended, has a little time left;
// End does not wait for that.
func (m *Manager) End(s *Session) {
	why := errors.New("the client ended the session")
	if !s.Resumable() || !s.streams.hasFollowers() {
		m.end(s, why)
		return
	}
	if s.ending.Swap(true) {
		return // it was asked for before
	}
	if !m.enter() {
		m.end(s, why)
		return
	}
	go func() {
		defer m.work.Done()
		over := func() bool { return s.isClosed() || s.moved.Load() }
		m.outlast(time.Second, func() bool { return over() || !s.Busy() }) // what was just answered
		if !s.Busy() {
			m.outlast(followFor, func() bool { return over() || s.Busy() || !s.streams.hasFollowers() })
		}
		if !s.moved.Load() {
			m.end(s, why)
		}
	}()
}

// linger is how long the streams of an ended session are kept for readers that
// have not read how their calls ended.
const linger = 5 * time.Second

// end ends a session: what is in flight fails with why, and the backend is
// closed.
func (m *Manager) end(s *Session, why error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	lost := s.takeOpen(true)
	conn := s.link.finish()
	s.asked = nil
	s.mu.Unlock()
	m.mu.Lock()
	m.unlist(s)
	if m.shared != nil {
		if m.ending == nil {
			m.ending = make(map[stream.SessionKey]struct{})
		}
		m.ending[s.key] = struct{}{}
	}
	m.mu.Unlock()

	s.failAll(lost, jsonrpc.Errorf(jsonrpc.CodeServer, "outcome unknown: the session ended: %v", why))
	s.streams.closeStandalone()
	if conn != nil {
		defer m.release(conn)
	}
	if s.reading.Load() == 0 || !m.enter() {
		m.forget(s)
		return
	}
	go func() {
		defer m.work.Done()
		m.outlast(linger, func() bool { return s.reading.Load() == 0 })
		m.forget(s)
	}()
}

// forget deletes a session that has ended, unless another node has taken it before.
func (m *Manager) forget(s *Session) {
	defer func() {
		m.mu.Lock()
		delete(m.ending, s.key)
		m.mu.Unlock()
	}()
	if lease := s.leased(); m.shared != nil && lease.Epoch != 0 {
		err := m.touch(s)
		if err != nil && !errors.Is(err, stream.ErrNotFound) || s.moved.Load() {
			m.logger.Warn("session not deleted: it may be another's", "session", s.Name(), "error", err)
			s.moved.Store(true)
			m.shared.Forget(lease)
			s.streams.dismissAll()
			return
		}
	}
	most := patience
	if m.shared != nil && s.leased().Epoch == 0 {
		most = asks // nobody knows it
	}
	ctx, stop := context.WithTimeout(m.ctx, most)
	defer stop()
	s.dropped.Store(true)
	if err := m.store.Delete(ctx, s.key); err != nil {
		m.logger.Warn("session not deleted", "session", s.Name(), "error", err)
	}
}

// closeStandalone ends the connection of the standalone stream's reader.
func (t *table) closeStandalone() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.readers[standalone]; r != nil {
		delete(t.readers, standalone)
		r.end()
	}
}

func (s *Session) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// expire ends sessions that have been idle for too long.
func (m *Manager) expire() {
	defer m.work.Done()
	t := time.NewTicker(min(max(m.opts.TTL/8, 10*time.Millisecond), time.Minute))
	defer t.Stop()
	for {
		select {
		case <-m.quit:
			return
		case at := <-t.C:
			m.sweepKeysAt(at)
			now := m.clock()
			var due []*Session
			for _, s := range m.all() {
				s.tidy(at)
				if s.idle(now, m.opts.TTL) || m.shared != nil && s.due(now) {
					due = append(due, s)
				}
			}
			m.each(due, atOnce, func(s *Session) {
				switch { // looked at again: it may have waited for others
				case s.idle(now, m.opts.TTL):
					m.logger.Debug("session expired", "session", s.Name())
					m.end(s, errors.New("it was idle for too long"))
				case m.shared != nil && s.due(now):
					m.renew(s, now)
				}
			})
		}
	}
}
