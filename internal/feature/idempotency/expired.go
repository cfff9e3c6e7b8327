package idempotency

import (
	"maps"
	"math"
	"time"

	"holdfast/stream"
)

// tombstone is a key that outlives its call.
type tombstone struct {
	id ID
	at time.Time
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
