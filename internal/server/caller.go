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

// The callers find the principal of a request, from a client or forwarded by another node, and the messages that its
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

// visit returns the visit of a request that another node has forwarded, or nil for a client's.
func (c *callers) visit(r *http.Request) *placement.Visit {
	if !c.forwarded {
		return nil // without a look into the context
	}
	return placement.VisitOf(r)
}

// principal returns the principal of a request, which includes the server that it is for.
func (c *callers) principal(r *http.Request) caller.Principal {
	if v := c.visit(r); v != nil {
		return caller.Parse(string(v.Principal))
	}
	server, _ := r.Context().Value(serverKey{}).(string)
	return caller.At(server, c.asker(r))
}

// asker returns the name of a client's principal, without the server.
func (c *callers) asker(r *http.Request) string {
	defer panics.Raise(c.logger, "Options.Principal") // after a panic the client must not be taken for anonymous
	return c.whose(r)
}

type serverKey struct{}

// WithServer returns a context for a request to the server called name, where the handler
// has many. A session that begins with such a request belongs to that server, and can be
// used only with requests to it. The name must not contain a NUL.
func WithServer(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, serverKey{}, name)
}

// NameOf returns the name in a context from [WithServer], or "".
func NameOf(ctx context.Context) string {
	name, _ := ctx.Value(serverKey{}).(string)
	return name
}

// pack returns the data of a request's context that goes to another node.
func (c *callers) pack(ctx context.Context) []byte {
	if c.packs == nil {
		return nil
	}
	defer panics.Raise(c.logger, "Options.Pack")
	return c.packs(ctx)
}

// unpack puts the data from pack into a request's context.
func (c *callers) unpack(r *http.Request, info []byte) *http.Request {
	if c.unpacks == nil || len(info) == 0 {
		return r
	}
	defer panics.Raise(c.logger, "Options.Unpack")
	return c.unpacks(r, info)
}

// tenant returns the tenant of a request. A request that another node has forwarded
// has its client's address. A request of a session's connection has the session's
// tenant instead ([session.Session.Tenant]).
func (c *callers) tenant(r *http.Request) string {
	return caller.TenantOf(c.principal(r), r.RemoteAddr)
}

type tellerKey struct{}

// told returns the request with h in its context, for [TellRefused].
func (h *Handler) told(r *http.Request) *http.Request {
	if h.opts.Observers == nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), tellerKey{}, h))
}

// TellRefused tells observers of a request that Options.Authenticate refuses. The reason is one of a
// small set, in lower case with underscores. With status 403, Options.Principal must return the
// principal that the request has proven to be, or "".
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

// A Permit returns an error that says why a client must not send a message, or nil.
type Permit func(*jsonrpc.Message) error

type permitKey struct{}

// permits are the arguments of WithPermit.
type permits struct {
	permit      Permit
	singleTools func() bool
}

// WithPermit returns a context for a request of a client that may not send every message: permit checks each message of the
// request. singleTools reports whether permit now depends on single tools. Then the client gets no new WebSockets, as a WebSocket
// may be forwarded to another node, and its messages are not checked here. Only Options.Authenticate may use WithPermit.
func WithPermit(ctx context.Context, permit Permit, singleTools func() bool) context.Context {
	return context.WithValue(ctx, permitKey{}, &permits{permit, singleTools})
}

// permit returns the permit of a request's client; nil: the client may send every message.
// Forwarded requests were checked on the client's node.
func (c *callers) permit(ctx context.Context) Permit {
	if !c.authenticated {
		return nil
	}
	if p, _ := ctx.Value(permitKey{}).(*permits); p != nil {
		return p.permit
	}
	return nil
}

// bySingleTools reports whether the permit of a request's client depends on single tools.
func (c *callers) bySingleTools(ctx context.Context) bool {
	p, _ := ctx.Value(permitKey{}).(*permits)
	return c.authenticated && p != nil && p.singleTools()
}

// permitted returns the first message that the client of a request must not send, and the reason
// as an error; or nil.
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

// errNoSocket refuses a WebSocket to a client with a permit for single tools.
var errNoSocket = &protocol.Unauthorized{
	Status: http.StatusForbidden,
	Text:   "this server has scopes for single tools, and no WebSockets therefore: use Streamable HTTP",
}
