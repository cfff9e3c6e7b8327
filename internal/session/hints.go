package session

import (
	linked "container/list"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// What follows keeps what other nodes have told of calls that they know: of stranded ones, and of those in flight (flying.go). A request that
// may be one of these is asked for there (lend.go) before it begins here.

// mostHints bounds how many a node keeps of stranded calls, and of calls in flight. If there are more, the oldest is forgotten.
const mostHints = 20_000

// A hint says that a node knows, or knew, a call that is found by a key, and is stranded, or may be.
type hint struct {
	key  digest
	node string
	name uint64 // of the call, there
	// inFlight says that it may be stranded only when it is asked for, and near that its client was connected to the node then.
	inFlight, near bool
	since          time.Time
}

// hints are those of a node. The zero value is ready to use. Its lock is taken last.
type hints struct {
	n    atomic.Int64
	told atomic.Int64
	mu   sync.Mutex
	all  linked.List // of *hint, the oldest first
	by   map[digest][]*linked.Element
}

// Hints returns how many keys of stranded calls other nodes have told.
func (m *Manager) Hints() int { return int(m.hints.told.Load()) }

// HintsKept returns how many of them are kept.
func (m *Manager) HintsKept() int { return int(m.hints.n.Load()) }

// FlightsKept returns how many keys of calls that are in flight on other nodes are kept.
func (m *Manager) FlightsKept() int { return int(m.flying.far.n.Load()) }

// add adds a hint, and forgets those that are older than most.
func (t *hints) add(h *hint, most time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.all.Front(); e != nil && (t.all.Len() >= mostHints || h.since.Sub(e.Value.(*hint).since) > most); e = t.all.Front() {
		t.remove(e)
	}
	for _, e := range t.by[h.key] {
		if old := e.Value.(*hint); old.node == h.node && (!h.inFlight || old.name == h.name) {
			t.remove(e)
			break
		}
	}
	if t.by == nil {
		t.by = make(map[digest][]*linked.Element)
	}
	t.by[h.key] = append(t.by[h.key], t.all.PushBack(h))
	t.n.Store(int64(t.all.Len()))
	t.told.Add(1)
}

// remove takes a hint out. t.mu is held.
func (t *hints) remove(e *linked.Element) {
	h := t.all.Remove(e).(*hint)
	if rest := slices.DeleteFunc(t.by[h.key], func(x *linked.Element) bool { return x == e }); len(rest) > 0 {
		t.by[h.key] = rest
	} else {
		delete(t.by, h.key)
	}
	t.n.Store(int64(t.all.Len()))
}

// find returns the hints with some keys that are no older than most, the newest of each key first.
func (t *hints) find(keys keysOf, most time.Duration) (all []hint) {
	if t.n.Load() == 0 { // as a rule
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		of := t.by[key]
		for i := len(of) - 1; i >= 0; i-- {
			if h := of[i].Value.(*hint); time.Since(h.since) <= most {
				all = append(all, *h)
			}
		}
	}
	return all
}

// forget forgets what a node has told of a call, for a key. It reports whether that was known.
func (t *hints) forget(key digest, node string, name uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.by[key] {
		if h := e.Value.(*hint); h.node == node && h.name == name {
			t.remove(e)
			return true
		}
	}
	return false
}

// take takes out all hints of a node.
func (t *hints) take(node string) (all []*hint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.all.Front(); e != nil; {
		next := e.Next()
		if h := e.Value.(*hint); h.node == node {
			all = append(all, h)
			t.remove(e)
		}
		e = next
	}
	return all
}

// lands notes that a node's call is in flight no more, so that it is not lost with the node.
func (t *hints) lands(keys []byte, node string, name uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range eachKey(keys) {
		for _, e := range t.by[key] {
			if h := e.Value.(*hint); h.node == node && h.name == name {
				h.near = false
			}
		}
	}
}

// drop forgets a hint that has turned out to be wrong, unless its node has told it anew since.
func (t *hints) drop(h hint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.by[h.key] {
		if *e.Value.(*hint) == h {
			t.remove(e)
			return
		}
	}
}
