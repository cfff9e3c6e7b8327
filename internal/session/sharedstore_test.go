package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/internal/observe/observetest"
	"holdfast/internal/reading"
	"holdfast/stream"
)

// A shelf is a shared store in memory, without bounds: its nodes share all that it keeps.
type shelf struct {
	mu       sync.Mutex
	sessions map[stream.SessionKey]*shelved
	claims   map[shared.ClaimID]claimed
	deleted  []stream.SessionKey
}

type shelved struct {
	shared.Session
	streams map[uint64]*shelvedStream
	touched time.Time
}

type shelvedStream struct {
	note    []byte
	entries []stream.Entry
	ended   bool
}

type claimed struct {
	value []byte
	at    time.Time
}

func newShelf() *shelf {
	return &shelf{sessions: map[stream.SessionKey]*shelved{}, claims: map[shared.ClaimID]claimed{}}
}

// session returns the shelf's record of a session, or nil.
func (f *shelf) session(key stream.SessionKey) *shared.Session {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[key]; s != nil {
		c := s.Session
		return &c
	}
	return nil
}

// forgetNotes loses the notes of a session's calls.
func (f *shelf) forgetNotes(key stream.SessionKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for number, st := range f.sessions[key].streams {
		if number != standalone {
			st.note = nil
		}
	}
}

// A shelfNode is one process's access to the shelf.
type shelfNode struct {
	*shelf
	name string
	dead atomic.Bool // no operation gets through

	before atomic.Pointer[func([]stream.Record) error] // called before an Append; nil: nothing is
	taking atomic.Pointer[func()]                      // called before an Acquire; nil: nothing is
	writes atomic.Int64

	// after is called after an AcquireUnfenced, once; nil: nothing is. The lease that it
	// got, overtaken, is refused then.
	after     atomic.Pointer[func()]
	overtaken stream.Lease

	watching sync.Mutex
	watchers map[stream.ID][]chan<- struct{}
	lost     map[stream.SessionKey]uint64 // sessions that the node has forgotten, each up to an epoch
}

func (f *shelf) node(name string) *shelfNode {
	return &shelfNode{shelf: f, name: name, watchers: map[stream.ID][]chan<- struct{}{}, lost: map[stream.SessionKey]uint64{}}
}

func (n *shelfNode) Node() string { return n.name }

// find returns a session that the node can reach. n.mu is held.
func (n *shelfNode) find(key stream.SessionKey) (*shelved, error) {
	if n.dead.Load() {
		return nil, stream.ErrUnavailable
	}
	s := n.sessions[key]
	if s == nil {
		return nil, stream.ErrNotFound
	}
	return s, nil
}

func (n *shelfNode) leased(l stream.Lease) (*shelved, error) {
	s, err := n.find(l.Session)
	if err == nil && (s.Epoch != l.Epoch || s.Owner != n.name || n.overtaken == l) {
		err = stream.ErrFenced
	}
	return s, err
}

func (n *shelfNode) Create(_ context.Context, key stream.SessionKey, about []byte) (stream.Lease, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := n.find(key); !errors.Is(err, stream.ErrNotFound) {
		return stream.Lease{}, err
	}
	n.writes.Add(1)
	n.sessions[key] = &shelved{
		Session: shared.Session{Key: key, Owner: n.name, Epoch: 1, About: about},
		streams: map[uint64]*shelvedStream{}, touched: time.Now(),
	}
	return stream.Lease{Session: key, Epoch: 1}, nil
}

func (n *shelfNode) Append(_ context.Context, l stream.Lease, records []stream.Record) error {
	if f := n.before.Load(); f != nil {
		if err := (*f)(records); err != nil {
			return err
		}
	}
	n.mu.Lock()
	s, err := n.leased(l)
	if err == nil {
		err = s.append(l.Epoch, records)
	}
	n.mu.Unlock()
	if err != nil {
		return err
	}
	n.writes.Add(1)
	for _, r := range records {
		n.tell(stream.ID{Session: l.Session, Number: r.Number})
	}
	return nil
}

