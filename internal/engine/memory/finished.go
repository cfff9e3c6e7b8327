package memory

import (
	"time"

	"holdfast/stream"
)

// This file keeps ended streams until their time is over or their room is needed.

// finish ends a stream that has its last entry. Its session is locked.
func (st *Store) finish(l *log, at time.Time) {
	l.last, l.at = true, at
	if len(l.watchers) == 0 {
		st.release(l)
	}
}

// release queues an ended stream: it may be dropped. Its session is locked.
func (st *Store) release(l *log) {
	l.queued = true
	l.s.finished.push(l, inSession)
	st.fin.Lock()
	st.finished.push(l, inStore)
	st.rankSession(l.s)
	st.fin.Unlock()
	l.s.tenant.spare.Add(l.bytes)
	st.spare.Add(l.bytes)
}

// hold removes a stream from those that may be dropped, as it is watched or about to
// be dropped. Its session is locked.
func (st *Store) hold(l *log) {
	l.s.tenant.spare.Add(-l.bytes)
	st.spare.Add(-l.bytes)
	l.s.finished.remove(l, inSession)
	st.fin.Lock()
	if l.spent {
		st.spent.remove(l, inStore)
	} else {
		st.finished.remove(l, inStore)
	}
	st.rankSession(l.s)
	st.fin.Unlock()
	l.queued, l.spent = false, false
}

// Acknowledge implements [stream.Store].
func (st *Store) Acknowledge(id stream.ID) {
	s := st.find(id.Session)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[id.Number]
	if l == nil || !l.queued || l.spent {
		return
	}
	s.finished.remove(l, inSession)
	s.finished.precede(l, inSession)
	st.fin.Lock()
	defer st.fin.Unlock()
	st.finished.remove(l, inStore)
	l.spent, l.at = true, time.Now()
	st.spent.push(l, inStore)
}

// drop drops a stream that is queued. Its session is locked.
func (st *Store) drop(l *log) {
	st.hold(l)
	st.lighten(l.s, l, l.bytes)
	delete(l.s.logs, l.number)
	l.tell()
}

// dropOldest drops an acknowledged stream of a session, else the oldest ended one, if
// any.
func (st *Store) dropOldest(s *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished.oldest != nil {
		st.drop(s.finished.oldest)
	}
}

// forget drops a finished stream, unless it was dropped or is watched by now.
func (st *Store) forget(l *log) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.queued {
		st.drop(l)
	}
}

// expire drops finished streams when their time has come.
func (st *Store) expire() {
	defer close(st.done)
	tick := min(st.opts.Keep/8, st.opts.Acknowledged/4)
	t := time.NewTicker(max(tick, 10*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-st.quit:
			return
		case now := <-t.C:
			for l := st.expired(now); l != nil; l = st.expired(now) {
				st.forget(l)
			}
		}
	}
}

// expired returns a stream that has been kept for its time, or nil.
func (st *Store) expired(now time.Time) *log {
	st.fin.Lock()
	defer st.fin.Unlock()
	if l := st.spent.oldest; l != nil && now.Sub(l.at) >= st.opts.Acknowledged {
		return l
	}
	if l := st.finished.oldest; l != nil && now.Sub(l.at) >= st.opts.Keep {
		return l
	}
	return nil
}
