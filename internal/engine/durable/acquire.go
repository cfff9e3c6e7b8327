package durable

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"holdfast/internal/engine/memory"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// stamp returns a random number that no other node has.
func stamp() uint64 { return rand.Uint64() }

// Acquire implements [shared.Store].
//
// Of several nodes one gets the record, and only it appends frames of the new
// epoch. Then it appends a frame after the last one, of any owner: from here on an
// older owner's appends fail, and those that succeeded are before that frame.
func (st *Store) Acquire(ctx context.Context, was shared.Session) (shared.Taken, error) {
	return st.acquire(ctx, was, false)
}

// AcquireUnfenced is Acquire without its frame. The first frame that is appended under
// the lease stands for it, and [Store.Fence] sees to it that there is one. Before that an
// older owner may still append: then the Taken lacks these entries, the lease is lost,
// and the session has to be acquired again.
func (st *Store) AcquireUnfenced(ctx context.Context, was shared.Session) (shared.Taken, error) {
	return st.acquire(ctx, was, true)
}

// Fence returns once no older owner can append any more. ErrFenced: an older owner has
// appended, or there is a newer owner.
func (st *Store) Fence(ctx context.Context, lease stream.Lease) error {
	s, err := st.own(ctx, lease)
	if errors.Is(err, stream.ErrNotFound) {
		return stream.ErrFenced // its lease was lost, and the session forgotten
	}
	if err != nil {
		return err
	}
	defer s.done()
	if s.fenced {
		return nil
	}
	return st.hold(ctx, s, s.rec.taking())
}

// taking returns the frame that takes a session over.
func (r *record) taking() []byte {
	h := head{kind: frameTaken, born: r.born, epoch: r.epoch, stamp: r.stamp}
	return h.append(nil)
}

func (st *Store) acquire(ctx context.Context, was shared.Session, unfenced bool) (shared.Taken, error) {
	key := was.Key
	ahead := st.readAhead(ctx, &was)
	rec, version, err := st.takeRecord(ctx, &was)
	h := <-ahead
	if err != nil {
		return shared.Taken{}, err
	}
	if h == nil {
		h = st.newHistory(key, rec.born)
	}
	switch {
	case h.epoch >= rec.epoch:
		return shared.Taken{}, stream.ErrConflict
	case !unfenced || h.last == 0:
		unfenced = false
		if err := st.fence(ctx, h, &rec); err != nil {
			return shared.Taken{}, err
		}
	}
	s := &session{
		lease:       stream.Lease{Session: key, Epoch: rec.epoch},
		turn:        semaphore.NewWeighted(1),
		rec:         rec,
		version:     version,
		last:        h.last,
		fenced:      !unfenced,
		mayBeMarked: true,
		written:     h.bytes,
	}
	s.busy.Store(true)
	found, calls := h.found(s), s.hasCalls()
	if !st.enter(s, found) {
		return shared.Taken{}, stream.ErrConflict
	}
	notes := int64(0)
	for _, l := range h.streams {
		if !l.ended {
			notes += int64(len(l.note))
		}
	}
	st.front.Beside(s.lease, notes)
	if calls && st.ctx.Err() == nil {
		st.work.Add(1)
		go st.markTaken(s)
	}
	return shared.Taken{Lease: s.lease, About: rec.about, Streams: st.kept(s, h)}, nil
}

// readAhead reads the frames of a session while its record is being taken: the first
// append fails if these are not all. The channel has nil if they could not be read.
func (st *Store) readAhead(ctx context.Context, was *shared.Session) <-chan *history {
	got := make(chan *history, 1)
	found, ok := was.Seen.(*seen)
	if !ok {
		got <- nil
		return got
	}
	h := st.newHistory(was.Key, found.born)
	go func() {
		ctx, stop := context.WithTimeout(ctx, attempt)
		defer stop()
		if err := h.readRecent(ctx); err != nil {
			h = nil
		}
		got <- h
	}()
	return got
}

// takeRecord makes a session's record name this node, under a new epoch. A record
// in was.Seen is not read again: putRecord fails if it has changed.
func (st *Store) takeRecord(ctx context.Context, was *shared.Session) (record, uint64, error) {
	var old record
	var version uint64
	var err error
	if found, ok := was.Seen.(*seen); ok {
		old, version = found.record, found.version
	} else if old, version, err = st.getRecord(ctx, was.Key); err != nil {
		return record{}, 0, err
	}
	if !old.is(was) {
		return record{}, 0, stream.ErrConflict
	}
	rec := old
	rec.owner, rec.epoch, rec.open, rec.stamp = st.Node(), old.epoch+1, false, stamp()
	if version, err = st.putRecord(ctx, was.Key, version, &old, &rec); err == nil {
		// If the record were lost, the next owner would have the same epoch, and event
		// ids of this owner would seem to be of the next.
		err = st.Sync(ctx)
	}
	return rec, version, err
}

