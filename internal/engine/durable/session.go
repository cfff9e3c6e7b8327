package durable

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// A session is one that is, or was, owned here.
type session struct {
	lease stream.Lease
	lost  atomic.Bool         // its lease is lost: nothing can be appended
	stale atomic.Int64        // no stream in live needs a frame from before, by the store's clock; 0: live is empty
	turn  *semaphore.Weighted // of size 1
	busy  atomic.Bool         // it is marked, or may be

	// For the goroutine that has the turn:
	rec         record
	version     uint64 // of the record
	fenced      bool   // a frame of the lease's epoch was appended
	last        uint64 // where the last frame is; 0: none is known
	unsettled   []byte // a frame that may follow last, or not
	doubt       bool   // an attempt to append the last frame may still be under way
	live        map[uint64]*live
	ended       places
	mark        uint64 // version of its mark; 0: it has none of this owner's
	mayBeMarked bool   // by an owner before
	written     int64  // bytes of frames since they were last trimmed
}

// live has the state of a stream that has not ended, which keeps the stream from
// expiring.
type live struct {
	note []byte
	from uint64        // the place of the oldest frame that it needs
	at   time.Duration // when that was written, by the store's clock
}

// wait waits for the session's turn: one goroutine at a time writes to the engine
// for it, in the order of their calls. After nil the caller must call done.
func (s *session) wait(ctx context.Context) error {
	if err := s.turn.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("%w: waiting for another write: %w", stream.ErrUnavailable, err)
	}
	return nil
}

func (s *session) done() { s.turn.Release(1) }

func (st *Store) find(key stream.SessionKey) *session {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.sessions[key]
}

// own waits for the turn of the session that is owned under a lease, and returns the session.
func (st *Store) own(ctx context.Context, lease stream.Lease) (*session, error) {
	s := st.find(lease.Session)
	if s == nil {
		return nil, stream.ErrNotFound
	}
	if s.lease != lease || s.lost.Load() {
		return nil, stream.ErrFenced
	}
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	if s.lost.Load() {
		s.done()
		return nil, stream.ErrFenced
	}
	return s, nil
}

// drop drops a session and its streams from memory, and notifies its watchers. The
// caller does not hold st.install.
func (st *Store) drop(s *session) {
	s.lost.Store(true)
	st.install.Lock()
	defer st.install.Unlock()
	st.mu.Lock()
	if st.sessions[s.lease.Session] == s {
		delete(st.sessions, s.lease.Session)
	}
	st.mu.Unlock()
	st.front.Drop(s.lease)
}

// clock returns the time of the store's clock, which is never set.
func (st *Store) clock() time.Duration { return time.Since(st.zero) }

// Create implements [stream.Store].
func (st *Store) Create(ctx context.Context, key stream.SessionKey, about []byte) (stream.Lease, error) {
	return st.Revive(ctx, key, about, 1)
}

