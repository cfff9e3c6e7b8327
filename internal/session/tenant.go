package session

import (
	"net"
	"net/netip"
	"sync/atomic"
)

// A tenant is whom use is counted against: a principal, or, where nobody is made out,
// a client's address. All sessions of it that are on this node share one.
type tenant struct {
	name  string       // as [TenantOf] makes it
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

// TenantOf names the tenant of a client: its principal, else its IP address without
// the port, of which an IPv6 address counts with its /64, as one host has all of that.
// The name is "" where neither says who it is: a pipe, or a Unix socket. The two kinds
// have names of their own, so that no principal can pass for an address.
func TenantOf(principal Principal, remote string) string {
	if !principal.IsAnonymous() { // one for all servers
		return "user " + principal.name
	}
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return ""
	}
	if ip.Is4() { // an address that has one form
		return "address " + host
	}
	if ip = ip.Unmap(); ip.Is4() {
		return "address " + ip.String()
	}
	net, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return ""
	}
	return "address " + net.String()
}

// Tenant names whom the session's use is counted against; see [TenantOf].
func (s *Session) Tenant() string { return s.tenant.name }

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
