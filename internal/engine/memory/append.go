package memory

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast/stream"
)

// Append implements [stream.Store].
func (st *Store) Append(_ context.Context, lease stream.Lease, records []stream.Record) error {
	s, fresh, n, err := st.prepare(lease, entries(records), 0)
	if err != nil || len(fresh) == 0 {
		return err
	}
	return st.commit(s, fresh, n)
}

// StreamBytes returns how many bytes of one stream are kept at the most.
func (st *Store) StreamBytes() int64 { return st.opts.StreamBytes }

// A Pending is an append that the store has accepted and has room for.
type Pending struct {
	s     *session
	fresh []stream.Record
	room
}

// room is the bytes that an append takes.
type room struct {
	size   int64
	beside int64 // of those, the bytes kept beside streams
	final  bool  // the append takes them in any case
}

// Fresh returns the records that are new, and not repeated.
func (p *Pending) Fresh() []stream.Record { return p.fresh }

// Prepare checks whether entries can be appended, and takes the room for them and for
// beside more bytes (fewer, if negative) that are kept beside the streams. It must be
// followed by Commit or Abandon before the session's next append.
func (st *Store) Prepare(lease stream.Lease, records []stream.Record, beside int64) (Pending, error) {
	s, fresh, n, err := st.prepare(lease, records, beside)
	return Pending{s, fresh, n}, err
}

// Commit appends the entries that were prepared. ErrNotFound: the session has gone since.
func (st *Store) Commit(p Pending) error {
	if len(p.fresh) == 0 && p.beside == 0 {
		return nil
	}
	return st.commit(p.s, p.fresh, p.room)
}

// Abandon gives the room of a Pending back.
func (st *Store) Abandon(p Pending) {
	if p.s == nil {
		return
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	st.give(p.s.tenant, p.size)
}

// Beside counts bytes more, or fewer if negative, that are kept beside a session's
// streams, whether there is room or not.
func (st *Store) Beside(lease stream.Lease, bytes int64) {
	s := st.find(lease.Session)
	if s == nil || bytes == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch == lease.Epoch && !s.deleted {
		st.take(s.tenant, bytes, true)
		s.bytes += bytes
		s.beside += bytes
	}
}

// prepare and commit need no Pending, so that Append's records need not be on the
// heap.
func (st *Store) prepare(lease stream.Lease, records []stream.Record, beside int64) (s *session, fresh []stream.Record, n room, err error) {
	s = st.find(lease.Session)
	if s == nil {
		return nil, nil, n, stream.ErrNotFound
	}
	// An append that will be refused must not drop streams to make room. A session's
	// appends have one caller at a time, so check's result still holds at the commit.
	s.mu.Lock()
	fresh, err = s.check(lease, records)
	if err != nil || len(fresh) == 0 && beside == 0 {
		s.mu.Unlock()
		return nil, nil, n, err
	}
	n.size, n.beside = beside, beside
	for i := range fresh {
		n.size += cost(&fresh[i])
	}
	n.final = ends(fresh) && beside <= 0
	t := s.tenant
	fits := n.final || st.fits(s, fresh, n.size)
	s.mu.Unlock()
	if !fits || !st.reserve(s, t, fresh, n) {
		return nil, nil, room{}, stream.ErrFull
	}
	return s, fresh, n, nil
}

// cost returns how many bytes a record takes.
func cost(r *stream.Record) int64 {
	n := int64(len(r.Data)) + entryCost
	if r.Seq == 1 {
		n += streamCost
	}
	return n
}

func (st *Store) commit(s *session, fresh []stream.Record, n room) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deleted {
		st.give(s.tenant, n.size)
		return stream.ErrNotFound
	}
	s.bytes += n.beside
	s.beside += n.beside
	n.size -= n.beside
	if s.bytes+n.size > st.opts.SessionBytes {
		st.makeRoom(s, fresh, n)
	}
	for i := range fresh {
		st.put(s, &fresh[i])
	}
	return nil
}

// entries returns the records without the notes, which cannot be read from this store.
func entries(records []stream.Record) []stream.Record {
	if !slices.ContainsFunc(records, isNote) {
		return records
	}
	return slices.DeleteFunc(slices.Clone(records), isNote)
}

func isNote(r stream.Record) bool { return r.Note }

// reserve counts the bytes of an append against the session's tenant and the total,
// and reports whether there was room. To make room it drops ended streams, or the
// oldest entries of the append's own streams. A final append gets its room in any
// case.
func (st *Store) reserve(s *session, t *tenant, records []stream.Record, n room) bool {
	for !st.take(t, n.size, false) {
		if st.makeWay(t, n.size) || st.shorten(s, records, n.size) {
			continue
		}
		return n.final && st.take(t, n.size, true)
	}
	return true
}

