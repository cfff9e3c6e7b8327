package durable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/stream"
)

// Append implements [stream.Store].
func (st *Store) Append(ctx context.Context, lease stream.Lease, records []stream.Record) error {
	s, err := st.own(ctx, lease)
	if err != nil {
		return err
	}
	defer s.done()
	entries, notes := records, []stream.Record(nil)
	if slices.ContainsFunc(records, isNote) {
		entries, notes = apart(records)
		if notes, err = st.freshNotes(s, notes, entries); err != nil {
			return err
		}
	}
	p, err := st.front.Prepare(lease, entries, s.heavier(notes))
	if errors.Is(err, stream.ErrNotFound) {
		return stream.ErrFenced // the session was forgotten just now, or taken over on this very node
	}
	fresh := p.Fresh()
	if err != nil || len(fresh)+len(notes) == 0 {
		return err
	}
	buf := st.frames.Get().(*[]byte)
	frame := s.encode((*buf)[:0], notes, fresh)
	at := st.clock()
	marked := st.marked(ctx, s, notes, fresh)
	err = st.hold(ctx, s, frame)
	marked()
	if err != nil {
		st.front.Abandon(p)
	} else {
		_ = st.front.Commit(p) // an error: the session was forgotten or taken over meanwhile; the engine has the frame all the same
		if freed := s.note(at, notes, fresh, st.o.Keep); freed > 0 {
			st.front.Beside(lease, -freed)
		}
		if s.written += int64(len(frame)); s.written > 2*st.o.SessionBytes {
			st.lighten(s)
		}
	}
	if !s.doubt && cap(frame) <= 64<<10 {
		*buf = frame
		st.frames.Put(buf)
	}
	return err
}

func isNote(r stream.Record) bool { return r.Note }

// apart parts notes from entries.
func apart(records []stream.Record) (entries, notes []stream.Record) {
	for _, r := range records {
		if r.Note {
			notes = append(notes, r)
		} else {
			entries = append(entries, r)
		}
	}
	return entries, notes
}

// freshNotes returns those of an append's notes that the store does not have yet.
func (st *Store) freshNotes(s *session, notes, entries []stream.Record) ([]stream.Record, error) {
	fresh := notes[:0]
	for _, n := range notes {
		l, ok := s.live[n.Number]
		if ok && bytes.Equal(l.note, n.Data) && l.note != nil {
			continue
		}
		if !ok {
			_, next, err := st.front.Bounds(context.Background(), stream.ID{Session: s.lease.Session, Number: n.Number})
			ended := err == nil
			if ended && slices.ContainsFunc(entries, func(r stream.Record) bool { return r.Number == n.Number && r.Seq == next-1 }) {
				continue // the whole append is repeated
			}
			if ended {
				return nil, fmt.Errorf("%w: note beside stream %d, which has ended", stream.ErrConflict, n.Number)
			}
		}
		fresh = append(fresh, n)
	}
	return fresh, nil
}

// encode appends to b the frame of an append.
func (s *session) encode(b []byte, notes, fresh []stream.Record) []byte {
	size := headRoom
	for _, records := range [][]stream.Record{notes, fresh} {
		for i := range records {
			size += itemRoom + len(records[i].Data)
		}
	}
	b = slices.Grow(b, size)
	h := head{kind: frameItems, born: s.rec.born, epoch: s.lease.Epoch, items: uint64(len(notes) + len(fresh))}
	b = h.append(b)
	for i := range notes {
		b = appendItem(b, &notes[i], 0)
	}
	for i := range fresh {
		b = appendItem(b, &fresh[i], 0)
	}
	return b
}

// heavier returns by how many bytes the kept notes grow when these are appended.
func (s *session) heavier(notes []stream.Record) (bytes int64) {
	for i := range notes {
		bytes += int64(len(notes[i].Data))
		if l := s.live[notes[i].Number]; l != nil {
			bytes -= int64(len(l.note))
		}
	}
	return bytes
}

// note updates s.live and s.ended with the records of the frame at s.last, begun at a
// time. It returns how many bytes of notes are kept no longer.
func (s *session) note(at time.Duration, notes, fresh []stream.Record, keep time.Duration) (freed int64) {
	for i := range notes {
		s.alive(notes[i].Number, at).note = notes[i].Data
	}
	for i := range fresh {
		r := &fresh[i]
		l, ok := s.live[r.Number]
		switch {
		case r.Last && !ok:
			s.ended.add(at, keep, s.last)
		case r.Last:
			s.ended.add(at, keep, l.from)
			freed += int64(len(l.note))
			delete(s.live, r.Number)
		case !ok:
			s.alive(r.Number, at)
		}
	}
	if len(s.live) == 0 {
		s.live = nil
		s.stale.Store(0)
	}
	return freed
}

// alive returns the state of a stream that has not ended; a stream that is new
// begins with the frame at s.last.
func (s *session) alive(number uint64, at time.Duration) *live {
	if l := s.live[number]; l != nil {
		return l
	}
	if s.live == nil {
		s.live = make(map[uint64]*live, 1)
	}
	if s.stale.Load() == 0 {
		s.stale.Store(int64(at))
	}
	l := &live{from: s.last, at: at}
	s.live[number] = l
	return l
}

