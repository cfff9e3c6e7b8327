package session

import (
	"net"
	"net/netip"
)

// A tenant is whom use is counted against: a principal, or, where nobody is made out,
// a client's address. All sessions of it that are on this node share one.
type tenant struct {
	name     string // as [TenantOf] makes it
	sessions int    // guarded by Manager.mu
}

// TenantOf names the tenant of a client: its principal, else its IP address without
// the port, of which an IPv6 address counts with its /64, as one host has all of that.
// The name is "" where neither says who it is: a pipe, or a Unix socket. The two kinds
// have names of their own, so that no principal can pass for an address.
func TenantOf(principal, remote string) string {
	if principal != "" {
		return "user " + principal
	}
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return ""
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
	if t.sessions--; t.sessions == 0 {
		delete(m.tenants, t.name)
	}
}
