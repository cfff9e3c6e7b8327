// Package guard decides which requests may reach a server, before their bodies are read: by the host that
// they are for and the web page that they come from. It also finds the client's address behind a proxy.
package guard

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"holdfast/jsonrpc"
)

// A Guard checks the requests to one server. Its methods may be called concurrently.
type Guard struct {
	origins, hosts map[string]bool
	proxies        []netip.Prefix
}

// New returns a guard. Origins and hosts are allowed beside the server's own, "*" allows any;
// proxies are trusted to name their client's address.
func New(origins, hosts []string, proxies []netip.Prefix) *Guard {
	g := &Guard{origins: make(map[string]bool), hosts: make(map[string]bool), proxies: proxies}
	for _, origin := range origins {
		g.origins[normal(strings.TrimSuffix(origin, "/"))] = true
	}
	for _, host := range hosts {
		g.hosts[strings.ToLower(host)] = true
	}
	return g
}

// exposed are the response headers that a browser's script may read.
const exposed = "Mcp-Session-Id, MCP-Protocol-Version, Link, Retry-After, WWW-Authenticate, DPoP-Nonce"

// mostAsked and mostAskedBytes bound the header names that a preflight gets back.
const (
	mostAsked      = 100
	mostAskedBytes = 4 << 10
)

// Check checks Host, Origin and Sec-Fetch-Site, answers a preflight, and sets the headers that a
// browser needs on the answer (2025-11-25, Transports, "Security Warning"). It reports whether
// the request may go on. If not, it was answered (refusal is nil), or the caller refuses it with
// status 403 and refusal. methods is the value of Allow.
func (g *Guard) Check(w http.ResponseWriter, r *http.Request, methods string) (passes bool, refusal *jsonrpc.Error) {
	local := onLoopback(r)
	if !g.hostAllowed(r.Host, local) {
		return refuse(foreignHost, r.Host)
	}
	origin := r.Header["Origin"]
	if len(origin) == 0 {
		if !g.siteAllowed(r, local) {
			return refuse("the request comes from a web page of another site, and without an Origin: it is not allowed")
		}
		if r.Method == http.MethodOptions {
			w.Header().Set("Allow", methods)
			w.WriteHeader(http.StatusNoContent)
			return false, nil
		}
		return true, nil
	}
	head := w.Header()
	head.Add("Vary", "Origin")
	if len(origin) > 1 || !g.originAllowed(r, origin[0], local) {
		return refuse("Origin %.80q is not allowed (allow it with --allow-origin or AllowedOrigins)", origin[0])
	}
	head.Set("Access-Control-Allow-Origin", origin[0])
	head.Set("Access-Control-Expose-Headers", exposed)
	if r.Method != http.MethodOptions {
		return true, nil
	}
	head.Set("Access-Control-Allow-Methods", methods)
	head.Set("Access-Control-Allow-Headers", allowable(r.Header.Values("Access-Control-Request-Headers")))
	head.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return false, nil
}

const foreignHost = "Host %.80q is not allowed: it is no name of this server (allow it with --allow-host or AllowedHosts)"

// CheckProbe checks the Host of a request from a probe or from Prometheus, which is not a browser's. On a loopback
// address the rule of [Guard.Check] holds. Elsewhere any host passes: Kubernetes and Prometheus know a node by an
// address that no flag names. A request without a Host (HTTP/1.0) passes too, as no browser makes one.
func (g *Guard) CheckProbe(r *http.Request) (refusal *jsonrpc.Error) {
	if r.Host != "" && onLoopback(r) && !g.hostAllowed(r.Host, true) {
		_, refusal = refuse(foreignHost, r.Host)
	}
	return refusal
}

// refuse returns the results of a check that refuses a request.
func refuse(format string, args ...any) (passes bool, refusal *jsonrpc.Error) {
	return false, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, format, args...)
}

// allowable returns the headers that a script of an allowed origin may set: all that its preflight asks for. They give a
// script no right that other HTTP clients lack, and a browser lets no script set the headers that it sets itself. Names
// that are not tokens (RFC 9110, section 5.6.2) are left out.
func allowable(asked []string) string {
	var names []string
	size := 0
	for _, list := range asked {
		for name := range strings.SplitSeq(list, ",") {
			name = strings.ToLower(strings.Trim(name, " \t"))
			if !isToken(name) || slices.Contains(names, name) {
				continue
			}
			if size += len(name); size > mostAskedBytes || len(names) == mostAsked {
				return strings.Join(names, ", ")
			}
			names = append(names, name)
		}
	}
	if names == nil {
		return "Content-Type, Accept, Authorization, Mcp-Session-Id, MCP-Protocol-Version, Last-Event-ID"
	}
	return strings.Join(names, ", ")
}

