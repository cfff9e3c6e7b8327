package session

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
	"holdfast/internal/mcptest"
	"holdfast/internal/observe/observetest"
	"holdfast/stream"
)

// A shelf is an engine in memory: the stores of its nodes share all that the shelf keeps.
type shelf struct{ *logtest.Engine }

func newShelf() *shelf { return &shelf{logtest.New(logtest.Options{MaxFrame: 8 << 20})} }

// session returns the shelf's record of a session, or nil.
func (f *shelf) session(key stream.SessionKey) *shared.Session {
	eye := f.node("eye")
	defer func() { _ = eye.Close() }()
	if s, err := eye.Lookup(context.Background(), key); err == nil {
		return &s
	}
	return nil
}

// A shelfNode is one process's access to the shelf.
type shelfNode struct {
	shared.Store
	handle *logtest.Handle

	before      atomic.Pointer[func([]stream.Record) error] // called before an Append; nil: nothing is
	taking      atomic.Pointer[func()]                      // called before an Acquire; nil: nothing is
	after       atomic.Pointer[func()]                      // called after an AcquireUnfenced, once; nil: nothing is
	writes      atomic.Int64
	notes       sync.Map    // the last note of each stream, by the number of the stream
	forgetNotes atomic.Bool // an Acquire gets no notes of calls
	closing     sync.Once
	closed      error // of Close
}

// Close closes the node's store. It may be called again.
func (n *shelfNode) Close() error {
	n.closing.Do(func() { n.closed = n.Store.Close() })
	return n.closed
}

// named is a handle of a node with a name that the test chooses.
type named struct {
	*logtest.Handle
	name string
}

func (h named) Node() string { return h.name }

func (f *shelf) node(name string) *shelfNode {
	h := f.Open()
	o := durable.Options{Patience: time.Second, StreamBytes: 1 << 30, SessionBytes: 1 << 30, Logger: slog.New(slog.DiscardHandler)}
	return &shelfNode{Store: durable.New(named{h, name}, o), handle: h}
}

// Revive lets a session begin again.
func (n *shelfNode) Revive(ctx context.Context, key stream.SessionKey, about []byte, epoch uint64) (stream.Lease, error) {
	return n.Store.(reviver).Revive(ctx, key, about, epoch)
}

func (n *shelfNode) Append(ctx context.Context, l stream.Lease, records []stream.Record) error {
	if f := n.before.Load(); f != nil {
		if err := (*f)(records); err != nil {
			return err
		}
	}
	err := n.Store.Append(ctx, l, records)
	if err == nil {
		n.writes.Add(1)
		for _, r := range records {
			if r.Note {
				n.notes.Store(r.Number, string(r.Data))
			}
		}
	}
	return err
}

func (n *shelfNode) Acquire(ctx context.Context, was shared.Session) (shared.Taken, error) {
	return n.acquire(ctx, was, n.Store.Acquire)
}

func (n *shelfNode) AcquireUnfenced(ctx context.Context, was shared.Session) (shared.Taken, error) {
	t, err := n.acquire(ctx, was, n.Store.(lateFencer).AcquireUnfenced)
	if f := n.after.Swap(nil); f != nil && err == nil {
		(*f)()
	}
	return t, err
}

func (n *shelfNode) Fence(ctx context.Context, l stream.Lease) error {
	return n.Store.(lateFencer).Fence(ctx, l)
}

func (n *shelfNode) acquire(ctx context.Context, was shared.Session, by func(context.Context, shared.Session) (shared.Taken, error)) (shared.Taken, error) {
	if f := n.taking.Load(); f != nil {
		(*f)()
	}
	t, err := by(ctx, was)
	for i := range t.Streams {
		if n.forgetNotes.Load() && t.Streams[i].Number != standalone {
			t.Streams[i].Note = nil
		}
	}
	return t, err
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
	t.Cleanup(func() {
		if n.node.handle.IsCut() { // the store would wait for its engine, for each session
			_ = n.node.Close()
		}
		n.close()
	})
	return n
}

// kill lets none of the node's later operations get through to other nodes. Unless the test holds appends back, the messages before it are stored.
func (n *fleetNode) kill() {
	n.t.Helper()
	for _, s := range n.all() {
		mcptest.Eventually(n.t, "the messages to be stored", time.Minute, func() bool { return s.log.IsIdle() || n.node.before.Load() != nil })
	}
	n.node.handle.Cut(true)
}

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
