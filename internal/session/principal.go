package session

import (
	"crypto/sha256"
	"net/http"
	"strings"

	"holdfast/internal/feature/idempotency"
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

// PrincipalAt returns the principal of clients of a server. server is its name, which has no
// NUL, or "" where there is one server only. name is who the client is, in any bytes, or "" for
// nobody in particular.
func PrincipalAt(server, name string) Principal { return Principal{server, name} }

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

// ParsePrincipal returns the principal that has a text.
func ParsePrincipal(text string) Principal {
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

// A Client is who makes a request that belongs to no session: [Manager.ClientOf]. Whatever such
// requests share, and whatever they find again, they do so by what is in here.
type Client struct {
	principal  Principal
	credential Credential
	address    string // host and port
	// taken says that what a conversation with the server has may depend on the credential of who
	// began it, whoever the principal is ([authorizationTaker]).
	taken bool
}

// ClientOf returns who makes a request.
func (m *Manager) ClientOf(r *http.Request, principal Principal, credential Credential) Client {
	c := Client{principal: principal, credential: credential, address: r.RemoteAddr}
	if b, ok := m.backend.(authorizationTaker); ok {
		takes, keeps := b.TakesAuthorization(r)
		c.taken = takes || keeps
	}
	return c
}

// tenant names whom the client's use is counted against.
func (c *Client) tenant() string { return TenantOf(c.principal, c.address) }

// keys returns whose idempotency keys the client's are: its principal's; else those of its
// credential at the server; else those of its tenant there.
func (c *Client) keys() idempotency.Scope {
	switch {
	case !c.principal.IsAnonymous():
		return idempotency.OfPrincipal(c.principal.Text())
	case c.credential != Credential{}:
		return idempotency.OfCredential(c.principal.server, c.credential[:])
	}
	return idempotency.OfTenant(c.principal.server, c.tenant())
}

// apart returns the credential that tells the client apart from others of its principal, where it
// shares a conversation with the server.
func (c *Client) apart() (credential Credential) {
	if c.principal.IsAnonymous() || c.taken {
		credential = c.credential
	}
	return credential
}

// twin names a key of the client and a request, whatever its credential is; zero for a named
// principal. One that is nobody in particular may come back with another credential, or without one,
// and nobody knows whether it is the same client.
func (c *Client) twin(key string, sum idempotency.Sum) (id idempotency.ID) {
	if c.principal.IsAnonymous() {
		id = idempotency.TwinID(idempotency.OfTenant(c.principal.server, c.tenant()), key, sum)
	}
	return id
}

// Server returns the name of the server that the session belongs to, or "" where there is
// one server only.
func (s *Session) Server() string { return s.principal.server }

// Principal returns the name of the session's client, or "" for nobody in particular.
func (s *Session) Principal() string { return s.principal.name }