func (s *shelved) append(epoch uint64, records []stream.Record) error {
	type end struct {
		next uint64
		over bool
	}
	ends := map[uint64]end{}
	for _, r := range records {
		e, ok := ends[r.Number]
		if !ok {
			e.next = 1
			if st := s.streams[r.Number]; st != nil {
				e = end{uint64(len(st.entries)) + 1, st.ended}
			}
		}
		if e.over || !r.Note && r.Seq != e.next {
			return fmt.Errorf("%w: stream %d: %+v after %+v", stream.ErrConflict, r.Number, r, e)
		}
		if !r.Note {
			e.next, e.over = e.next+1, r.Last
		}
		ends[r.Number] = e
	}
	for _, r := range records {
		st := s.streams[r.Number]
		if st == nil {
			st = &shelvedStream{}
			s.streams[r.Number] = st
		}
		if r.Note {
			st.note = bytes.Clone(r.Data)
			continue
		}
		r.Epoch = epoch
		r.Data = bytes.Clone(r.Data)
		st.entries = append(st.entries, r.Entry)
		st.ended = r.Last
	}
	return nil
}

func (n *shelfNode) tell(id stream.ID) {
	n.watching.Lock()
	defer n.watching.Unlock()
	for _, w := range n.watchers[id] {
		reading.Wake(w)
	}
}

// mine returns a stream of a session that is in this node's memory. n.mu is held.
func (n *shelfNode) mine(id stream.ID) (*shelvedStream, error) {
	s := n.sessions[id.Session]
	if s == nil || s.Owner != n.name || n.lost[id.Session] >= s.Epoch || s.streams[id.Number] == nil {
		return nil, stream.ErrNotFound
	}
	return s.streams[id.Number], nil
}

func (n *shelfNode) Read(_ context.Context, after stream.Cursor, buf []stream.Entry) ([]stream.Entry, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	st, err := n.mine(after.Stream)
	if err != nil {
		return buf, err
	}
	if len(st.entries) == 0 && !st.ended && after.Seq == 0 {
		return buf, stream.ErrNotFound // the stream has only a note
	}
	if after.Seq > uint64(len(st.entries)) ||
		after.Seq > 0 && after.Epoch != 0 && st.entries[after.Seq-1].Epoch != after.Epoch {
		return buf, stream.ErrTrimmed
	}
	rest := st.entries[after.Seq:]
	if len(rest) == 0 && st.ended {
		return buf, io.EOF
	}
	return append(buf, rest[:min(len(rest), cap(buf)-len(buf))]...), nil
}

func (n *shelfNode) Bounds(_ context.Context, id stream.ID) (oldest, next uint64, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	st, err := n.mine(id)
	if err != nil {
		return 0, 0, err
	}
	return 1, uint64(len(st.entries)) + 1, nil
}

func (n *shelfNode) Watch(id stream.ID, ready chan<- struct{}) (func(), error) {
	n.watching.Lock()
	defer n.watching.Unlock()
	n.watchers[id] = append(n.watchers[id], ready)
	return func() {
		n.watching.Lock()
		defer n.watching.Unlock()
		if i := slices.Index(n.watchers[id], ready); i >= 0 {
			n.watchers[id] = slices.Delete(n.watchers[id], i, i+1)
		}
	}, nil
}

func (n *shelfNode) Delete(_ context.Context, key stream.SessionKey) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead.Load() {
		return stream.ErrUnavailable
	}
	n.deleted = append(n.deleted, key)
	delete(n.sessions, key)
	return nil
}

func (n *shelfNode) Acknowledge(stream.ID) {}

func (n *shelfNode) Count(stream.Lease, string) {}

func (n *shelfNode) Close() error { return nil }

func (n *shelfNode) Lookup(_ context.Context, key stream.SessionKey) (shared.Session, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.find(key)
	if err != nil {
		return shared.Session{}, err
	}
	return s.Session, nil
}