// fence appends the frame that takes a session over, once h has all frames before
// it. ErrConflict: another node has taken the session over since.
func (st *Store) fence(ctx context.Context, h *history, rec *record) error {
	key := framesKey(h.key)
	frame := rec.taking()
	last, contests := h.last, 0 // the first attempt supposes that no frame was added after those that readAhead has read
	for r := st.retry(ctx); ; {
		if contests > 0 && contests < patientContests || last == 0 {
			if err := st.ask(ctx, h.read); err != nil {
				return err
			}
			switch {
			case h.taker == rec.stamp && h.epoch == rec.epoch:
				return nil
			case h.epoch >= rec.epoch:
				return stream.ErrConflict
			}
			last = h.last
		}
		once, cancel := r.once()
		follow(frame, last)
		at, err := st.log.Append(once, key, last, frame)
		cancel()
		switch {
		case err == nil && last == h.last:
			h.frame(at, 0, frame)
			return nil
		case err == nil:
			last, contests = 0, 0 // the frames before it are still to be read
		case errors.Is(err, stream.ErrConflict) && r.ctx.Err() == nil && time.Now().Before(r.end):
			last = at
			if contests++; at == 0 { // the frames have expired just now
				h.last, contests = 0, 0
			}
		case errors.Is(err, stream.ErrUnavailable) && r.again():
			last, contests = 0, 0
		default:
			return err
		}
	}
}

// patientContests is after how many conflicts with the old owner's appends a node
// that takes a session over no longer reads the frames before it tries again:
// reading takes longer than appending.
const patientContests = 4

// enter adds a session to those owned here, unless there is a newer lease of it.
func (st *Store) enter(s *session, streams []memory.Loaded) bool {
	key := s.lease.Session
	st.install.Lock()
	defer st.install.Unlock()
	old := st.find(key)
	if old != nil && old.rec.born != s.rec.born {
		old.lost.Store(true) // an earlier session of the same key
		st.front.Drop(old.lease)
	}
	if !st.front.Load(s.lease, streams) {
		return false
	}
	if old != nil {
		old.lost.Store(true)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.sessions[key] = s
	return true
}

// kept returns the streams that are kept of a session that was just acquired.
func (st *Store) kept(s *session, h *history) []shared.Stream {
	var all []shared.Stream
	for number, l := range h.streams {
		x := shared.Stream{Number: number, Note: l.note, Oldest: 1, Next: 1, Ended: l.ended}
		oldest, next, err := st.front.Bounds(context.Background(), stream.ID{Session: s.lease.Session, Number: number})
		switch {
		case err == nil:
			x.Oldest, x.Next = oldest, next
		case l.ended || x.Note == nil:
			continue // memory has dropped it again
		}
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b shared.Stream) int {
		if a.Number < b.Number {
			return -1
		}
		return 1
	})
	return all
}

// Delete implements [stream.Store]. If another node owns the session, its lease is
// fenced first.
func (st *Store) Delete(ctx context.Context, key stream.SessionKey) error {
	var last uint64
	var err error
	if s := st.find(key); s != nil {
		if err := s.wait(ctx); err != nil {
			return err
		}
		mine := !s.lost.Load()
		last = s.last
		if mine {
			if s.busy.Load() {
				_ = st.unmark(ctx, s) // else the node that finds the mark removes it
			}
			err = st.removeRecord(ctx, key, &s.rec, s.version)
		}
		st.drop(s)
		s.done()
		if !mine || errors.Is(err, stream.ErrConflict) {
			last, err = st.deleteOther(ctx, key)
		}
	} else {
		last, err = st.deleteOther(ctx, key)
	}
	if err == nil && last > 0 {
		st.graves.add(grave{key, last + 1})
	}
	return err
}

// deleteOther deletes a session that is not owned here.
func (st *Store) deleteOther(ctx context.Context, key stream.SessionKey) (last uint64, err error) {
	for {
		was, err := st.Lookup(ctx, key)
		if errors.Is(err, stream.ErrNotFound) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		rec, version, err := st.takeRecord(ctx, &was)
		h := st.newHistory(key, rec.born)
		if err == nil {
			if err = st.fence(ctx, h, &rec); err == nil {
				err = st.removeRecord(ctx, key, &rec, version)
			}
		}
		if err == nil || errors.Is(err, stream.ErrNotFound) {
			return h.last, nil
		}
		if !errors.Is(err, stream.ErrConflict) {
			return 0, err
		}
	}
}

// removeRecord removes a session's record, if it still has the stamp of rec.
// ErrConflict: it has another.
func (st *Store) removeRecord(ctx context.Context, key stream.SessionKey, rec *record, version uint64) error {
	return st.ask(ctx, func(ctx context.Context) error {
		for {
			err := st.log.Remove(ctx, recordKey(key), version)
			if !errors.Is(err, stream.ErrConflict) {
				return err
			}
			got, v, _, err := st.log.Get(ctx, recordKey(key))
			if errors.Is(err, stream.ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			now, err := parseRecord(got)
			if err != nil || now.stamp != rec.stamp {
				return stream.ErrConflict
			}
			version = v
		}
	})
}
