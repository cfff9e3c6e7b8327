// Package caller identifies clients: the principal of a client, its credential, and the tenant that its use is
// counted against.
package caller

import (
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// A Principal is the identity of a client at one server. A handler may have many servers: a session, a carrier and a
// call each belong to one server and one principal. So the server is a part of the principal, in records, in messages
// between nodes, and in comparisons. The id of one server's session is unknown at another. See
// docs/decisions/0025-many-servers.md.
//
// Principals are compared with ==. An anonymous client has the empty name, at each server: [Principal.IsAnonymous]
// asks for it, as the compiler refuses a comparison with "". See docs/decisions/0034-principals-and-credentials.md.
type Principal struct{ server, name string }

// At returns the principal of a client of a server. server is the name of the server, without NUL, or "" if the
// handler has only one. name identifies the client, in any bytes; it is "" for an anonymous client.
func At(server, name string) Principal { return Principal{server, name} }

// Server returns the name of the server, or "" if the handler has only one.
func (p Principal) Server() string { return p.server }

// Name returns the name of the client, without the server; "" if it is anonymous.
func (p Principal) Name() string { return p.name }

// IsAnonymous reports whether the client is anonymous.
func (p Principal) IsAnonymous() bool { return p.name == "" }

// Text returns the principal as text, for records and messages between nodes. It need not be UTF-8. Without a server
// it is the name, as in records of older builds.
func (p Principal) Text() string {
	if p.server == "" && !strings.HasPrefix(p.name, "\x00") { // a name may begin with NUL, as it may be any bytes
		return p.name
	}
	return "\x00" + p.server + "\x00" + p.name
}

// Parse returns the principal with a text of [Principal.Text].
func Parse(text string) Principal {
	rest, ok := strings.CutPrefix(text, "\x00")
	if !ok {
		return Principal{name: text}
	}
	server, name, _ := strings.Cut(rest, "\x00")
	return Principal{server, name}
}

// A Credential is a digest of the Authorization header that a client sends. The zero value stands for no header.
// Anonymous clients are told apart by it.
type Credential [sha256.Size]byte

// CredentialOf returns the credential of a request's header.
func CredentialOf(h http.Header) (c Credential) {
	if value := h["Authorization"]; len(value) > 0 && value[0] != "" {
		c = sha256.Sum256([]byte(value[0])) // the value that a server gets
	}
	return c
}

// Bytes returns the credential for messages between nodes; nil for none.
func (c Credential) Bytes() []byte {
	if c == (Credential{}) {
		return nil
	}
	return c[:]
}

// TenantOf returns the name of a client's tenant: its principal, else its IP address without the port, for IPv6 the
// /64 network, as one host has all of it. The name is "" for a client with neither: at a pipe, or a Unix socket.
// Prefixes keep a principal from passing for an address.
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
