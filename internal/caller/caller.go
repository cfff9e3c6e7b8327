// Package caller says who a client is: its principal, its credential, and the tenant that its use is counted against.
package caller

import (
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// A Principal says who a client is, and at which server. A handler may have many servers: a
// session, a carrier and a call belong to one of them, like to a principal. So the server is a
// part of the principal: it is on record, in what nodes tell each other, and compared, wherever the
// principal is. The id of one server's session is unknown at another. See
// docs/decisions/0025-many-servers.md.
//
// Principals are compared with ==. Nobody in particular has one spelling at each server: the
// empty name. It is not compared with "", which the compiler refuses, but asked for by
// [Principal.IsAnonymous]. See docs/decisions/0034-principals-and-credentials.md.
type Principal struct{ server, name string }

// At returns the principal of clients of a server. server is its name, which has no
// NUL, or "" where there is one server only. name is who the client is, in any bytes, or "" for
// nobody in particular.
func At(server, name string) Principal { return Principal{server, name} }

// Server returns the name of the server, or "" where there is one server only.
func (p Principal) Server() string { return p.server }

// Name returns who the client is, at whichever server, or "" for nobody in particular.
func (p Principal) Name() string { return p.name }

// IsAnonymous reports whether a principal is nobody in particular.
func (p Principal) IsAnonymous() bool { return p.name == "" }

// Text returns the principal as records and nodes have it. It need not be UTF-8. Without a server
// it is the name, as in records of older builds.
func (p Principal) Text() string {
	if p.server == "" && !strings.HasPrefix(p.name, "\x00") { // which a name may, as it may be any bytes
		return p.name
	}
	return "\x00" + p.server + "\x00" + p.name
}

// Parse returns the principal that has a text.
func Parse(text string) Principal {
	rest, ok := strings.CutPrefix(text, "\x00")
	if !ok {
		return Principal{name: text}
	}
	server, name, _ := strings.Cut(rest, "\x00")
	return Principal{server, name}
}

// A Credential stands for the Authorization header that a client sends: a digest of it. The zero
// value stands for none. Clients that are nobody in particular are told apart by it.
type Credential [sha256.Size]byte

// CredentialOf returns the credential in the header of a request.
func CredentialOf(h http.Header) (c Credential) {
	if value := h["Authorization"]; len(value) > 0 && value[0] != "" {
		c = sha256.Sum256([]byte(value[0])) // the one that a server gets
	}
	return c
}

// Bytes returns the credential as nodes have it; nil for none.
func (c Credential) Bytes() []byte {
	if c == (Credential{}) {
		return nil
	}
	return c[:]
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
