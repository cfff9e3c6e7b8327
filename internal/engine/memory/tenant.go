package memory

import (
	"sync/atomic"

	"holdfast/stream"
)

// A tenant has the counts of bytes of its sessions. evict.go decides which tenant's streams
// are dropped when there is no room.
type tenant struct {
	name     string
	sessions int // guarded by Store.mu; not counted for Store.nobody
	bytes    atomic.Int64
	spare    atomic.Int64 // of those, the bytes of streams that may be dropped
	held     atomic.Int64 // of those, the bytes that its sessions hold

	// Guarded by Store.fin.
	ranked ranking[*session] // sessions with finished streams
	rank
}

func newTenant(name string) *tenant { return &tenant{name: name, rank: unranked} }

// Count implements [stream.Store].
func (st *Store) Count(lease stream.Lease, name string) {
	st.mu.Lock()
	s := st.sessions[lease.Session]
	if s == nil || name == "" || s.epoch != lease.Epoch || s.tenant != st.nobody {
		st.mu.Unlock()
		return
	}
	t := st.tenants[name]
	if t == nil {
		t = newTenant(name)
		st.tenants[name] = t
	}
	t.sessions++
	st.mu.Unlock()

	s.mu.Lock()
	gone := s.deleted
	if !gone {
		st.fin.Lock()
		st.unrank(s)
		s.tenant = t
		spare := int64(0)
		for l := s.finished.oldest; l != nil; l = l.places[inSession].newer {
			spare += l.bytes
		}
		st.nobody.held.Add(-s.held)
		t.held.Add(s.held)
		st.nobody.bytes.Add(-s.bytes - s.held)
		st.nobody.spare.Add(-spare)
		t.bytes.Add(s.bytes + s.held)
		t.spare.Add(spare)
		st.rankSession(s)
		st.fin.Unlock()
	}
	s.mu.Unlock()
	if gone {
		st.leave(t)
	}
}

// leave counts one session of a tenant less, and forgets the tenant after its last.
func (st *Store) leave(t *tenant) {
	if t == st.nobody {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if t.sessions--; t.sessions == 0 {
		delete(st.tenants, t.name)
	}
}

// most returns how many bytes a tenant may keep.
func (st *Store) most(t *tenant) int64 {
	if t == st.nobody {
		return st.opts.TotalBytes
	}
	return min(st.opts.TenantBytes, st.opts.TotalBytes)
}

// take counts n more bytes against the tenant and the total, if their limits allow
// it or if it must, and reports whether it did.
func (st *Store) take(t *tenant, n int64, must bool) bool {
	if !grow(&st.total, n, st.opts.TotalBytes, must) {
		return false
	}
	if !grow(&t.bytes, n, st.most(t), must) {
		st.total.Add(-n)
		return false
	}
	return true
}

// grow adds n to kept and reports true, unless the sum is more than most. With must it always does.
func grow(kept *atomic.Int64, n, most int64, must bool) bool {
	for !must && n > 0 {
		was := kept.Load()
		if was+n > most {
			return false
		}
		if kept.CompareAndSwap(was, was+n) {
			return true
		}
	}
	kept.Add(n)
	return true
}

// give counts n bytes less against the tenant and the total.
func (st *Store) give(t *tenant, n int64) {
	st.total.Add(-n)
	t.bytes.Add(-n)
}