// isToken reports whether a text can be the name of a header field.
func isToken(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return text != ""
}

// hostAllowed reports whether a Host header is one of the server's names. On a loopback address only
// loopback and configured names are, so that no web page can reach the server by DNS rebinding.
func (g *Guard) hostAllowed(host string, local bool) bool {
	host = strings.ToLower(host)
	if g.hosts["*"] || g.hosts[host] || g.hosts[Bare(host)] {
		return true
	}
	if local {
		return loopbackName(Bare(host))
	}
	return len(g.hosts) == 0
}

// headerSite is the header in which a browser says from which site a request comes
// (Fetch Metadata Request Headers, section 2.3). No script can set it. Browsers send it
// to https and to loopback; other clients have no reason to.
const headerSite = "Sec-Fetch-Site"

// Values of headerSite that let a request pass without an Origin.
const (
	sameOrigin = "same-origin"
	byUser     = "none" // an address that the user has typed, or a bookmark
)

// siteAllowed reports whether a request without an Origin may pass. A script of any page
// can send such a GET (a fetch in no-cors mode), and so can an image, a frame or a link:
// it can't read the answer, but the request would have been served. A page of an allowed
// origin sends its Origin in each request that it can read the answer of.
//
// An address that the user has typed may be of another site, which redirects here. So a GET
// only reads, whatever headers it has.
func (g *Guard) siteAllowed(r *http.Request, local bool) bool {
	site := r.Header[headerSite]
	switch {
	case len(site) == 0, g.origins["*"], len(site) == 1 && site[0] == byUser:
		return true
	case len(site) > 1 || site[0] != sameOrigin:
		return false
	}
	return local || g.pinned(r.Host) || g.origins[normal("https://"+r.Host)] || g.origins[normal("http://"+r.Host)]
}

// originAllowed reports whether a web page of the origin may use the server: one
// that was allowed by name, one on this machine if the server is there too, or
// one that came from the server's own host, if DNS rebinding can't have made
// that name the server's.
//
// If TLS ends here the scheme of the server's own origin is https. Otherwise it may be http or
// https, because TLS may end at a proxy in front. Any client could send X-Forwarded-Proto, so
// that header is not read. Sec-Fetch-Site decides instead, if the browser sends it.
func (g *Guard) originAllowed(r *http.Request, origin string, local bool) bool {
	if g.origins["*"] || g.origins[normal(origin)] {
		return true
	}
	u, err := url.Parse(strings.ToLower(origin))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return false // "null" too
	}
	if local && loopbackName(Bare(u.Host)) {
		return true
	}
	if site := r.Header[headerSite]; r.TLS != nil && u.Scheme != "https" || len(site) > 0 && site[0] != sameOrigin {
		return false
	}
	return g.pinned(r.Host) && normal(origin) == normal(u.Scheme+"://"+r.Host)
}

// pinned reports whether a Host cannot come from DNS rebinding: it is an address, or one of
// the server's configured names.
func (g *Guard) pinned(host string) bool {
	host = strings.ToLower(host)
	_, err := netip.ParseAddr(Bare(host))
	return err == nil || g.hosts[host] || g.hosts[Bare(host)]
}

// normal returns an origin in lower case and without its scheme's default port,
// so that equal origins have equal texts (RFC 6454, sections 4 and 6.2).
func normal(origin string) string {
	origin = strings.ToLower(origin)
	switch {
	case strings.HasPrefix(origin, "https://"):
		return strings.TrimSuffix(origin, ":443")
	case strings.HasPrefix(origin, "http://"):
		return strings.TrimSuffix(origin, ":80")
	}
	return origin
}

// onLoopback reports whether the request came in on a loopback address.
func onLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return tcp.IP.IsLoopback()
	}
	return loopbackName(Bare(addr.String()))
}

// Bare returns a host without its port and brackets.
func Bare(host string) string {
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
