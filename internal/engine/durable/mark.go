package durable

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// This file marks the sessions with calls that another node must go on with if their owner is lost, though no client comes back for them.
// Of very many sessions few have such calls, and a node that looks for those of a lost node reads the marks and not all records. A session
// is marked before its first call is in the store, and until its owner calls Rest. A node of an earlier build marks no sessions: nodes
// that do say so under their names.

// Keys of the engine.
const (
	markPrefix    = "w."
	markingPrefix = "n."
)

// markingTTL is for how long at least a node is known to mark its sessions: longer than other nodes remember it.
const markingTTL = 2 * time.Hour

func markKey(key stream.SessionKey) string { return markPrefix + string(key) }

// lookers is how many marked sessions are looked up at a time.
const lookers = 16

// isOfCall reports whether a record is of a call's stream and does not end it.
func isOfCall(r stream.Record) bool { return r.Number != 0 && !r.Last }

// marked marks a session that is not marked, while a frame of the records is appended. The caller has the turn, and calls wait after the
// append. If marking fails, the next frame tries again.
func (st *Store) marked(ctx context.Context, s *session, notes, entries []stream.Record) (wait func()) {
	if s.mark != 0 || !slices.ContainsFunc(notes, isOfCall) && !slices.ContainsFunc(entries, isOfCall) {
		return func() {}
	}
	done := make(chan error, 1)
	go func() { done <- st.putMark(ctx, s, st.Node()) }()
	return func() {
		if err := <-done; err != nil {
			st.o.Logger.Debug("a session with calls could not be marked: if this node is lost, they end when their clients come back", "session", s.lease.Session, "error", err)
		}
	}
}

// putMark marks a session for the time that its record is kept. owner is the name of its node; "": it has none.
func (st *Store) putMark(ctx context.Context, s *session, owner string) error {
	at := markKey(s.lease.Session)
	err := st.ask(ctx, func(ctx context.Context) error {
		for version := s.mark; ; {
			v, err := st.log.Put(ctx, at, version, []byte(owner), st.o.recordTTL())
			if err == nil {
				s.mark, s.mayBeMarked = v, false
				return nil
			}
			if !errors.Is(err, stream.ErrConflict) {
				return err
			}
			if _, version, _, err = st.log.Get(ctx, at); errors.Is(err, stream.ErrNotFound) { // it has expired
				version = 0
			} else if err != nil {
				return err
			}
		}
	})
	s.busy.Store(s.mark != 0 || s.mayBeMarked)
	return err
}

// unmark removes the mark of a session. The caller has the turn.
func (st *Store) unmark(ctx context.Context, s *session) error {
	at := markKey(s.lease.Session)
	err := st.ask(ctx, func(ctx context.Context) error {
		version := s.mark
		if version == 0 && s.mayBeMarked {
			var err error
			if _, version, _, err = st.log.Get(ctx, at); err != nil && !errors.Is(err, stream.ErrNotFound) {
				return err
			}
		}
		if version == 0 {
			return nil
		}
		err := st.log.Remove(ctx, at, version)
		if errors.Is(err, stream.ErrConflict) { // a newer owner has marked it
			return nil
		}
		return err
	})
	if err == nil {
		s.mark, s.mayBeMarked = 0, false
		s.busy.Store(false)
	}
	return err
}

// Rests reports whether a session has no mark that this node knows of; true for one that is not owned here.
func (st *Store) Rests(key stream.SessionKey) bool {
	s := st.find(key)
	return s == nil || !s.busy.Load()
}

// Rest says that no other node needs to go on with a session if this one is lost, until a record of a call of it is appended.
// While a call has not ended, Rest does nothing.
func (st *Store) Rest(ctx context.Context, lease stream.Lease) error {
	s, err := st.own(ctx, lease)
	if err != nil {
		return err
	}
	defer s.done()
	if s.hasCalls() {
		return nil
	}
	return st.unmark(ctx, s)
}

// hasCalls reports whether streams of calls have not ended. The caller has the turn.
func (s *session) hasCalls() bool { return len(s.live) > 1 || len(s.live) == 1 && s.live[0] == nil }

// markTaken marks a session that was taken over, if it has calls: the mark that it has names its last owner.
func (st *Store) markTaken(s *session) {
	defer st.work.Done()
	ctx, stop := context.WithTimeout(st.ctx, attempt)
	defer stop()
	if s.wait(ctx) != nil {
		return
	}
	defer s.done()
	if s.mark == 0 && !s.lost.Load() && s.hasCalls() {
		_ = st.putMark(ctx, s, st.Node()) // else its next append does
	}
}

// Marked calls yield with the marked sessions that want accepts, in no order, one at a time. want gets the name of the node that has
// marked the session; "": it was released.
func (st *Store) Marked(ctx context.Context, want func(key stream.SessionKey, owner string) bool, yield func(shared.Session)) error {
	type mark struct {
		key     stream.SessionKey
		version uint64
	}
	var all []mark
	err := st.list(ctx, markPrefix, func(key string, owner []byte, version uint64) bool {
		if name := stream.SessionKey(key); want(name, string(owner)) {
			all = append(all, mark{name, version})
		}
		return true
	})
	var work sync.WaitGroup
	var mu sync.Mutex
	places := make(chan struct{}, lookers)
	for _, m := range all {
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			is, bad := st.Lookup(ctx, m.key)
			if errors.Is(bad, stream.ErrNotFound) { // the session has ended
				_ = st.log.Remove(ctx, markKey(m.key), m.version)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if bad != nil {
				err = errors.Join(err, bad)
				return
			}
			yield(is)
		})
	}
	work.Wait()
	return err
}

// Marking returns the names of nodes that mark their sessions: all live ones, and some that are gone.
func (st *Store) Marking(ctx context.Context) (nodes map[string]bool, err error) {
	nodes = make(map[string]bool)
	err = st.list(ctx, markingPrefix, func(node string, _ []byte, _ uint64) bool {
		nodes[node] = true
		return true
	})
	return nodes, err
}

// sayMarking says to other nodes that this one marks its sessions, while it lives and for as long as its records are kept after that.
func (st *Store) sayMarking() {
	at, version, wait := markingPrefix+st.Node(), uint64(0), time.Duration(0)
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-st.ctx.Done():
			return
		case <-t.C:
		}
		wait = st.o.SessionTTL / 2
		err := st.ask(st.ctx, func(ctx context.Context) error {
			v, err := st.log.Put(ctx, at, version, []byte{1}, max(st.o.recordTTL(), markingTTL))
			if errors.Is(err, stream.ErrConflict) {
				if _, v, _, err = st.log.Get(ctx, at); errors.Is(err, stream.ErrNotFound) {
					v, err = 0, nil
				}
				wait = 0 // once more
			}
			if err == nil {
				version = v
			}
			return err
		})
		if err != nil {
			wait = time.Second
		}
		t.Reset(wait)
	}
}
