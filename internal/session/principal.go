package session

import (
	"net/http"

	"holdfast/internal/caller"
	"holdfast/internal/feature/idempotency"
)

// A Client is the client of a request that belongs to no session: [Manager.ClientOf]. By its fields such
// requests share conversations, and find calls again.
type Client struct {
	principal  caller.Principal
	credential caller.Credential
	address    string // host and port
	// taken says that a conversation with the server may depend on the credential that it was begun with, for
	// any principal ([authorizationTaker]).
	taken bool
}

// ClientOf returns the client that makes a request.
func (m *Manager) ClientOf(r *http.Request, principal caller.Principal, credential caller.Credential) Client {
	c := Client{principal: principal, credential: credential, address: r.RemoteAddr}
	if b, ok := m.backend.(authorizationTaker); ok {
		takes, keeps := b.TakesAuthorization(r)
		c.taken = takes || keeps
	}
	return c
}

// tenant returns the name of the tenant that the client's use counts against.
func (c *Client) tenant() string { return caller.TenantOf(c.principal, c.address) }

// keys returns the scope of the client's idempotency keys: its principal; else its credential at the server; else its tenant there.
func (c *Client) keys() idempotency.Scope {
	switch {
	case !c.principal.IsAnonymous():
		return idempotency.OfPrincipal(c.principal.Text())
	case c.credential != caller.Credential{}:
		return idempotency.OfCredential(c.principal.Server(), c.credential[:])
	}
	return idempotency.OfTenant(c.principal.Server(), c.tenant())
}

// apart returns the credential that tells the client apart from others of its principal, where it
// shares a conversation with the server.
func (c *Client) apart() (credential caller.Credential) {
	if c.principal.IsAnonymous() || c.taken {
		credential = c.credential
	}
	return credential
}

// twin returns an id for an idempotency key and a request that does not depend on the client's credential;
// zero for a named principal. An anonymous client may come back with another credential, or without one, and
// then cannot be known as the same client.
func (c *Client) twin(key string, sum idempotency.Sum) (id idempotency.ID) {
	if c.principal.IsAnonymous() {
		id = idempotency.TwinID(idempotency.OfTenant(c.principal.Server(), c.tenant()), key, sum)
	}
	return id
}
