package server

import (
	"context"
	"log/slog"
	"net/http"

	"holdfast/internal/caller"
	"holdfast/internal/panics"
	"holdfast/internal/placement"
)

// The callers are the clients of this node, and other nodes that forward requests: who makes a request, and what its
// client may send.
type callers struct {
	forwarded     bool // other nodes may forward requests
	authenticated bool // Options.Authenticate is asked before the handler
	whose         func(*http.Request) string
	packs         func(context.Context) []byte
	unpacks       func(*http.Request, []byte) *http.Request
	logger        *slog.Logger
}

func newCallers(opts *Options) callers {
	return callers{
		forwarded: opts.Node != nil, authenticated: opts.Authenticate != nil,
		whose: opts.Principal, packs: opts.Pack, unpacks: opts.Unpack, logger: opts.Logger,
	}
}

// visit returns what another node has told of a request, or nil for a client's.
func (c *callers) visit(r *http.Request) *placement.Visit {
	if !c.forwarded {
		return nil // and nothing is looked for
	}
	return placement.VisitOf(r)
}

// principal returns who makes a request, and for which server.
func (c *callers) principal(r *http.Request) caller.Principal {
	if v := c.visit(r); v != nil {
		return caller.Parse(string(v.Principal))
	}
	server, _ := r.Context().Value(serverKey{}).(string)
	return caller.At(server, c.asker(r))
}

// asker returns who makes a request to this node, whichever server it is for.
func (c *callers) asker(r *http.Request) string {
	defer panics.Raise(c.logger, "Options.Principal") // it must never be taken for nobody in particular
	return c.whose(r)
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
func (c *callers) pack(ctx context.Context) []byte {
	if c.packs == nil {
		return nil
	}
	defer panics.Raise(c.logger, "Options.Pack")
	return c.packs(ctx)
}

// unpack puts it into the request's context.
func (c *callers) unpack(r *http.Request, info []byte) *http.Request {
	if c.unpacks == nil || len(info) == 0 {
		return r
	}
	defer panics.Raise(c.logger, "Options.Unpack")
	return c.unpacks(r, info)
}

// tenant names whom the use that a request makes is counted against. A request that
// another node sent on has its client's address; of one that a connection makes for
// its client in a session, the session knows ([session.Session.Tenant]).
func (c *callers) tenant(r *http.Request) string {
	return caller.TenantOf(c.principal(r), r.RemoteAddr)
}
