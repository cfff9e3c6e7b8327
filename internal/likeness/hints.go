package likeness

import (
	linked "container/list"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// MostHints bounds how many hints a node keeps. Beyond that, the oldest hint is forgotten.
const MostHints = 20_000

// A Hint says that a node knows, or knew, a call that has a key, and is stranded, or may be.
type Hint struct {
	Key  Digest
	Node string
	Name uint64 // of the call, on that node
	// InFlight says that the call is in flight, and may be stranded by the time it is asked for. Near says that its client was
	// connected to that node.
	InFlight, Near bool
	Since          time.Time
}

// Hints are the hints that a node keeps. The zero value is ready to use. Its lock is taken last.
type Hints struct {
	n    atomic.Int64
	told atomic.Int64
	mu   sync.Mutex
	all  linked.List // of *Hint, the oldest first
	by   map[Digest][]*linked.Element
}

// Add adds a hint, and forgets hints that are older than most.
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

// Find returns the hints with one of the keys that are no older than most: in the order of the keys, the newest of each key first.
func (t *Hints) Find(keys Keys, most time.Duration) (all []Hint) {
	if t.n.Load() == 0 { // the usual case
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

// Forget forgets a node's hint of a call, for a key. It reports whether there was one.
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

// Land notes that a node's call is not in flight any more, so that it is not lost with the node.
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

// Drop forgets a hint that has turned out to be wrong, unless its node has given it again since.
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

// Kept returns how many hints are kept.
func (t *Hints) Kept() int { return int(t.n.Load()) }

// Told returns how many hints were ever added.
func (t *Hints) Told() int { return int(t.told.Load()) }
