package likeness

import (
	linked "container/list"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// MostHints bounds how many a node keeps of stranded calls, and of calls in flight. If there are more, the oldest is forgotten.
const MostHints = 20_000

// A Hint says that a node knows, or knew, a call that is found by a key, and is stranded, or may be.
type Hint struct {
	Key  Digest
	Node string
	Name uint64 // of the call, there
	// InFlight says that it may be stranded only when it is asked for, and Near that its client was connected to the node then.
	InFlight, Near bool
	Since          time.Time
}

// Hints are those of a node. The zero value is ready to use. Its lock is taken last.
type Hints struct {
	n    atomic.Int64
	told atomic.Int64
	mu   sync.Mutex
	all  linked.List // of *Hint, the oldest first
	by   map[Digest][]*linked.Element
}

// Add adds a hint, and forgets those that are older than most.
func (t *Hints) Add(h *Hint, most time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.all.Front(); e != nil && (t.all.Len() >= MostHints || h.Since.Sub(e.Value.(*Hint).Since) > most); e = t.all.Front() {
		t.remove(e)
	}
	for _, e := range t.by[h.Key] {
		if old := e.Value.(*Hint); old.Node == h.Node && (!h.InFlight || old.Name == h.Name) {
			t.remove(e)
			break
		}
	}
	if t.by == nil {
		t.by = make(map[Digest][]*linked.Element)
	}
	t.by[h.Key] = append(t.by[h.Key], t.all.PushBack(h))
	t.n.Store(int64(t.all.Len()))
	t.told.Add(1)
}

// remove takes a hint out. t.mu is held.
func (t *Hints) remove(e *linked.Element) {
	h := t.all.Remove(e).(*Hint)
	if rest := slices.DeleteFunc(t.by[h.Key], func(x *linked.Element) bool { return x == e }); len(rest) > 0 {
		t.by[h.Key] = rest
	} else {
		delete(t.by, h.Key)
	}
	t.n.Store(int64(t.all.Len()))
}

// Find returns the hints with some keys that are no older than most, the newest of each key first.
func (t *Hints) Find(keys Keys, most time.Duration) (all []Hint) {
	if t.n.Load() == 0 { // as a rule
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		of := t.by[key]
		for i := len(of) - 1; i >= 0; i-- {
			if h := of[i].Value.(*Hint); time.Since(h.Since) <= most {
				all = append(all, *h)
			}
		}
	}
	return all
}

// Forget forgets what a node has told of a call, for a key. It reports whether that was known.
func (t *Hints) Forget(key Digest, node string, name uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.by[key] {
		if h := e.Value.(*Hint); h.Node == node && h.Name == name {
			t.remove(e)
			return true
		}
	}
	return false
}

// Take takes out all hints of a node.
func (t *Hints) Take(node string) (all []*Hint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.all.Front(); e != nil; {
		next := e.Next()
		if h := e.Value.(*Hint); h.Node == node {
			all = append(all, h)
			t.remove(e)
		}
		e = next
	}
	return all
}

// Land notes that a node's call is in flight no more, so that it is not lost with the node.
func (t *Hints) Land(keys []byte, node string, name uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range EachKey(keys) {
		for _, e := range t.by[key] {
			if h := e.Value.(*Hint); h.Node == node && h.Name == name {
				h.Near = false
			}
		}
	}
}

// Drop forgets a hint that has turned out to be wrong, unless its node has told it anew since.
func (t *Hints) Drop(h Hint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.by[h.Key] {
		if *e.Value.(*Hint) == h {
			t.remove(e)
			return
		}
	}
}

// Kept returns how many are kept.
func (t *Hints) Kept() int { return int(t.n.Load()) }

// Told returns how many were added.
func (t *Hints) Told() int { return int(t.told.Load()) }
