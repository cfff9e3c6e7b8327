package session

import (
	"fmt"
	"sync/atomic"

	"holdfast/internal/budget"
	"holdfast/jsonrpc"
)

// A tenant is whom use is counted against: a principal, or, where nobody is made out,
// a client's address. All sessions of it that are on this node share one.
type tenant struct {
	name  string       // as [caller.TenantOf] makes it
	calls atomic.Int64 // requests in flight
	held  atomic.Int64 // bytes of those
	// looked is when its sessions were last looked through for some that can be ended, by the
	// manager's clock.
	looked atomic.Int64

	carriers *carrier // the first of its carriers on this node; guarded by carriers.mu

	// Guarded by Manager.mu.
	sessions  int
	processes int // conversations that have a place
	leaving   int // of those, being closed
}

// countIn counts a new session of a tenant, until countOut or unlist.
func (m *Manager) countIn(name string) *tenant {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tenants[name]
	if t == nil {
		t = &tenant{name: name}
		m.tenants[name] = t
	}
	t.sessions++
	return t
}

// countOut counts a session less. m.mu is held.
func (m *Manager) countOut(t *tenant) {
	t.sessions--
	m.settle(t)
}

// settle forgets a tenant of which nothing is left. m.mu is held.
func (m *Manager) settle(t *tenant) {
	if t.sessions == 0 && t.processes == 0 && m.tenants[t.name] == t {
		delete(m.tenants, t.name)
	}
}

// shareOf is how much of a bound one tenant may have.
func (m *Manager) shareOf(most int) int { return max(1, int(m.opts.MaxShare*float64(most))) }

// overShare reports whether a tenant has more sessions than its share. m.mu is held.
func (m *Manager) overShare(t *tenant) bool {
	return t.name != "" && t.sessions > m.shareOf(m.opts.MaxSessions)
}

// count counts n more requests of a session, or less, in flight; it returns how many
// there are in all, and of the tenant.
func (m *Manager) count(s *Session, n int32) (all, own int64) {
	return m.calls.Add(int64(n)), s.tenant.calls.Add(int64(n))
}

// checkMemory reports whether there is no room for requests to be held until they are answered:
// what one tenant has in flight leaves as much to the others.
func (t *tenant) checkMemory(flight *budget.Flight, msgs []jsonrpc.Message) error {
	size := int64(0)
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			size += int64(len(msgs[i].Raw))
		}
	}
	held := t.held.Load()
	if held > 0 && held+size > flight.Share() || flight.Used()+size > flight.Most() && size > largeBody {
		return fmt.Errorf("%w: a request of %d bytes beside those in flight is more than --memory has room for", ErrBusy, size)
	}
	return nil
}
