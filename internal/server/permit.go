package server

import (
	"context"
	"net/http"

	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

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
