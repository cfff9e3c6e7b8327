// Package memory keeps streams in the process's own memory. It promises no
// durability: the streams are gone with the process.
package memory

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/defaults"
	"holdfast/stream"
)

// Options are the limits of a store. The zero value of each field stands for the
// default given with it.
type Options struct {
	Keep         time.Duration // how long a finished stream is kept; 10 minutes
	StreamBytes  int64         // most bytes of one stream; 16 MiB
	SessionBytes int64         // most bytes of one session; 64 MiB
	TotalBytes   int64         // most bytes of all sessions; 1 GiB
	TenantBytes  int64         // most bytes of one tenant; three quarters of TotalBytes
	Acknowledged time.Duration // how long an acknowledged stream is kept; a minute, and no longer than Keep
}

// Limits returns the limits of a store, in a process that may keep total bytes for clients
// (0: budget.Default). share is the part of the store that a tenant may have; 0: 0.75. In
// a small budget a stream or a session gets only a part, so that none can use it all.
func Limits(total int64, share float64) Options {
	if total <= 0 {
		total = budget.Default()
	}
	if !(share > 0 && share <= 1) {
		share = defaults.MaxShare
	}
	kept := budget.Kept(total)
	return Options{
		StreamBytes:  min(kept/8, 16<<20),
		SessionBytes: min(kept/4, 64<<20),
		TotalBytes:   kept,
		TenantBytes:  max(1, int64(share*float64(kept))), // 0 would be the default
	}
}

// Bytes that are counted beside the data: for an entry its place in a slice, which has
// room to grow, and the rounding of its allocation; for a stream its log, and its
// place in a map.
const (
	entryCost  = 112
	streamCost = 320
)

// A Store is a [stream.Store] in memory.
//
// Locks: fin guards only the queues of finished streams and the ranking. A session's
// lock may be held while fin is taken, never the other way round, and never two
// sessions'.
type Store struct {
	opts  Options
	total atomic.Int64
	spare atomic.Int64 // of those, the bytes of streams that may be dropped
	held  atomic.Int64 // of those, the bytes that sessions hold; see [Store.Hold]

	mu       sync.RWMutex
	sessions map[stream.SessionKey]*session
	tenants  map[string]*tenant // by name, without nobody
	nobody   *tenant            // the tenant of sessions that are counted against no other

	fin      sync.Mutex
	finished queue
	spent    queue            // finished streams that were acknowledged; they are not in finished
	ranked   ranking[*tenant] // tenants with finished streams

	quit chan struct{}
	done chan struct{}
}

type session struct {
	mu       sync.Mutex
	epoch    uint64
	deleted  bool
	bytes    int64
	beside   int64 // of those, the bytes kept beside streams
	held     int64 // bytes counted by Hold, not in bytes
	logs     map[uint64]*log
	finished queue   // acknowledged streams first
	tenant   *tenant // changes under both mu and Store.fin
	rank
}

type log struct {
	s        *session
	number   uint64
	next     uint64 // sequence of the next entry
	entries  []stream.Entry
	bytes    int64
	last     bool
	queued   bool // it has ended and is not watched: it may be dropped
	spent    bool // and it was acknowledged
	watchers []chan<- struct{}

	at     time.Time // when it ended, or was acknowledged
	places [2]place  // in the two queues of finished streams
}

