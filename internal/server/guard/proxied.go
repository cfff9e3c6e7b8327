package guard

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// headerForwardedFor lists the addresses that a request came from: each proxy adds the address
// that it sees. Any client can send it, so only addresses from trusted proxies count.
const headerForwardedFor = "X-Forwarded-For"

// Passed reports whether a request came through a proxy, by its headers.
func Passed(r *http.Request) bool {
	return r.Header[headerForwardedFor] != nil || r.Header["Forwarded"] != nil || r.Header["Via"] != nil || r.Header["X-Real-Ip"] != nil
}

// OfClient returns a request with its client's address: if it comes from a trusted proxy, the
// address that the proxy names. Then its connection, the proxy's, is not watched.
func (g *Guard) OfClient(r *http.Request) *http.Request {
	if len(g.proxies) == 0 {
		return r
	}
	from, ok := g.clientAddress(r)
	if !ok {
		return r
	}
	_, port, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		port = "0"
	}
	to := *r
	to.RemoteAddr = net.JoinHostPort(from.String(), port)
	return &to
}

// clientAddress returns the address that trusted proxies name: the last one that is not a trusted
// proxy's. ok is false if the request does not come from a trusted proxy.
func (g *Guard) clientAddress(r *http.Request) (at netip.Addr, ok bool) {
	if at, ok = parseAddress(r.RemoteAddr); !ok || !g.trusts(at) {
		return at, false
	}
	hops := strings.Split(strings.Join(r.Header[headerForwardedFor], ","), ",")
	for i := len(hops) - 1; i >= 0 && g.trusts(at); i-- {
		hop, ok := parseAddress(strings.TrimSpace(hops[i]))
		if !ok {
			break // the addresses before it are not known
		}
		at = hop
	}
	return at, true
}

// TrustsProxy reports whether an address is a trusted proxy's.
func (g *Guard) TrustsProxy(address string) bool {
	at, ok := parseAddress(address)
	return ok && g.trusts(at)
}

func (g *Guard) trusts(at netip.Addr) bool {
	for _, p := range g.proxies {
		if p.Contains(at) {
			return true
		}
	}
	return false
}

// parseAddress parses an address, with a port or without.
func parseAddress(text string) (netip.Addr, bool) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at.Addr().Unmap().WithZone(""), true
	}
	at, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return at.Unmap().WithZone(""), err == nil
}
