package session

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/idempotency"
	"holdfast/stream"
)

// What follows drops claims to idempotency keys from a store that nodes share: once nothing is kept of their calls, for
// as long again as ended calls are kept. A call that is in flight has its claim, however long it takes. Of a node
// that is lost the claims stay until the store forgets them.

// mostClaims bounds how many claims to keys of one client stay of whose calls nothing is kept, and claimsInAll those
// of all. If there are more, the oldest is dropped: its key counts as new at other nodes.
const (
	mostClaims  = 1 << 12
	claimsInAll = 1 << 16
)

// claims are those of which nothing else is kept, oldest first, by the tenants whose keys they are. The zero value is
// ready.
type claims struct {
	mu    sync.Mutex
	of    map[string][]leftClaim
	n     int                          // in all
	ended map[stream.SessionKey]string // sessions with keys that have ended here since the last sweep, and their tenants
}

type leftClaim struct {
	id idempotency.ID
	at time.Time // when it was found so
}

// end notes that a session has ended in which calls were made under keys.
func (c *claims) end(s *Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.ended = make(map[stream.SessionKey]string)
	}
	c.ended[s.key] = s.tenant.name
}

// endedHere returns the sessions that have ended here since it was called last.
func (c *claims) endedHere() map[stream.SessionKey]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := c.ended
	c.ended = nil
	return ended
}

// add notes a claim of a tenant, and returns those for which there is no room.
func (c *claims) add(tenant string, id idempotency.ID, now time.Time) (over []idempotency.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[string][]leftClaim)
	}
	c.of[tenant] = append(c.of[tenant], leftClaim{id, now})
	all := c.of[tenant]
	c.n++
	for len(all) > mostClaims || len(all) > 0 && c.n > claimsInAll {
		over = append(over, all[0].id)
		all = all[1:]
		c.n--
	}
	c.of[tenant] = all
	if len(all) == 0 {
		delete(c.of, tenant)
	}
	return over
}

// due returns the claims that were noted before a time, and forgets them.
func (c *claims) due(before time.Time) (all []idempotency.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for tenant, left := range maps.All(c.of) {
		for len(left) > 0 && left[0].at.Before(before) {
			all = append(all, left[0].id)
			left = left[1:]
			c.n--
		}
		if c.of[tenant] = left; len(left) == 0 {
			delete(c.of, tenant)
		}
	}
	return all
}

// claimsKept is how long a claim stays of whose call nothing is kept.
func (m *Manager) claimsKept() time.Duration { return cmp.Or(m.opts.Keep, 10*time.Minute) }

// leaveClaims notes the claims to keys of whose calls nothing is kept, in sessions that are here or have ended
// here. Of a session that another node has taken they are that one's.
func (m *Manager) leaveClaims(left []idempotency.Left, ended map[stream.SessionKey]string) {
	var over []idempotency.ID
	now := time.Now()
	for _, key := range left {
		tenant, ok := ended[key.Session]
		if !ok {
			m.mu.RLock()
			s := m.sessions[key.Session]
			m.mu.RUnlock()
			if s == nil || s.isClosed() { // it may be on its way to another node
				continue
			}
			tenant = s.tenant.name
		}
		over = append(over, m.claims.add(tenant, key.ID, now)...)
	}
	m.dropClaims(over)
}

// A claimDropper is a store whose claims can be dropped.
type claimDropper interface {
	// DropClaim removes the claim of id, whichever value it has.
	DropClaim(ctx context.Context, id shared.ClaimID) error
}

// dropClaims drops claims. It does not wait.
func (m *Manager) dropClaims(all []idempotency.ID) {
	store, ok := m.shared.(claimDropper)
	if !ok || len(all) == 0 || !m.startWork() {
		return
	}
	go func() {
		defer m.work.Done()
		each(all, parallel, func(id idempotency.ID) {
			ctx, stop := context.WithTimeout(m.ctx, storeTimeout)
			defer stop()
			if err := store.DropClaim(ctx, shared.ClaimID(id)); err != nil {
				m.logger.Debug("claim not dropped", "error", err) // it expires
			}
		})
	}()
}