// Revive is Create for a session that existed before: under an epoch that it never had. Frames of its earlier life have
// another record.born: they are not read as part of this session, and their writers can append no more.
func (st *Store) Revive(ctx context.Context, key stream.SessionKey, about []byte, epoch uint64) (stream.Lease, error) {
	if err := checkKey(key); err != nil {
		return stream.Lease{}, err
	}
	rec := record{owner: st.Node(), epoch: epoch, born: stamp(), stamp: stamp(), about: about}
	version, err := st.putRecord(ctx, key, 0, nil, &rec)
	if errors.Is(err, stream.ErrConflict) {
		return stream.Lease{}, stream.ErrExists
	}
	if err != nil {
		return stream.Lease{}, err
	}
	if old := st.find(key); old != nil {
		st.drop(old) // that session is gone from the engine
	}
	s := &session{lease: stream.Lease{Session: key, Epoch: epoch}, turn: semaphore.NewWeighted(1), rec: rec, version: version}
	st.install.Lock()
	defer st.install.Unlock()
	if _, err := st.front.CreateUnder(ctx, key, epoch); err != nil {
		return stream.Lease{}, stream.ErrConflict // it was deleted and created meanwhile, or taken over
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.sessions[key] = s
	return s.lease, nil
}

// putRecord replaces a session's record was, which has this version; nil: there was
// no record. ErrConflict: another record is there; ErrNotFound: none is.
func (st *Store) putRecord(ctx context.Context, key stream.SessionKey, version uint64, was, rec *record) (uint64, error) {
	value := rec.encode()
	at := recordKey(key)
	err := st.ask(ctx, func(ctx context.Context) error {
		for {
			v, err := st.log.Put(ctx, at, version, value, st.o.recordTTL())
			if err == nil {
				version = v
				return nil
			}
			if !errors.Is(err, stream.ErrConflict) {
				return err
			}
			// An earlier attempt may have succeeded, or a mere renewal of the
			// record.
			got, v, _, err := st.log.Get(ctx, at)
			if err != nil {
				if was == nil && errors.Is(err, stream.ErrNotFound) {
					continue // it has just expired
				}
				return err
			}
			now, err := parseRecord(got)
			switch {
			case err == nil && now.stamp == rec.stamp && now.born == rec.born && (was == nil || was.stamp != rec.stamp):
				version = v
				return nil
			case err == nil && was != nil && now.stamp == was.stamp && now.born == was.born:
				version = v
			default:
				return stream.ErrConflict
			}
		}
	})
	return version, err
}

// getRecord returns a session's record.
func (st *Store) getRecord(ctx context.Context, key stream.SessionKey) (rec record, version uint64, err error) {
	if checkKey(key) != nil {
		return record{}, 0, stream.ErrNotFound // no such session can have been created
	}
	err = st.ask(ctx, func(ctx context.Context) error {
		value, v, _, err := st.log.Get(ctx, recordKey(key))
		if err != nil {
			return err
		}
		version = v
		if rec, err = parseRecord(value); err != nil {
			return fmt.Errorf("record of session %s: %w", key, err)
		}
		return nil
	})
	return rec, version, err
}

// Touch implements [shared.Store].
func (st *Store) Touch(ctx context.Context, lease stream.Lease) error {
	s, err := st.own(ctx, lease)
	if err != nil {
		return err
	}
	defer s.done()
	if err := st.renew(ctx, s); err != nil || s.mark == 0 {
		return err
	}
	return st.putMark(ctx, s, st.Node())
}

// renew puts the record again, unchanged. The caller has the turn.
func (st *Store) renew(ctx context.Context, s *session) error {
	version, err := st.putRecord(ctx, s.lease.Session, s.version, &s.rec, &s.rec)
	switch {
	case err == nil:
		s.version = version
	case errors.Is(err, stream.ErrConflict):
		s.lost.Store(true)
		return stream.ErrFenced
	case errors.Is(err, stream.ErrNotFound):
		s.lost.Store(true)
	}
	return err
}

// Lookup implements [shared.Store].
func (st *Store) Lookup(ctx context.Context, key stream.SessionKey) (shared.Session, error) {
	rec, version, err := st.getRecord(ctx, key)
	if err != nil {
		return shared.Session{}, err
	}
	return rec.session(key, version), nil
}

// Sessions implements [shared.Store].
func (st *Store) Sessions(ctx context.Context, yield func(shared.Session) bool) error {
	return st.list(ctx, recordPrefix, func(key string, value []byte, version uint64) bool {
		name := stream.SessionKey(key)
		rec, err := parseRecord(value)
		if err != nil {
			st.o.Logger.Error("session can't be read", "session", name, "error", err)
			return true
		}
		return yield(rec.session(name, version))
	})
}

// list calls yield with the values under a prefix, and their keys without it, until yield returns false. It may take long.
func (st *Store) list(ctx context.Context, prefix string, yield func(key string, value []byte, version uint64) bool) error {
	begun := false
	for r := st.retry(ctx); ; {
		once, stop := context.WithCancel(ctx)
		silence := time.AfterFunc(listSilence, stop) // the whole list may take much longer
		err := st.log.List(once, prefix, func(key string, value []byte, version uint64) bool {
			begun = true
			defer silence.Reset(listSilence)
			return yield(key[len(prefix):], value, version)
		})
		silence.Stop()
		stop()
		// A caller that has seen some values must not see them again.
		if begun || !errors.Is(err, stream.ErrUnavailable) || !r.again() {
			return err
		}
	}
}

// listSilence is how long a list may take until its next value. Where there are a
// million sessions the engine counts them first.
const listSilence = 10 * time.Second

// Release implements [shared.Store].
func (st *Store) Release(ctx context.Context, lease stream.Lease, open bool) error {
	s, err := st.own(ctx, lease)
	if err != nil {
		return err
	}
	defer s.done()
	if err := st.settle(ctx, s); err != nil {
		return err
	}
	if open {
		_ = st.putMark(ctx, s, "") // else other nodes find the session only when they look at all sessions
	} else if s.busy.Load() {
		_ = st.unmark(ctx, s) // else other nodes look it up for nothing
	}
	rec := s.rec
	rec.owner, rec.open, rec.stamp = "", open, stamp()
	_, err = st.putRecord(ctx, lease.Session, s.version, &s.rec, &rec)
	s.lost.Store(true)
	switch {
	case errors.Is(err, stream.ErrUnavailable):
		return err
	case errors.Is(err, stream.ErrConflict):
		err = stream.ErrFenced
	}
	st.drop(s)
	return err
}

// Forget implements [shared.Store].
func (st *Store) Forget(lease stream.Lease) {
	if s := st.find(lease.Session); s != nil && s.lease == lease {
		st.drop(s)
	}
}