// hold appends a frame to the engine. After ErrFenced or ErrUnavailable the lease
// is lost; after ErrFull or ErrTooLarge it is not.
func (st *Store) hold(ctx context.Context, s *session, frame []byte) error {
	if len(frame)+itemRoom > st.log.MaxFrame() { // a repeated item is longer
		return stream.ErrTooLarge
	}
	err := st.settle(ctx, s)
	if err == nil {
		err = st.submit(ctx, s, frame, false)
	}
	if errors.Is(err, stream.ErrUnavailable) {
		s.lost.Store(true)
	}
	return err
}

// settle appends s.unsettled, if there is one, unless the engine already has it.
func (st *Store) settle(ctx context.Context, s *session) error {
	if s.unsettled == nil {
		return nil
	}
	err := st.submit(ctx, s, s.unsettled, true)
	if !errors.Is(err, stream.ErrUnavailable) {
		s.unsettled = nil
	}
	if errors.Is(err, stream.ErrFull) || errors.Is(err, stream.ErrTooLarge) {
		return nil // the frame only repeated entries that are kept: rewrite tries again later
	}
	return err
}

var (
	errMoved   = errors.New("the last frame is another one than was known")
	errExpired = errors.New("all frames have expired")
)

// submit appends a frame after the last one, and tries again while the outcome is
// not known. unknown says that the engine may already have the frame.
func (st *Store) submit(ctx context.Context, s *session, frame []byte, unknown bool) error {
	key := framesKey(s.lease.Session)
	s.doubt = unknown
	for r := st.retry(ctx); ; {
		follow(frame, s.last)
		once, cancel := r.once()
		at, err := st.log.Append(once, key, s.last, frame)
		if errors.Is(err, stream.ErrConflict) {
			at, err = st.contested(once, s, frame, at, unknown)
		}
		cancel()
		if errors.Is(err, errExpired) {
			err = st.revive(ctx, s)
		}
		switch {
		case err == nil:
			s.last, s.fenced = at, true
			return nil
		case errors.Is(err, errMoved):
			continue
		case errors.Is(err, stream.ErrFenced):
			s.lost.Store(true)
			return stream.ErrFenced
		case errors.Is(err, stream.ErrUnavailable):
			unknown, s.doubt = true, true
		case !unknown:
			return err // nothing was ever added
		}
		if !r.again() {
			if errors.Is(err, stream.ErrUnavailable) {
				return err
			}
			return fmt.Errorf("%w: a first append came to nothing known, a later one to: %w", stream.ErrUnavailable, err)
		}
	}
}

// contested finds out why the engine's last frame is at last (0: it has none) and
// not at s.last. It returns the place of frame, if the engine already has it.
func (st *Store) contested(ctx context.Context, s *session, frame []byte, last uint64, unknown bool) (at uint64, err error) {
	if unknown {
		if at, err := st.after(ctx, s, frame, last); err != nil || at != 0 {
			return at, err
		}
	}
	switch {
	case last == 0 && s.last != 0:
		return 0, errExpired
	case s.last == 0 && last != 0:
		return 0, st.overtake(ctx, s, last)
	}
	return 0, stream.ErrFenced
}

// errBehind says that the engine does not show all frames that it has yet: the
// caller has to ask again.
var errBehind = fmt.Errorf("%w: the last frame is not to be seen", stream.ErrUnavailable)

// after looks for a frame right after s.last, where the engine has frames up to
// last, and returns its place; 0: it is not there.
func (st *Store) after(ctx context.Context, s *session, frame []byte, last uint64) (found uint64, err error) {
	seen := false
	err = st.log.Frames(ctx, framesKey(s.lease.Session), s.last, func(at uint64, _ time.Duration, got []byte) bool {
		seen = true
		if bytes.Equal(got, frame) {
			found = at
		}
		return false
	})
	if err == nil && !seen && last > s.last {
		err = errBehind
	}
	return found, err
}

// overtake looks at the last frame of the engine before the first one of a session:
// it may be of an earlier session with the same key, and then becomes s.last.
func (st *Store) overtake(ctx context.Context, s *session, last uint64) error {
	found := errBehind
	err := st.log.Frames(ctx, framesKey(s.lease.Session), last-1, func(at uint64, _ time.Duration, got []byte) bool {
		found = stream.ErrFenced
		if h, err := parseFrame(got, func(item) {}); at == last && err == nil && h.born != s.rec.born {
			s.last, found = at, errMoved
		}
		return false
	})
	if err != nil {
		return err
	}
	return found
}

// revive deals with frames that have all expired, as they do while a process
// sleeps: if the session is still owned here, its streams that have not ended are
// appended again before the next frame.
func (st *Store) revive(ctx context.Context, s *session) error {
	if err := st.renew(ctx, s); err != nil {
		if errors.Is(err, stream.ErrNotFound) {
			return stream.ErrFenced
		}
		return err
	}
	s.last = 0
	if err := st.rewrite(ctx, s, func(*live) bool { return true }); err != nil {
		return err
	}
	return errMoved
}
