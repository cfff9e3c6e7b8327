// Package clustertest tests an engine with several nodes, while faults happen to both. The nodes
// append to sessions, read them, take them over and release them, all at once. The operations of
// each node, and their results, are recorded as a history. [Check] checks whether a correct store
// can have that history.
package clustertest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// A Store is a shared store that is a bus too.
type Store interface {
	shared.Store
	cluster.Bus
}

// A Node is one process's connection to the engine.
type Node struct {
	Store Store
	Cut   func(Cut) // changes the network between the node and the engine; nil: it cannot be changed
}

// A Fault is a fault of the engine. Do makes it happen, and ends it.
type Fault struct {
	Name string
	Do   func()
	Once bool // it can happen only once
}

// Options configure a run. The zero value of each field but Open stands for the default given with
// it.
type Options struct {
	// Open opens a new node on the engine, always the same one.
	Open func(t testing.TB) Node
	// OneNode says that the engine takes only one node at a time.
	OneNode bool
	Nodes   int           // at work at a time; 3, or 1
	For     time.Duration // how long; 3 s
	Seed    uint64        // of the operations and the faults; a random one
	Faults  []Fault       // none
}

const (
	sessions = 5
	// settle is how long it may take at the end to acquire each session.
	settle = 60 * time.Second
)

// Run makes nodes work on an engine while faults happen to both. It fails the test if their history
// is wrong.
func Run(t *testing.T, o Options) {
	t.Helper()
	wrong, seed, summary := observe(t, o)
	for i, err := range wrong {
		if i == 10 {
			t.Errorf("and %d more", len(wrong)-i)
			break
		}
		t.Error(err)
	}
	t.Log(summary)
	if t.Failed() {
		t.Logf("seed %d", seed)
	}
}

// observe is Run, but returns the errors.
func observe(t *testing.T, o Options) (wrong []error, seed uint64, summary string) {
	switch {
	case o.OneNode:
		o.Nodes = 1
	case o.Nodes == 0:
		o.Nodes = 3
	}
	if o.For == 0 {
		o.For = 3 * time.Second
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	o.Faults = slices.Clone(o.Faults)
	r := &run{
		t: t, o: o, recorder: recorder{began: time.Now()},
		rng:    rand.New(rand.NewPCG(o.Seed, 1)),
		faults: make(map[string]int),
		alive:  make(map[string]bool),
	}
	for i := range sessions {
		r.keys = append(r.keys, stream.SessionKey(fmt.Sprintf("%016x-%d", rand.Uint64(), i)))
	}
	r.work()
	r.readAll()
	r.closing.Wait()
	history := r.history()
	return append(r.wrong, Check(history)...), o.Seed, r.summary(history)
}

// A run is the state of [Run].
type run struct {
	recorder
	t       *testing.T
	o       Options
	keys    []stream.SessionKey
	rng     *rand.Rand     // for the faults
	faults  map[string]int // how often each has happened
	members []*member
	closing sync.WaitGroup // of nodes that are ending

	mu      sync.Mutex
	claimed int             // claims made
	alive   map[string]bool // nodes by their names
	wrong   []error
}

// fail notes a failure that is not in the history.
func (r *run) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = append(r.wrong, fmt.Errorf(format, args...))
}

// nextClaim returns the number of the next claim. It returns each number a few times.
func (r *run) nextClaim() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claimed++
	return r.claimed / 4
}

