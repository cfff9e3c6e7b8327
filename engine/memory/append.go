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
	s, fresh, n, err := st.prepare(lease, entries(records))
	if err != nil || len(fresh) == 0 {
		return err
	}
	return st.commit(s, fresh, n)
}

// StreamBytes is how many bytes of one stream are kept at the most.
func (st *Store) StreamBytes() int64 { return st.opts.StreamBytes }

// A Pending is an append that the store has accepted and has room for.
type Pending struct {
	s     *session
	fresh []stream.Record
	room
}

// room is what an append takes.
type room struct {
	size  int64
	final bool // it takes it in any case
}

// Fresh returns the records that were not there yet.
func (p *Pending) Fresh() []stream.Record { return p.fresh }

// Prepare says whether entries can be appended, and takes the room for them. It
// must be followed by Commit or Abandon before the session's next append.
func (st *Store) Prepare(lease stream.Lease, records []stream.Record) (Pending, error) {
	s, fresh, n, err := st.prepare(lease, records)
	return Pending{s, fresh, n}, err
}

// Commit appends what was prepared. ErrNotFound: the session has gone since.
func (st *Store) Commit(p Pending) error {
	if len(p.fresh) == 0 {
		return nil
	}
	return st.commit(p.s, p.fresh, p.room)
}

// Abandon gives back the room for what was prepared.
func (st *Store) Abandon(p Pending) { st.total.Add(-p.size) }

// prepare and commit are apart from Pending so that the records of an append that
// is both need not be on the heap.
func (st *Store) prepare(lease stream.Lease, records []stream.Record) (s *session, fresh []stream.Record, n room, err error) {
	s = st.find(lease.Session)
	if s == nil {
		return nil, nil, n, stream.ErrNotFound
	}
	// What is to be refused makes no room. A session's appends have one caller at
	// a time, so what is checked here still holds when they are committed.
	s.mu.Lock()
	fresh, err = s.check(lease, records)
	if err != nil || len(fresh) == 0 {
		s.mu.Unlock()
		return nil, nil, n, err
	}
	for i := range fresh {
		n.size += int64(len(fresh[i].Data)) + overhead
	}
	n.final = ends(fresh)
	fits := n.final || st.fits(s, fresh, n.size)
	s.mu.Unlock()
	if !fits || !st.reserve(n.size, n.final) {
		return nil, nil, room{}, stream.ErrFull
	}
	return s, fresh, n, nil
}

func (st *Store) commit(s *session, fresh []stream.Record, n room) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deleted {
		st.total.Add(-n.size)
		return stream.ErrNotFound
	}
	if s.bytes+n.size > st.opts.SessionBytes {
		st.makeRoom(s, fresh, n)
	}
	for i := range fresh {
		st.put(s, &fresh[i])
	}
	return nil
}

// entries returns the records that are no notes, which nobody could read here.
func entries(records []stream.Record) []stream.Record {
	if !slices.ContainsFunc(records, isNote) {
		return records
	}
	return slices.DeleteFunc(slices.Clone(records), isNote)
}

func isNote(r stream.Record) bool { return r.Note }

// reserve takes size bytes out of what all sessions may keep, and says whether
// they were to be had. A final append gets them in any case.
func (st *Store) reserve(size int64, final bool) bool {
	for {
		kept := st.total.Load()
		if kept+size > st.opts.TotalBytes {
			if l := st.oldest(); l != nil {
				st.forget(l)
				continue
			}
			if !final {
				return false
			}
		}
		if st.total.CompareAndSwap(kept, kept+size) {
			return true
		}
	}
}

// ends says whether records end every stream that they are for, in entries
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

// check says whether the lease is good and all records follow what is there, so
// that an append is all or none. It returns those that are not there yet.
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

// same says whether the record is kept already. What was trimmed is taken on
// trust: it cannot be compared any more.
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
	n := int64(len(r.Data)) + overhead
	l.bytes += n
	s.bytes += n
	for l.bytes > st.opts.StreamBytes && len(l.entries) > 1 {
		st.trim(s, l)
	}
	if r.Last {
		l.last, l.at = true, time.Now()
		s.finished.push(l, inSession)
		st.fin.Lock()
		st.finished.push(l, inStore)
		st.fin.Unlock()
	}
	l.tell()
}

// fits says whether a session can make room for records of so many bytes: with
// the streams that have finished, and those that are written to. It is locked.
func (st *Store) fits(s *session, records []stream.Record, size int64) bool {
	if size > min(st.opts.SessionBytes, st.opts.TotalBytes) {
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
			over -= l.bytes
		}
	}
	return over <= 0
}

// makeRoom does what fits has counted on.
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
