package session

import (
	"net/http"

	"holdfast/internal/caller"
	"holdfast/internal/feature/idempotency"
)

// A Client is who makes a request that belongs to no session: [Manager.ClientOf]. Whatever such
// requests share, and whatever they find again, they do so by what is in here.
type Client struct {
	principal  caller.Principal
	credential caller.Credential
	address    string // host and port
	// taken says that what a conversation with the server has may depend on the credential of who
	// began it, whoever the principal is ([authorizationTaker]).
	taken bool
}

// ClientOf returns who makes a request.
func (m *Manager) ClientOf(r *http.Request, principal caller.Principal, credential caller.Credential) Client {
	c := Client{principal: principal, credential: credential, address: r.RemoteAddr}
	if b, ok := m.backend.(authorizationTaker); ok {
		takes, keeps := b.TakesAuthorization(r)
		c.taken = takes || keeps
	}
	return c
}

// tenant names whom the client's use is counted against.
func (c *Client) tenant() string { return caller.TenantOf(c.principal, c.address) }

// keys returns whose idempotency keys the client's are: its principal's; else those of its
// credential at the server; else those of its tenant there.
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

// twin names a key of the client and a request, whatever its credential is; zero for a named
// principal. One that is nobody in particular may come back with another credential, or without one,
// and nobody knows whether it is the same client.
func (c *Client) twin(key string, sum idempotency.Sum) (id idempotency.ID) {
	if c.principal.IsAnonymous() {
		id = idempotency.TwinID(idempotency.OfTenant(c.principal.Server(), c.tenant()), key, sum)
	}
	return id
}
