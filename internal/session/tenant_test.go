package session

import (
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// A session keeps its tenant when another node takes it over. A tenant does not outlive its last session.
func TestTakeOverTenant(t *testing.T) {
	t.Parallel()
	for principal, want := range map[string]string{"": "address 192.0.2.1", "al\xffice": "user al\xffice"} {
		f := newShelf()
		a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
		s := a.open(principal)
		other := a.open(principal)
		if got := s.Tenant(); got != want {
			t.Fatalf("tenant %q; want %q", got, want)
		}
		if s.tenant != other.tenant || s.tenant.sessions != 2 {
			t.Errorf("two sessions of a tenant: %p counts %d, other is %p", s.tenant, s.tenant.sessions, other.tenant)
		}
		a.End(other)
		a.kill()
		taken := b.take(s)
		if got := taken.Tenant(); got != want {
			t.Errorf("tenant %q after the take-over; want %q", got, want)
		}
		b.End(taken)
		mcptest.Eventually(t, "no tenant", time.Minute, func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.tenants) == 0
		})
	}
}