// New opens an empty store. Close ends its goroutine, which drops streams after
// their time.
func New(opts Options) *Store {
	def := func(v *int64, to int64) {
		if *v <= 0 {
			*v = to
		}
	}
	if opts.Keep <= 0 {
		opts.Keep = defaults.Keep
	}
	def(&opts.StreamBytes, 16<<20)
	def(&opts.SessionBytes, 64<<20)
	def(&opts.TotalBytes, 1<<30)
	def(&opts.TenantBytes, opts.TotalBytes/4*3)
	if opts.Acknowledged <= 0 {
		opts.Acknowledged = time.Minute
	}
	opts.Acknowledged = min(opts.Acknowledged, opts.Keep)
	st := &Store{
		opts:     opts,
		sessions: make(map[stream.SessionKey]*session),
		tenants:  make(map[string]*tenant),
		nobody:   newTenant(""),
		quit:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	go st.expire()
	return st
}

// Close ends the store.
func (st *Store) Close() error {
	close(st.quit)
	<-st.done
	return nil
}

// Kept returns how many bytes are kept in all, and how many may be.
func (st *Store) Kept() (bytes, most int64) { return st.total.Load(), st.opts.TotalBytes }

// Bytes returns how many bytes of calls are kept: without those that sessions hold.
func (st *Store) Bytes() int64 { return st.total.Load() - st.held.Load() }

// Create implements [stream.Store].
func (st *Store) Create(ctx context.Context, key stream.SessionKey, _ []byte) (stream.Lease, error) {
	return st.CreateUnder(ctx, key, 1)
}

// CreateUnder is Create for a session that existed before: under an epoch that it never had.
func (st *Store) CreateUnder(_ context.Context, key stream.SessionKey, epoch uint64) (stream.Lease, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if _, ok := st.sessions[key]; ok {
		return stream.Lease{}, stream.ErrExists
	}
	st.sessions[key] = &session{epoch: epoch, tenant: st.nobody, rank: unranked}
	return stream.Lease{Session: key, Epoch: epoch}, nil
}

func (st *Store) find(key stream.SessionKey) *session {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.sessions[key]
}

// log returns the log of a stream, and makes it if there is none.
func (s *session) log(number uint64) *log {
	l := s.logs[number]
	if l == nil {
		if s.logs == nil {
			s.logs = make(map[uint64]*log, 1)
		}
		l = &log{s: s, number: number, next: 1}
		s.logs[number] = l
	}
	return l
}

func (l *log) tell() {
	for _, w := range l.watchers {
		select {
		case w <- struct{}{}:
		default: // a notification is waiting already
		}
	}
}

// lighten subtracts n bytes from a log, its session, its tenant and the total.
func (st *Store) lighten(s *session, l *log, n int64) {
	l.bytes -= n
	s.bytes -= n
	st.give(s.tenant, n)
}

// trim drops the oldest entry of a log.
func (st *Store) trim(s *session, l *log) {
	st.lighten(s, l, int64(len(l.entries[0].Data))+entryCost)
	l.entries[0] = stream.Entry{}
	l.entries = l.entries[1:]
}

// Read implements [stream.Store]. At the end of a finished stream it returns
// io.EOF.
func (st *Store) Read(_ context.Context, after stream.Cursor, buf []stream.Entry) ([]stream.Entry, error) {
	s := st.find(after.Stream.Session)
	if s == nil {
		return buf, stream.ErrNotFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[after.Stream.Number]
	if l == nil || l.next == 1 {
		return buf, stream.ErrNotFound
	}
	first := l.next - uint64(len(l.entries))
	switch {
	case after.Seq+1 < first, after.Seq >= l.next, !l.wrote(after, first):
		return buf, stream.ErrTrimmed
	case after.Seq+1 == l.next:
		if l.last {
			return buf, io.EOF
		}
		return buf, nil
	}
	from := l.entries[after.Seq+1-first:]
	return append(buf, from[:min(len(from), cap(buf)-len(buf))]...), nil
}

// wrote reports whether the entry at a cursor, which is not before first-1, was
// written under the cursor's epoch. The epoch of a trimmed entry is not known: it
// counts as written under it.
func (l *log) wrote(after stream.Cursor, first uint64) bool {
	if after.Seq < first || after.Epoch == 0 {
		return true
	}
	return l.entries[after.Seq-first].Epoch == after.Epoch
}

// Bounds implements [stream.Store].
func (st *Store) Bounds(_ context.Context, id stream.ID) (oldest, next uint64, err error) {
	s := st.find(id.Session)
	if s == nil {
		return 0, 0, stream.ErrNotFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[id.Number]
	if l == nil || l.next == 1 {
		return 0, 0, stream.ErrNotFound
	}
	return l.next - uint64(len(l.entries)), l.next, nil
}

// Says reports whether a session has a stream other than the standalone one.
func (st *Store) Says(key stream.SessionKey) bool {
	s := st.find(key)
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, has := s.logs[0]
	return len(s.logs) > 1 || len(s.logs) == 1 && !has
}

// Watch implements [stream.Store].
func (st *Store) Watch(id stream.ID, ready chan<- struct{}) (func(), error) {
	s := st.find(id.Session)
	if s == nil {
		return nil, stream.ErrNotFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deleted {
		return nil, stream.ErrNotFound
	}
	l := s.log(id.Number)
	l.watchers = append(l.watchers, ready)
	if l.queued {
		st.hold(l)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := slices.Index(l.watchers, ready); i >= 0 {
			l.watchers = slices.Delete(l.watchers, i, i+1)
		}
		if len(l.watchers) == 0 {
			l.watchers = nil
			if l.last && !l.queued && s.logs[id.Number] == l {
				st.release(l)
			}
		}
		if l.next == 1 && len(l.watchers) == 0 && s.logs[id.Number] == l {
			delete(s.logs, id.Number) // no entry was ever written
		}
	}, nil
}

// Delete implements [stream.Store].
func (st *Store) Delete(_ context.Context, key stream.SessionKey) error {
	st.mu.Lock()
	s := st.sessions[key]
	delete(st.sessions, key)
	st.mu.Unlock()
	if s != nil {
		st.clear(s)
	}
	return nil
}

// clear drops all streams of a session that is no longer in st.sessions.
func (st *Store) clear(s *session) {
	s.mu.Lock()
	s.deleted = true
	for s.finished.oldest != nil {
		st.drop(s.finished.oldest)
	}
	for n, l := range s.logs {
		st.lighten(s, l, l.bytes)
		delete(s.logs, n)
		l.tell()
	}
	st.give(s.tenant, s.beside+s.held)
	st.unhold(s.tenant, s.held)
	s.bytes, s.beside, s.held = s.bytes-s.beside, 0, 0
	t := s.tenant
	s.mu.Unlock()
	st.leave(t)
}