// A member is a node at work.
type member struct {
	Node
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// join opens a node, and starts its work.
func (r *run) join() *member {
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{Node: r.o.Open(r.t), cancel: cancel}
	r.setAlive(m.Store.Node(), true)
	for _, key := range r.keys {
		a := &actor{
			run: r, store: m.Store, key: key,
			rng: rand.New(rand.NewPCG(r.o.Seed, rand.Uint64())),
		}
		m.work.Go(func() { a.act(ctx) })
	}
	return m
}

func (r *run) setAlive(node string, alive bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alive[node] = alive
}

func (r *run) isAlive(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alive[node]
}

// end ends a node as a SIGKILL does: no more of its requests reach the engine. A node that can't be
// cut off is closed.
func (r *run) end(m *member) {
	if m.Cut != nil {
		m.Cut(Reset)
	}
	r.setAlive(m.Store.Node(), false)
	m.cancel()
	closing := func() {
		m.work.Wait()
		if err := m.Store.Close(); err != nil && m.Cut == nil {
			r.fail("close: %v", err)
		}
	}
	if r.o.OneNode {
		closing()
		return
	}
	r.closing.Go(closing)
}

// work starts the nodes, and makes faults happen until the time is over. Then it heals the network
// and ends all nodes.
func (r *run) work() {
	for range r.o.Nodes {
		r.members = append(r.members, r.join())
	}
	for end := time.Now().Add(r.o.For); time.Now().Before(end); {
		r.sleep(50, 300)
		r.fault()
	}
	for _, m := range r.members {
		if m.Cut != nil {
			m.Cut(Healed)
		}
	}
	r.sleep(100, 200)
	for _, m := range r.members {
		m.cancel()
		m.work.Wait()
		r.end(m)
	}
}

// sleep waits for a random time, in milliseconds.
func (r *run) sleep(least, most int) {
	time.Sleep(time.Duration(least+r.rng.IntN(most-least)) * time.Millisecond)
}

// fault makes one random fault happen, or none, and ends it.
func (r *run) fault() {
	i := r.rng.IntN(len(r.members))
	m := r.members[i]
	var name string
	switch n := r.rng.IntN(10); {
	case n < 2:
		name = "a node is killed"
		r.end(m)
		r.members[i] = r.join()
	case n < 5 && len(r.o.Faults) > 0:
		j := r.rng.IntN(len(r.o.Faults))
		f := r.o.Faults[j]
		name = f.Name
		f.Do()
		if f.Once {
			r.o.Faults = slices.Delete(r.o.Faults, j, j+1)
		}
	case n < 7 && m.Cut != nil:
		name = "a node is cut off"
		m.Cut(Reset)
		r.sleep(20, 1000)
		m.Cut(Healed)
	case n < 9 && m.Cut != nil:
		name = "a node is cut off in silence"
		m.Cut(Silent)
		r.sleep(20, 2500)
		m.Cut(Healed)
	default:
		return
	}
	r.faults[name]++
}

// readAll acquires all sessions and reads them, at the end.
func (r *run) readAll() {
	r.closingIfOne()
	n := r.o.Open(r.t)
	defer func() {
		if err := n.Store.Close(); err != nil {
			r.fail("close: %v", err)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), settle)
	defer cancel()
	var all sync.WaitGroup
	for _, key := range r.keys {
		a := &actor{run: r, store: n.Store, key: key, rng: rand.New(rand.NewPCG(r.o.Seed, 2)), greedy: true}
		all.Go(func() {
			for a.lease.Epoch == 0 && ctx.Err() == nil {
				a.lookUp(ctx)
			}
			if a.lease.Epoch == 0 {
				r.fail("session %s can't be acquired, %v after all is healed", key, settle)
			}
		})
	}
	all.Wait()
}

// closingIfOne waits for the only node to be closed.
func (r *run) closingIfOne() {
	if r.o.OneNode {
		r.closing.Wait()
	}
}

// summary counts the operations and the faults.
func (r *run) summary(history []*Op) string {
	counts := make(map[string]int)
	entries := 0
	for _, op := range history {
		counts[fmt.Sprintf("%s %s", op.Kind, op.Outcome)]++
		entries += len(op.Entries)
	}
	s := fmt.Sprintf("%d operations in %v; %d entries were read\n", len(history), r.o.For, entries)
	for _, m := range []map[string]int{counts, r.faults} {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			s += fmt.Sprintf("%7d %s\n", m[name], name)
		}
	}
	return s
}
