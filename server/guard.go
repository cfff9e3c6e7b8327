package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// exposed are the response headers that a browser's script may read.
const exposed = "Mcp-Session-Id, MCP-Protocol-Version, Link, Retry-After, WWW-Authenticate"

// allowedHeaders are the request headers that a browser's script may set, in
// lower case; so may it those that start with "mcp-".
var allowedHeaders = map[string]bool{
	"accept": true, "authorization": true, "cache-control": true, "content-type": true,
	"last-event-id": true, "idempotency-key": true, "traceparent": true, "tracestate": true,
}

// guard checks Host and Origin, answers a preflight, and sets what a browser
// wants to see on the answer (2025-11-25, Transports, "Security Warning"). It
// says whether the request may go on; if not, it is answered. methods are those
// that the door has.
func (h *Handler) guard(w http.ResponseWriter, r *http.Request, methods string) bool {
	local := onLoopback(r)
	if !h.hostAllowed(r.Host, local) {
		h.reject(w, http.StatusForbidden, errf(codeInvalid,
			"Host %.80q is not allowed: it is no name of this server (allow it with --allow-host or AllowedHosts)", r.Host))
		return false
	}
	origin := r.Header["Origin"]
	if len(origin) == 0 {
		if r.Method == http.MethodOptions {
			w.Header().Set("Allow", methods)
			w.WriteHeader(http.StatusNoContent)
			return false
		}
		return true
	}
	head := w.Header()
	head.Add("Vary", "Origin")
	if len(origin) > 1 || !h.originAllowed(origin[0], r.Host, local) {
		h.reject(w, http.StatusForbidden, errf(codeInvalid,
			"Origin %.80q is not allowed (allow it with --allow-origin or AllowedOrigins)", origin[0]))
		return false
	}
	head.Set("Access-Control-Allow-Origin", origin[0])
	head.Set("Access-Control-Expose-Headers", exposed)
	if r.Method != http.MethodOptions {
		return true
	}
	head.Set("Access-Control-Allow-Methods", methods)
	head.Set("Access-Control-Allow-Headers", allowable(r.Header.Values("Access-Control-Request-Headers")))
	head.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return false
}

// allowable picks from what a preflight asks for the headers that are allowed,
// and names the usual ones if it asks for nothing.
func allowable(asked []string) string {
	var names []string
	for _, list := range asked {
		for name := range strings.SplitSeq(list, ",") {
			name = strings.ToLower(strings.TrimSpace(name))
			if allowedHeaders[name] || strings.HasPrefix(name, "mcp-") {
				names = append(names, name)
			}
		}
	}
	if names == nil {
		return "Content-Type, Accept, Authorization, Mcp-Session-Id, MCP-Protocol-Version, Last-Event-ID"
	}
	return strings.Join(names, ", ")
}

// hostAllowed says whether a Host header is one of the server's names. On a
// loopback address only loopback names are, so that no web page can reach it by
// pointing a name of its own there (DNS rebinding).
func (h *Handler) hostAllowed(host string, local bool) bool {
	host = strings.ToLower(host)
	if h.hosts["*"] || h.hosts[host] || h.hosts[bare(host)] {
		return true
	}
	if local {
		return loopbackName(bare(host))
	}
	return len(h.hosts) == 0
}

// originAllowed says whether a web page of the origin may use the server: one
// that was allowed by name, one on this machine if the server is there too, or
// one that came from the server's own host, where that host can't be a name
// that somebody pointed here.
func (h *Handler) originAllowed(origin, host string, local bool) bool {
	origin, host = strings.ToLower(origin), strings.ToLower(host)
	if h.origins["*"] || h.origins[origin] {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false // "null" too
	}
	name := bare(u.Host)
	if local && loopbackName(name) {
		return true
	}
	_, err = netip.ParseAddr(name)
	pinned := err == nil || h.hosts[host] || h.hosts[bare(host)]
	return pinned && u.Host == host
}

// onLoopback says whether the request came in on a loopback address.
func onLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return tcp.IP.IsLoopback()
	}
	return loopbackName(bare(addr.String()))
}

// bare returns a host without its port and brackets.
func bare(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return strings.Trim(host, "[]")
}

func loopbackName(name string) bool {
	name = strings.ToLower(name)
	if name == "localhost" || name == "127.0.0.1" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.IsLoopback()
}