func (n *shelfNode) Acquire(_ context.Context, was shared.Session) (shared.Taken, error) {
	if f := n.taking.Load(); f != nil {
		(*f)()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.find(was.Key)
	switch {
	case err != nil:
		return shared.Taken{}, err
	case s.Epoch != was.Epoch || s.Owner != was.Owner:
		return shared.Taken{}, stream.ErrConflict
	}
	s.Epoch++
	s.Owner, s.Open, s.touched = n.name, false, time.Now()
	t := shared.Taken{Lease: stream.Lease{Session: s.Key, Epoch: s.Epoch}, About: s.About}
	for number, st := range s.streams {
		t.Streams = append(t.Streams, shared.Stream{
			Number: number, Note: st.note, Oldest: 1, Next: uint64(len(st.entries)) + 1, Ended: st.ended,
		})
	}
	slices.SortFunc(t.Streams, func(a, b shared.Stream) int { return int(a.Number) - int(b.Number) })
	return t, nil
}

func (n *shelfNode) AcquireUnfenced(ctx context.Context, was shared.Session) (shared.Taken, error) {
	t, err := n.Acquire(ctx, was)
	if err != nil {
		return t, err
	}
	if f := n.after.Swap(nil); f != nil {
		(*f)()
		n.mu.Lock()
		n.overtaken = t.Lease
		n.mu.Unlock()
	}
	return t, nil
}

func (n *shelfNode) Fence(_ context.Context, l stream.Lease) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, err := n.leased(l)
	return err
}

func (n *shelfNode) Release(_ context.Context, l stream.Lease, open bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.leased(l)
	if err == nil {
		s.Owner, s.Open = "", open
	}
	return err
}

func (n *shelfNode) Forget(l stream.Lease) {
	n.mu.Lock()
	n.lost[l.Session] = max(n.lost[l.Session], l.Epoch)
	n.mu.Unlock()
	n.watching.Lock()
	defer n.watching.Unlock()
	for id, all := range n.watchers {
		for _, w := range all {
			if id.Session == l.Session {
				reading.Wake(w)
			}
		}
	}
}

func (n *shelfNode) Touch(_ context.Context, l stream.Lease) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.leased(l)
	if err == nil {
		s.touched = time.Now()
	}
	return err
}

func (n *shelfNode) Sessions(_ context.Context, yield func(shared.Session) bool) error {
	n.mu.Lock()
	var all []shared.Session
	for _, s := range n.sessions {
		all = append(all, s.Session)
	}
	n.mu.Unlock()
	for _, s := range all {
		if !yield(s) {
			break
		}
	}
	return nil
}

func (n *shelfNode) Claim(_ context.Context, id shared.ClaimID, value []byte) ([]byte, time.Duration, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead.Load() {
		return nil, 0, stream.ErrUnavailable
	}
	if c, ok := n.claims[id]; ok {
		return c.value, time.Since(c.at), nil
	}
	n.claims[id] = claimed{value, time.Now()}
	return nil, 0, nil
}

func (n *shelfNode) Unclaim(_ context.Context, id shared.ClaimID, value []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead.Load() {
		return stream.ErrUnavailable
	}
	if bytes.Equal(n.claims[id].value, value) {
		delete(n.claims, id)
	}
	return nil
}

// fleetNode is a house over the shelf.
type fleetNode struct {
	*house
	node *shelfNode
}

// safeTools are Options under which the tool "safe" may be called again.
func safeTools() Options {
	return Options{Safe: func(tool string) bool { return tool == "safe" }, Keep: 10 * time.Minute}
}

// add adds a node, which is closed at the end.
func (f *shelf) add(t testing.TB, name string, o Options) *fleetNode {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	o.Observers = append(o.Observers, observetest.New(t))
	n := &fleetNode{node: f.node(name)}
	n.house = &house{t: t, desk: &desk{}, store: n.node}
	n.Manager = NewManager(n.node, n.desk, o)
	t.Cleanup(n.Close)
	return n
}

// kill lets none of the node's later operations get through to other nodes.
func (n *fleetNode) kill() { n.node.dead.Store(true) }

// take takes over a session as placement does.
func (n *fleetNode) take(s *Session) *Session {
	n.t.Helper()
	here, at, err := n.Locate(n.t.Context(), s.key, s.principal)
	if err == nil && here == nil {
		here, err = n.TakeOver(n.t.Context(), at)
	}
	if err != nil {
		n.t.Fatalf("take-over: %v", err)
	}
	return here
}
