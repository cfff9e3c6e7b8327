package session

import (
	"cmp"
	"context"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/idempotency"
	"holdfast/stream"
)

// What follows drops claims to idempotency keys from a store that nodes share: once nothing is kept of their calls, for
// as long again as ended calls are kept. A call that is in flight has its claim, however long it takes. Of a node
// that is lost the claims stay until the store forgets them.

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
		over = append(over, m.claims.Add(tenant, key.ID, now)...)
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
