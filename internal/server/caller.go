package server

import (
	"context"
	"log/slog"
	"net/http"

	"holdfast/internal/caller"
	"holdfast/internal/observe"
	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
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

type tellerKey struct{}

// told returns the request with what [TellRefused] needs in its context.
func (h *Handler) told(r *http.Request) *http.Request {
	if h.opts.Observers == nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), tellerKey{}, h))
}

// TellRefused tells observers of a request that Options.Authenticate refuses. The reason is one of few,
// in lower case with underscores. With status 403, Options.Principal must say who was proven to make
// the request, or "".
func TellRefused(r *http.Request, reason string, status int) {
	h, ok := r.Context().Value(tellerKey{}).(*Handler)
	if !ok {
		return
	}
	e := observe.Refused{Reason: reason, Status: status}
	switch status {
	case http.StatusUnauthorized:
		e.Denied = h.answers.Denied(r, nil, "")
	case http.StatusForbidden:
		e.Denied = h.answers.Denied(r, nil, h.callers.asker(r))
	}
	h.opts.Observers.Happened(e)
}

// A Permit returns why the client of a request must not send a message, or nil.
type Permit func(*jsonrpc.Message) error

type permitKey struct{}

// permits are what WithPermit was given.
type permits struct {
	permit      Permit
	singleTools func() bool
}

// WithPermit returns a context for a request of a client who may not send everything: each message that it brings is looked
// at. singleTools reports whether that depends on single tools, now. Then there are no new WebSockets for the client: what
// comes on one may be for another node, and is not looked at here. Only Options.Authenticate may put it before the handler.
func WithPermit(ctx context.Context, permit Permit, singleTools func() bool) context.Context {
	return context.WithValue(ctx, permitKey{}, &permits{permit, singleTools})
}

// permit returns the permit of a request's client; nil: it may send everything. What another node
// forwards was looked at there.
func (c *callers) permit(ctx context.Context) Permit {
	if !c.authenticated {
		return nil
	}
	if p, _ := ctx.Value(permitKey{}).(*permits); p != nil {
		return p.permit
	}
	return nil
}

// bySingleTools reports whether what a request's client may send depends on single tools.
func (c *callers) bySingleTools(ctx context.Context) bool {
	p, _ := ctx.Value(permitKey{}).(*permits)
	return c.authenticated && p != nil && p.singleTools()
}

// permitted returns why the client of a request must not send messages, and the first that it must
// not send; or nil.
func (c *callers) permitted(ctx context.Context, msgs []jsonrpc.Message) (not *jsonrpc.Message, err error) {
	permit := c.permit(ctx)
	if permit == nil {
		return nil, nil
	}
	defer panics.Catch(&err, c.logger, "Options.Authenticate", "")
	for i := range msgs {
		if err := permit(&msgs[i]); err != nil {
			return &msgs[i], err
		}
	}
	return nil, nil
}

// errNoSocket refuses a WebSocket.
var errNoSocket = &protocol.Unauthorized{
	Status: http.StatusForbidden,
	Text:   "this server has scopes for single tools, and no WebSockets therefore: use Streamable HTTP",
}
