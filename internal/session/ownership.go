package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/internal/handover"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/stream"
)

// This file is for a session that may lose its lease: another node takes it over, or the store can't be
// reached. The stored session belongs to the next owner.

// losesSession reports whether the error of an append says that the session's lease is lost, or may be, so
// that nothing can be appended any more.
func losesSession(err error) bool {
	return errors.Is(err, stream.ErrFenced) || errors.Is(err, stream.ErrNotFound) || unavailable(err)
}

// unavailable reports whether a store did not answer in time.
func unavailable(err error) bool {
	return errors.Is(err, stream.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// Lost gives up the session because entries could not be appended. If the store is unavailable,
// no node is known to have taken the session: its readers get the ends of its calls from memory.
func (o logOwner) Lost(unstored []entry, err error) {
	s := o.s
	if err == nil {
		observeLeft(unstored)
		return
	}
	s.went(err)
	if !unavailable(err) {
		s.m.leaveNode(s, 0)
		observeLeft(unstored)
		return
	}
	var ids [][]byte
	if s.single {
		ids = o.unanswered(s.standalone)
		for rq := range s.requests.each {
			ids = append(ids, []byte(rq.id))
		}
		s.standalone.track.EndUnstored(s.lease.Epoch, endings(ids, err))
		s.m.opts.Outage.Ended(len(ids), 0)
	}
	for number, by := range s.streams.Calls() {
		c := written(by)
		ids := o.unanswered(c)
		s.m.opts.Outage.Ended(len(ids), 0)
		end := endings(ids, err)
		end[len(end)-1].Last = true
		c.track.EndUnstored(s.lease.Epoch, end)
		c.watch.Resettle(number, ids, observe.Unknown, protocol.CodeOutcomeUnknown)
		c.watch.End(number, observe.Unknown, protocol.CodeOutcomeUnknown)
		s.streams.Wake(number)
	}
	s.streams.Wake(standalone)
	s.m.leaveNode(s, lingerFor)
}

// A tenure is the time for which this node owns a session.
type tenure struct {
	shared  shared.Store // nil: no other node takes the session over
	lease   stream.Lease // zero while the session is being made
	renewed atomic.Int64 // when the store was last told that the session is used, by the manager's clock; 0: never
}

// renewDue reports whether the store should be told again that the session is in use.
func (t *tenure) renewDue(now, ttl time.Duration) bool {
	last := t.renewed.Load()
	return t.shared != nil && last != 0 && now-time.Duration(last) >= ttl/3
}

// renew tells the store that the session is in use. The error says that the session is another node's, or is gone.
func (t *tenure) renew(ctx context.Context, now time.Duration) error {
	last := t.renewed.Swap(int64(now))
	err := t.confirm(ctx)
	if err != nil && unavailable(err) {
		t.renewed.CompareAndSwap(int64(now), last) // the next time, then
		return nil
	}
	return err
}

// confirm asks the store whether the session is still this node's, and starts its
// idle time anew.
func (t *tenure) confirm(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, storeTimeout)
	defer stop()
	return t.shared.Touch(ctx, t.lease)
}

// storeTimeout bounds how long the store is asked for something that no client waits for.
const storeTimeout = 5 * time.Second

// leased returns the session's lease, which is zero while it is being made.
func (s *Session) leased() stream.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

// VerifySession looks whether another node has taken a session, as that node says, and forgets it if so: its
// readers leave without having seen an end, and its clients come back to the new owner. The other node's word
// may be old: the session may be here again. VerifySession does not wait.
func (m *Manager) VerifySession(key stream.SessionKey) {
	if s := m.find(key); s != nil {
		m.InBackground(func(ctx context.Context) { _ = s.checkOwner(ctx) }) // else it is found out with the next append
	}
}

// Verify asks the store which nodes own the sessions that are in use here, and forgets
// those that another node has taken: for after a pause of this process, or of the store.
func (m *Manager) Verify(ctx context.Context) {
	used := slices.DeleteFunc(m.all(), func(s *Session) bool { return s.use.readers.Load() == 0 && !s.Busy() })
	handover.Each(used, handover.Parallel, func(s *Session) { _ = s.checkOwner(ctx) }) // else it is found out with the next append
}

// checkOwner asks the store which node owns the session, and forgets the session if another does: the error
// is [ErrMoved] then, else the store's. It is called before a client is told that an id or a token of the
// session is not known: a newer owner, of which this node has not heard, may have given it to the client.
func (s *Session) checkOwner(ctx context.Context) error {
	if s.shared == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, storeTimeout)
	defer stop()
	lease := s.leased() // before: it may be new
	at, err := s.shared.Lookup(ctx, s.key)
	if err != nil && !errors.Is(err, stream.ErrNotFound) {
		return fmt.Errorf("session not looked up: %w", err)
	}
	if lease.Epoch != 0 && (err != nil || at.Owner != s.shared.Node() || at.Epoch != lease.Epoch) {
		s.went(err)
		s.m.leaveNode(s, 0)
	}
	if s.Moved() {
		return ErrMoved
	}
	return nil
}

// leaveNode makes a session leave this node. Its readers may read the entries that
// it has for as long as linger. No lock is held, but the caller may be appending.
func (m *Manager) leaveNode(s *Session, linger time.Duration) {
	had, ok := closeIf(s, sessionMoved, nil)
	if !ok {
		return
	}
	m.unlist(s)
	m.Finder.Shed()
	m.dropRequests(s, had.inFlight)
	if had.conn != nil {
		m.closeBackend(had.conn)
	}
	if had.from != sessionOpen {
		return // it is kept for readers of its end: see forget and release
	}
	leave := func() {
		m.shared.Forget(s.lease)
		s.streams.Dismiss()
	}
	if linger == 0 || s.use.readers.Load() == 0 || !m.work.Go(func() {
		m.work.WaitFor(linger, func() bool { return s.use.readers.Load() == 0 })
		leave()
	}) {
		leave()
	}
}

// dropRequests ends requests that were taken off the record of a session that leaves: see [Call.dropRequest].
func (m *Manager) dropRequests(s *Session, left []*inflight) {
	for _, rq := range left {
		rq.call.dropRequest(rq)
	}
	m.dismiss(s, int32(len(left)))
}
