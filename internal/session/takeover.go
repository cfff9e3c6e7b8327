package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/internal/handover"
	"holdfast/internal/observe"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file takes over sessions of other nodes: see docs/decisions/0014-take-over.md.

// awaitTakeOvers waits for all sessions that are being taken over.
func (m *Manager) awaitTakeOvers(ctx context.Context) {
	for _, t := range m.takings() {
		select {
		case <-t.done:
		case <-ctx.Done():
			return
		}
	}
}

// taking is a session that is being taken over.
type taking struct {
	done chan struct{} // closed at the end of the take-over
	s    *Session
	err  error
}

// wait waits for the end of the take-over, and returns its session or its error.
func (t *taking) wait(ctx context.Context) (*Session, error) {
	select {
	case <-t.done:
		return t.s, t.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TakeOver opens here a session that has lost its owner, or has none. Its calls that have
// not ended are made again if that does no harm; others end, with their outcome unknown.
// Concurrent callers for one session get the same one. The error is [stream.ErrConflict]
// if another node was faster, and the session has to be located again; [ErrNotFound],
// [ErrClosing], [ErrBusy], or that of the store. Backends get ctx's values.
func (m *Manager) TakeOver(ctx context.Context, at *Remote) (*Session, error) {
	defer m.Finder.Want()()
	return m.takeOverOnce(ctx, at)
}

// takeOverOnce is TakeOver, also for sessions that no client waits for.
func (m *Manager) takeOverOnce(ctx context.Context, at *Remote) (*Session, error) {
	if m.shared == nil && at.begins == nil {
		return nil, ErrNotFound
	}
	t, begun, old, err := m.take(at.Key, at.begins != nil, func(err error) error { return m.work.StartBefore(handover.HandingOver, err) })
	switch {
	case err != nil:
		return nil, err
	case t == nil && old.isClosed():
		return nil, stream.ErrConflict // it is ending
	case t == nil:
		return old, nil // it has just begun again
	case !begun:
		return t.wait(ctx)
	}
	values := context.WithoutCancel(ctx)
	go func() { // others may wait for it when the caller no longer does
		defer m.work.Done()
		if m.shared == nil {
			t.s, t.err = m.reviveAlone(at)
		} else {
			t.s, t.err = m.takeOver(values, at, old)
		}
		m.took(at.Key)
		close(t.done)
	}()
	return t.wait(ctx)
}

// adopt takes over a session for a sweep.
func (m *Manager) adopt(ctx context.Context, at *whereabouts.Record) {
	_, err := m.takeOverOnce(ctx, &Remote{Record: *at})
	switch {
	case err == nil, errors.Is(err, stream.ErrConflict), errors.Is(err, ErrNotFound), errors.Is(err, ErrClosing):
	default:
		m.logger.Warn("session not swept", "session", at.Key, "error", err)
	}
}

// takers is how many sessions are taken over at a time. More would not be faster, only all as late as the last.
const takers = 32

// takeOver is TakeOver, for one caller at a time. old is the session that is here, or nil.
func (m *Manager) takeOver(values context.Context, at *Remote, old *Session) (*Session, error) {
	was, began := at.Was, time.Now()
	if was.Key == "" {
		was = at.Session
	}
	if old != nil {
		switch {
		case old.isClosed():
			return nil, stream.ErrConflict // it is leaving
		case was.Epoch <= old.leased().Epoch:
			return old, nil // it came just now
		}
		m.leaveNode(old, 0) // it has not noticed that another node took it
	}
	ctx, stop := context.WithTimeout(m.work.Context(), appendTimeout)
	defer stop()
	select {
	case m.takers <- struct{}{}:
		defer func() { <-m.takers }()
	case <-ctx.Done():
		return nil, fmt.Errorf("session not taken over: %w: others are", stream.ErrUnavailable)
	}
	var s *Session
	var found restored
	var err error
	if at.begins != nil {
		s, found, err = m.reviveShared(ctx, at)
	} else {
		s, found, err = m.acquire(ctx, at, was)
	}
	if err != nil {
		return nil, err
	}
	for _, c := range found.cut { // before a client can come back for it
		m.flights.Strand(flightSession{s}, c.number, c.standing.Like())
	}
	m.put(s)
	if s.Resumes() != nil || s.Watched.WereUsed() {
		m.resumer(s)
	}
	m.logger.Debug("session taken over", "session", s.Name(), "from", was.Owner, "again", len(found.retry), "unknown", len(found.lost))
	if at.begins != nil {
		m.revived(s, at.begins.woke)
	} else {
		m.came(was.Owner, &found)
		if s.events.areTold() {
			s.events.happened(observe.TakenOver{
				Session: s.observed(), From: was.Owner, Took: time.Since(began), Again: len(found.retry), Unknown: len(found.lost),
			})
		}
	}
	m.awaitReturn(found)
	s.use.touch()
	s.use.calls.Add(-1)
	if len(found.retry) > 0 {
		m.work.Go(func() { m.retryCalls(values, found.retry) })
	}
	if s.Moved() {
		return nil, fmt.Errorf("session not taken over: %w", stream.ErrUnavailable)
	}
	return s, nil
}

// A lateFencer is a shared store in which the first append of a new owner can fence the older one.
type lateFencer interface {
	// AcquireUnfenced is Acquire, except that the older owner may append before the
	// first append under the lease, which is refused then (ErrFenced).
	AcquireUnfenced(ctx context.Context, was shared.Session) (shared.Taken, error)
	// Fence fences the older owner, if nothing was appended under the lease yet. ErrFenced: the older owner has appended since.
	Fence(ctx context.Context, lease stream.Lease) error
}

// errOvertaken says that an older owner has appended meanwhile.
var errOvertaken = errors.New("its older owner has written again")

// acquire returns a session that was taken over, with its lost calls ended. No other goroutine knows it yet.
// If the owner seems to be gone, the append of these ends fences it, which saves an append. If the owner
// turns out to live, the session is acquired once more, and the owner is fenced first.
func (m *Manager) acquire(ctx context.Context, at *Remote, was shared.Session) (*Session, restored, error) {
	late, ok := m.shared.(lateFencer)
	if !ok || was.Owner == "" || was.Owner == m.shared.Node() {
		return m.acquireFrom(ctx, at, was, nil)
	}
	s, found, err := m.acquireFrom(ctx, at, was, late)
	if !errors.Is(err, errOvertaken) {
		return s, found, err
	}
	is, err := m.shared.Lookup(ctx, was.Key)
	switch {
	case errors.Is(err, stream.ErrNotFound):
		return nil, found, ErrNotFound
	case err != nil:
		return nil, found, fmt.Errorf("session not taken over: %w", err)
	case is.Owner != m.shared.Node() || is.Epoch != was.Epoch+1:
		return nil, found, stream.ErrConflict
	}
	return m.acquireFrom(ctx, at, is, nil)
}

// acquireFrom acquires a session; if late is not nil its older owner is fenced last.
func (m *Manager) acquireFrom(ctx context.Context, at *Remote, was shared.Session, late lateFencer) (*Session, restored, error) {
	acquire := m.shared.Acquire
	if late != nil {
		acquire = late.AcquireUnfenced
	}
	taken, err := acquire(ctx, was)
	switch {
	case errors.Is(err, stream.ErrNotFound):
		return nil, restored{}, ErrNotFound
	case err != nil:
		m.Finder.Shed() // it may be this node's by now
		return nil, restored{}, fmt.Errorf("session not taken over: %w", err)
	}
	return m.restored(ctx, at, taken, late)
}

// restored returns a session that the store has given to this node; if late is not nil its older owner is fenced last.
func (m *Manager) restored(ctx context.Context, at *Remote, taken shared.Taken, late lateFencer) (*Session, restored, error) {
	s := m.session(at.ID, at.Principal, at.Tenant, kind{single: at.SingleStream, modern: at.Modern})
	s.lease, s.taken, s.firstEpoch, s.agent = taken.Lease, true, at.Life, at.Agent
	s.renewed.Store(int64(m.clock()))
	s.use.calls.Store(1) // not idle, until it is done
	m.store.Count(s.lease, s.tenant.name)
	found := s.restore(ctx, taken.Streams)
	if at.Life != 0 && s.backend.initialize == nil {
		m.beginAgain(ctx, s, at)
	}
	s.taken = at.begins == nil // a session that begins again has no calls of another node
	s.held.mustKeep(sessionCost + s.held.subscribedCost())
	s.held.keepsInitialize(len(s.backend.initialize))
	if s.step(sessionOpen) {
		s.events.began()
	}
	s.endLost(found.lost)
	if late == nil {
		return s, found, nil
	}
	err := late.Fence(ctx, s.lease)
	if err == nil && !s.Moved() {
		return s, found, nil
	}
	m.leaveNode(s, 0)
	m.countOut(s.tenant)
	if err == nil || errors.Is(err, stream.ErrFenced) {
		err = errOvertaken
	}
	return nil, restored{}, fmt.Errorf("session not taken over: %w", err)
}

// retryEvery is the time between two sessions that were taken over and get a backend again. If backends are processes,
// many at a time would keep this node from ending the calls of the other sessions, which takes a millisecond.
const retryEvery = 2 * time.Millisecond

// retryCalls makes calls again when it is their session's turn.
func (m *Manager) retryCalls(values context.Context, all []retryCall) {
	m.retrying.Lock()
	now := time.Now()
	at := m.nextRetry
	if at.Before(now) {
		at = now
	}
	m.nextRetry = at.Add(retryEvery)
	m.retrying.Unlock()
	m.work.Pause(at.Sub(now)) // at the end of the node they end at once
	for _, r := range all {
		if !r.unsent {
			r.call.Redeliver(values, r.msgs, http.Header{})
		} else if err := r.call.noteBegun(r.msgs); err == nil {
			r.call.Deliver(values, r.msgs, http.Header{})
		} else {
			r.call.Abort(r.msgs, jsonrpc.Errorf(jsonrpc.CodeServer, "not delivered: %v; make the request again", err))
		}
	}
}

// errLost ends a call that may have run.
var errLost = outcomeUnknown("the node that ran this call was lost before it finished; " +
	"see whether the tool has done its work before you call it again")

// returnIn is how long clients of a lost node have to come back, before webhooks
// are told the outcomes of calls that have ended meanwhile.
const returnIn = 5 * time.Second

// awaitReturn tells webhooks the outcomes of calls that have ended, unless their clients come back in time.
// Until then outcomes of calls that go on are held back, too.
func (m *Manager) awaitReturn(f restored) {
	if len(f.untold) == 0 {
		return
	}
	m.work.Go(func() {
		m.work.Pause(returnIn)
		for number, h := range f.untold {
			h.Release(number)
		}
	})
}
