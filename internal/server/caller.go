package server

import (
	"context"
	"net/http"

	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/session"
)

// What follows says who makes a request, to this node or to one that has forwarded it.

// visit returns what another node has told of a request, or nil for a client's.
func (h *Handler) visit(r *http.Request) *placement.Visit {
	if h.nodes == nil {
		return nil // and nothing is looked for
	}
	return placement.VisitOf(r)
}

// principal returns who makes a request, and for which server.
func (h *Handler) principal(r *http.Request) session.Principal {
	if v := h.visit(r); v != nil {
		return session.ParsePrincipal(string(v.Principal))
	}
	server, _ := r.Context().Value(serverKey{}).(string)
	return session.PrincipalAt(server, h.asker(r))
}

// asker returns who makes a request to this node, whichever server it is for.
func (h *Handler) asker(r *http.Request) string {
	defer panics.Raise(h.logger, "Options.Principal") // it must never be taken for nobody in particular
	return h.opts.Principal(r)
}

// client returns who makes a request that belongs to no session.
func (h *Handler) client(x *exchange) *session.Client {
	c := h.sessions.ClientOf(x.r, x.principal, x.credential())
	return &c
}

// credential returns that of an exchange's client: as another node has seen it, or in its header.
func (x *exchange) credential() session.Credential {
	if x.from != nil && len(x.from.Credential) == len(session.Credential{}) {
		return session.Credential(x.from.Credential)
	}
	return session.CredentialOf(x.r.Header)
}

// apart returns the credential that tells an exchange's client apart, if it is nobody in particular; else none.
func (x *exchange) apart() (credential session.Credential) {
	if x.principal.IsAnonymous() {
		credential = x.credential()
	}
	return credential
}

type serverKey struct{}

// WithServer returns a context for a request to the server of a name, where the handler has
// many: a session that is begun with it belongs to that server, and can be used with such
// requests only. The name must not contain a NUL.
func WithServer(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, serverKey{}, name)
}

// NameOf returns the name that [WithServer] was given, or "".
func NameOf(ctx context.Context) string {
	name, _ := ctx.Value(serverKey{}).(string)
	return name
}

// pack returns what another node is told of a request's context.
func (h *Handler) pack(ctx context.Context) []byte {
	if h.opts.Pack == nil {
		return nil
	}
	defer panics.Raise(h.logger, "Options.Pack")
	return h.opts.Pack(ctx)
}

// unpack puts it into the request's context.
func (h *Handler) unpack(r *http.Request, info []byte) *http.Request {
	if h.opts.Unpack == nil || len(info) == 0 {
		return r
	}
	defer panics.Raise(h.logger, "Options.Unpack")
	return h.opts.Unpack(r, info)
}

// tenant names whom the use that a request makes is counted against. A request that
// another node sent on has its client's address; of one that a connection makes for
// its client in a session, the session knows ([session.Session.Tenant]).
func (h *Handler) tenant(r *http.Request) string {
	return session.TenantOf(h.principal(r), r.RemoteAddr)
}
