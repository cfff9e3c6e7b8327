// Package idempotency remembers which calls of a node were begun under which idempotency keys, so
// that a request that is sent again under its key finds the call that it began the first time.
// docs/decisions/0009-idempotency-keys.md defines the scope of a key. Nodes share claims in the
// store, and the notes of calls.
//
// [Keys] are the keys of a node. They begin calls by a function of their caller, and ask about
// sessions by [Sessions].
package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"sync"
	"time"

	"holdfast/stream"
)

// An ID is an idempotency key together with its scope.
type ID [sha256.Size]byte

// A Sum stands for a request. It is short: only a client itself could gain by making two of its
// requests collide.
type Sum [16]byte

// SumOf returns the sum of a request's body.
func SumOf(body []byte) Sum {
	sum := sha256.Sum256(body)
	return Sum(sum[:16])
}

// A Scope is the owner of keys: the same text in another scope is another key.
type Scope struct {
	kind byte
	of   string
}

// OfPrincipal returns the scope of a named principal, in all its sessions.
func OfPrincipal(text string) Scope { return Scope{'p', text} }

// OfSession returns the scope of a session with an anonymous client.
func OfSession(session stream.SessionKey) Scope { return Scope{'s', string(session)} }

// OfCredential returns the scope of clients without a name or a session that have the same
// credential, at a server. The server's name has no NUL.
func OfCredential(server string, credential []byte) Scope {
	return Scope{'c', server + "\x00" + string(credential)}
}

// OfTenant returns the scope of a tenant's clients that have no credential either, at a server.
func OfTenant(server, tenant string) Scope { return Scope{'t', server + "\x00" + tenant} }

// KeyID names a key in a scope.
func KeyID(scope Scope, key string) ID {
	text := append(make([]byte, 0, 128), scope.kind)
	text = binary.BigEndian.AppendUint64(text, uint64(len(scope.of)))
	return sha256.Sum256(append(append(text, scope.of...), key...))
}

// TwinID names a key with a request that is made under it, in a scope. It is the same for the same
// request that is made under the same key with another credential.
func TwinID(scope Scope, key string, sum Sum) ID {
	text := append(make([]byte, 0, 128), 'w', scope.kind)
	text = binary.BigEndian.AppendUint64(text, uint64(len(scope.of)))
	text = append(append(text, scope.of...), sum[:]...)
	return sha256.Sum256(append(text, key...))
}

// ForwardID names a POST to the session that another node has forwarded under a name, however often
// it arrives. No client's key has the same ID.
func ForwardID(session stream.SessionKey, name string) ID {
	text := append(make([]byte, 0, 128), 'o')
	text = append(append(text, session...), 0)
	return sha256.Sum256(append(text, name...))
}

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

// tombstone is a key that outlives its call.
type tombstone struct {
	id ID
	at time.Time
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

// Expire notes that the call of a key is no longer kept.
func (r *Registry) Expire(id ID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[id]
	if e == nil || e.State != Begun {
		return
	}
	e.State = Expired
	r.tombstones = append(r.tombstones, tombstone{id, now})
	r.clear(now)
}

// clear forgets the tombstones that are too old or too many. r.mu is held.
func (r *Registry) clear(now time.Time) {
	for len(r.tombstones) > 0 && (len(r.tombstones) > mostTombstones || now.Sub(r.tombstones[0].at) > tombstoneFor) {
		delete(r.known, r.tombstones[0].id)
		r.tombstones = r.tombstones[1:]
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

// Due reports whether it is time for a sweep.
func (r *Registry) Due(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known != nil && now.Sub(r.swept) >= SweepEvery
}

// SweptBefore reports whether there are entries, and the last sweep was before a time.
func (r *Registry) SweptBefore(at time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known != nil && r.swept.Before(at)
}

// A Left is a client's key that has outlived its call, in another scope than the session's.
type Left struct {
	ID      ID
	Session stream.SessionKey
}

// Sweep looks through the entries for calls that are no longer kept: kept reports whether a call's
// stream is. unclaimable reports, for the session of such a call, whether no client could use the
// key, or the store knows it; then no tombstone is needed. Both are called without a lock. Sweep
// returns the clients' keys of these calls, without those scoped to their session.
func (r *Registry) Sweep(kept func(stream.SessionKey, uint64) bool, unclaimable func(session stream.SessionKey, scoped bool) bool) (left []Left) {
	type place struct {
		id ID
		entry
	}
	r.mu.Lock()
	all := make([]place, 0, len(r.known)-len(r.tombstones))
	for id, e := range r.known {
		if e.State == Begun {
			all = append(all, place{id, *e})
		}
	}
	r.swept, r.crowd = time.Now(), math.MaxInt // until this sweep is done, no other one is due
	r.mu.Unlock()
	stay := 0
	for _, p := range all {
		switch forward := !p.forward.IsZero(); {
		case kept(p.Session, p.Number), forward && time.Since(p.forward) < forwardFor: // the POST may come again
			stay++
			continue
		case forward, unclaimable(p.Session, p.scoped):
			r.Free(p.id)
		default:
			r.Expire(p.id, time.Now())
		}
		if p.forward.IsZero() && !p.scoped {
			left = append(left, Left{p.id, p.Session})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.crowd = max(crowd, 2*stay)
	r.clear(time.Now())
	if len(r.known) < len(all)/2 { // a map does not shrink by itself
		known := make(map[ID]*entry, len(r.known))
		maps.Copy(known, r.known)
		r.known = known
	}
	if len(r.known) == 0 {
		r.known, r.tombstones = nil, nil
	}
	return left
}

// Len returns how many keys are known, and how many of them are tombstones.
func (r *Registry) Len() (known, tombstones int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.known), len(r.tombstones)
}