// shorten takes n bytes, for an append, from the oldest entries of its own streams,
// which keep their newest. It does nothing and returns false if they have fewer.
func (st *Store) shorten(s *session, records []stream.Record, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	spare := int64(0)
	for i := range records {
		if l := s.logs[records[i].Number]; l != nil && first(records, i) && len(l.entries) > 1 {
			newest := int64(len(l.entries[len(l.entries)-1].Data)) + entryCost
			spare += l.bytes - streamCost - newest
		}
	}
	if spare < n {
		return false
	}
	for i := range records {
		l := s.logs[records[i].Number]
		for l != nil && len(l.entries) > 1 && n > 0 {
			n -= int64(len(l.entries[0].Data)) + entryCost
			st.trim(s, l)
		}
	}
	return true
}

// first reports whether a record is the first of its stream among several.
func first(records []stream.Record, i int) bool {
	for j := range i {
		if records[j].Number == records[i].Number {
			return false
		}
	}
	return true
}

// ends reports whether records end every stream that they are for, in entries
// within the reserve: such an append is never refused for want of room.
func ends(records []stream.Record) bool {
	for i := range records {
		if len(records[i].Data) > stream.Reserve {
			return false
		}
		j := i
		for j < len(records) && (records[j].Number != records[i].Number || !records[j].Last) {
			j++
		}
		if j == len(records) {
			return false
		}
	}
	return true
}

// check returns an error if the lease is lost, or a record neither follows the
// entries that are kept nor repeats one, so that an append is all or nothing. fresh
// are the records that are new.
func (s *session) check(lease stream.Lease, records []stream.Record) (fresh []stream.Record, err error) {
	if s.deleted {
		return nil, stream.ErrNotFound
	}
	if s.epoch != lease.Epoch {
		return nil, stream.ErrFenced
	}
	repeated := 0
	for i := range records {
		r := &records[i]
		next, last := uint64(1), false
		l := s.logs[r.Number]
		if l != nil {
			next, last = l.next, l.last
		}
		stored := next
		// Records before this one may be of the same stream.
		for j := i - 1; j >= 0; j-- {
			if b := &records[j]; b.Number == r.Number && b.Seq >= next {
				next, last = b.Seq+1, b.Last
				break
			}
		}
		switch {
		case r.Seq == 0, r.Seq > next, r.Seq == next && last:
			return nil, fmt.Errorf("%w: sequence %d after %d", stream.ErrConflict, r.Seq, next-1)
		case r.Seq < next:
			if r.Seq >= stored || !l.same(r) {
				return nil, fmt.Errorf("%w: sequence %d was used", stream.ErrConflict, r.Seq)
			}
			if repeated++; fresh == nil {
				fresh = append(make([]stream.Record, 0, len(records)), records[:i]...)
			}
			continue
		}
		if repeated > 0 {
			fresh = append(fresh, *r)
		}
	}
	if repeated == 0 {
		fresh = records
	}
	return fresh, nil
}

// same reports whether the record repeats an entry. An entry that was trimmed
// cannot be compared: it counts as the same.
func (l *log) same(r *stream.Record) bool {
	first := l.next - uint64(len(l.entries))
	if r.Seq < first {
		return true
	}
	e := &l.entries[r.Seq-first]
	return e.Last == r.Last && bytes.Equal(e.Data, r.Data)
}

// put appends one record that check has accepted and reserve has counted.
func (st *Store) put(s *session, r *stream.Record) {
	l := s.log(r.Number)
	e := r.Entry
	e.Epoch = s.epoch
	l.entries = append(l.entries, e)
	l.next++
	n := cost(r)
	l.bytes += n
	s.bytes += n
	for l.bytes > st.opts.StreamBytes && len(l.entries) > 1 {
		st.trim(s, l)
	}
	if r.Last {
		st.finish(l, time.Now())
	}
	l.tell()
}

// fits reports whether a session can make room for records of size bytes, by dropping
// its finished streams and entries of the streams written to. The session is locked.
func (st *Store) fits(s *session, records []stream.Record, size int64) bool {
	if size > min(st.opts.SessionBytes, st.most(s.tenant)) {
		return false
	}
	over := s.bytes + size - st.opts.SessionBytes
	for l := s.finished.oldest; l != nil && over > 0; l = l.places[inSession].newer {
		over -= l.bytes
	}
	if over <= 0 {
		return true
	}
	seen := make(map[*log]bool)
	for i := range records {
		if l := s.logs[records[i].Number]; l != nil && !seen[l] {
			seen[l] = true
			over -= max(l.bytes-streamCost, 0)
		}
	}
	return over <= 0
}

// makeRoom makes the room that fits has found.
func (st *Store) makeRoom(s *session, records []stream.Record, n room) {
	for s.bytes+n.size > st.opts.SessionBytes && s.finished.oldest != nil {
		st.drop(s.finished.oldest)
	}
	for i := range records {
		l := s.logs[records[i].Number]
		for l != nil && !n.final && len(l.entries) > 0 && s.bytes+n.size > st.opts.SessionBytes {
			st.trim(s, l)
		}
	}
}
