package memory

import (
	"slices"
	"time"

	"holdfast/stream"
)

// A Loaded is a stream of a session that was kept elsewhere.
type Loaded struct {
	Number  uint64
	Entries []stream.Entry // at least one, without a gap; the store's from now on
	Ended   time.Time      // when the last entry, which is Last, was appended; zero: it has not ended
}

// Load adds a session that was kept elsewhere, in place of one with an older epoch.
// It reports whether it did: not if the store has the session under this epoch or a
// newer one. Streams over their limit lose their oldest entries, and a session over
// its limit its finished streams; no other limit applies.
func (st *Store) Load(lease stream.Lease, streams []Loaded) bool {
	s := &session{epoch: lease.Epoch, tenant: st.nobody, rank: unranked}
	s.mu.Lock()
	slices.SortFunc(streams, func(a, b Loaded) int { return a.Ended.Compare(b.Ended) })
	for i := range streams {
		st.load(s, &streams[i])
	}
	for s.bytes > st.opts.SessionBytes && s.finished.oldest != nil {
		st.drop(s.finished.oldest)
	}
	s.mu.Unlock()

	st.mu.Lock()
	old := st.sessions[lease.Session]
	newer := old == nil || old.epoch < lease.Epoch
	if newer {
		st.sessions[lease.Session] = s
	}
	st.mu.Unlock()
	switch {
	case !newer:
		st.clear(s)
	case old != nil:
		st.clear(old)
	}
	return newer
}

// load adds one stream to a session that is not in st.sessions yet.
func (st *Store) load(s *session, from *Loaded) {
	l := s.log(from.Number)
	l.entries = from.Entries
	l.next = from.Entries[len(from.Entries)-1].Seq + 1
	l.bytes = streamCost
	for i := range l.entries {
		l.bytes += int64(len(l.entries[i].Data)) + entryCost
	}
	s.bytes += l.bytes
	st.take(s.tenant, l.bytes, true)
	for l.bytes > st.opts.StreamBytes && len(l.entries) > 1 {
		st.trim(s, l)
	}
	if from.Ended.IsZero() {
		return
	}
	// The store's queue is in the order of release: behind streams that ended here,
	// it may be kept for up to twice as long.
	st.finish(l, from.Ended)
}

// Drop drops a session and notifies its watchers, if the store has it under the lease.
func (st *Store) Drop(lease stream.Lease) {
	st.mu.Lock()
	s := st.sessions[lease.Session]
	if s == nil || s.epoch != lease.Epoch {
		st.mu.Unlock()
		return
	}
	delete(st.sessions, lease.Session)
	st.mu.Unlock()
	st.clear(s)
}
