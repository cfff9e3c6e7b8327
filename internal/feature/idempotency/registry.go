// Package idempotency remembers which calls of a node were begun under which idempotency keys, so
// that a request that is sent again under its key finds the call that it began the first time.
// docs/decisions/0009-idempotency-keys.md defines the scope of a key. Nodes share claims in the
// store, and the notes of calls.
//
// [Keys] are the keys of a node. They begin calls by a function of their caller, and ask about
// sessions by [Sessions].
package idempotency

import (
	"sync"
	"time"

	"holdfast/stream"
)

// A State is the state of the call of a key.
//
//	state      meaning
//	Claimed    a request is about to begin the call
//	Begun      the call has begun, and something of it may be kept
//	Expired    nothing is kept of the call: the entry is a tombstone, so that the
//	           request does not run again
//
//	from              to         when
//	(none)            Claimed    [Registry.Claim]
//	(none), Begun     Begun      [Registry.Restore]: the session was taken over
//	Claimed           Begun      [Registry.Begin]
//	Begun             Expired    [Registry.Expire], [Registry.Sweep]
//	Claimed, Begun    (none)     [Registry.Free], [Registry.Sweep]
//	Expired           (none)     it is too old, or there are too many
type State uint8

// The states of an entry.
const (
	Claimed State = iota
	Begun
	Expired
)

// An Entry is the registry's knowledge of a key.
type Entry struct {
	State   State
	Sum     Sum
	Session stream.SessionKey // with Number, the stream of the call, once it has begun
	Number  uint64
	Settled <-chan struct{} // closed when the call has begun, or could not
}

// entry is an Entry with fields that only the registry needs.
type entry struct {
	Entry
	settled chan struct{}
	scoped  bool      // its scope is the session
	forward time.Time // when a node named a POST by this key, which leaves no tombstone; zero for a client's key
	found   *entry    // the entry of a claimed key that was found meanwhile in a session that was taken over
}

const (
	// tombstoneFor is how long a call that is no longer kept is remembered by its key,
	// and mostTombstones how many of them.
	tombstoneFor   = 24 * time.Hour
	mostTombstones = 1 << 16

	// crowd is the number of entries beyond which a new one makes a sweep due.
	crowd = 1 << 16

	// SweepEvery is how often the entries are swept otherwise.
	SweepEvery = 10 * time.Minute

	// forwardFor is the longest time after which another node may send a POST again.
	forwardFor = time.Minute
)

// A Registry holds the keys that a node knows. Its methods may be called concurrently;
// none of them waits, and its zero value is ready.
//
// An entry lives as long as the stream of its call, until the next sweep; a client's key may leave
// a tombstone.
type Registry struct {
	mu         sync.Mutex
	known      map[ID]*entry
	tombstones []tombstone // oldest first
	crowd      int         // how many entries are too many to go on without a sweep
	swept      time.Time
}

// add adds an entry. r.mu is held.
func (r *Registry) add(id ID, e *entry) {
	if r.known == nil {
		r.known = make(map[ID]*entry)
		r.crowd, r.swept = crowd, time.Now()
	}
	r.known[id] = e
}

// Claim returns the entry of a key. If the key has none, Claim takes it for a call of the session
// that is about to begin: then the caller must call [Registry.Begin] or [Registry.Free]. scoped
// says that the session is the key's scope, and forward that the key is a node's name for a POST.
func (r *Registry) Claim(id ID, sum Sum, session stream.SessionKey, scoped, forward bool) (known Entry, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.known[id]; e != nil {
		return e.Entry, false
	}
	settled := make(chan struct{})
	e := &entry{Entry: Entry{Sum: sum, Session: session, Settled: settled}, settled: settled, scoped: scoped}
	if forward {
		e.forward = time.Now()
	}
	r.add(id, e)
	return Entry{}, true
}

// Begin notes that the call of a claimed key has begun. crowded reports whether the
// registry should be swept.
func (r *Registry) Begin(id ID, number uint64) (crowded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[id]
	if e == nil {
		return false // the key was freed meanwhile
	}
	e.Number, e.State = number, Begun
	close(e.settled)
	return len(r.known)-len(r.tombstones) > r.crowd
}

// Free forgets a key: its call has not begun, or was not delivered.
func (r *Registry) Free(id ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[id]
	if e == nil || e.State == Expired {
		return
	}
	if e.found != nil {
		r.known[id] = e.found
	} else {
		delete(r.known, id)
	}
	if e.State == Claimed {
		close(e.settled)
	}
}

// Restore notes the key of a call in a session that was taken over. If the key is claimed,
// [Registry.Found] says so to the claimant.
func (r *Registry) Restore(id ID, sum Sum, session stream.SessionKey, number uint64, scoped, forward bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &entry{Entry: Entry{State: Begun, Sum: sum, Session: session, Number: number}, scoped: scoped}
	if forward {
		e.forward = time.Now()
	}
	if now := r.known[id]; now != nil && now.State == Claimed {
		now.found = e
		return
	}
	r.add(id, e)
}

// Find returns the entry of a key, and whether it has one.
func (r *Registry) Find(id ID) (known Entry, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[id]
	if e == nil {
		return known, false
	}
	return e.Entry, true
}

// Found reports whether, since the key was claimed, its call was found in a session that
// was taken over.
func (r *Registry) Found(id ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[id]
	return e != nil && e.found != nil
}

// Len returns how many keys are known, and how many of them are tombstones.
func (r *Registry) Len() (known, tombstones int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.known), len(r.tombstones)
}
