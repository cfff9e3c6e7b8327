package client

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"

	"github.com/coder/websocket"

	"holdfast/internal/panics"
)

// This file is where a Conn calls code of its user, on goroutines of its own: the functions
// of Options, an Authorizer, and the transport of HTTPClient. A panic becomes the error of
// the exchange, and ends the call that it was for.

// authorization asks for the authorization of a request. message says that the request carries a message
// of the host.
func (s *remote) authorization(ctx context.Context, message bool) (_ string, err error) {
	defer panics.Catch(&err, s.opts.Logger, "Authorizer.Authorization", "")
	return s.opts.Auth.Authorization(withHost(ctx, message))
}

// withHost returns ctx with the values of the context with which the host has sent a message. message
// says that the request carries one.
func withHost(ctx context.Context, message bool) context.Context {
	if host, ok := ctx.Value(hostKey{}).(context.Context); ok && message {
		return lasting{ctx, context.WithoutCancel(host)}
	}
	return ctx
}

// hostKey is the key of the context with which the host has sent a message.
type hostKey struct{}

// sentWith returns ctx for requests that carry a message of the host. host is the context with
// which the host has sent it; nil: the message is not the host's.
func sentWith(ctx, host context.Context) context.Context {
	if host == nil {
		return ctx
	}
	return context.WithValue(ctx, hostKey{}, host)
}

// A lasting context has the values of another context too, and does not end with that one.
type lasting struct {
	context.Context
	values context.Context
}

// Value implements [context.Context].
func (l lasting) Value(key any) any {
	if v := l.values.Value(key); v != nil {
		return v
	}
	return l.Context.Value(key)
}

func (s *remote) authorize(ctx context.Context, message bool, req *http.Request, resp *http.Response) (err error) {
	defer panics.Catch(&err, s.opts.Logger, "Authorizer.Authorize", "")
	return s.opts.Auth.Authorize(withHost(ctx, message), req, resp)
}

func (s *remote) withProof(req *http.Request, body []byte) (err error) {
	defer panics.Catch(&err, s.opts.Logger, "Authorizer.Prove", "")
	if p, ok := s.opts.Auth.(prover); ok {
		return p.Prove(req, body)
	}
	return nil
}

// answered tells the Authorizer of an answer. It reports whether to send the request again with another proof.
func (s *remote) answered(req *http.Request, resp *http.Response) (again bool) {
	if p, ok := s.opts.Auth.(prover); ok {
		inform(s.opts.Logger, "Authorizer.Answered", func() { again = p.Answered(req, resp) })
	}
	return again
}

// roundTrip sends a request. The client's redirects are not followed.
func (s *remote) roundTrip(req *http.Request) (_ *http.Response, err error) {
	defer panics.Catch(&err, s.opts.Logger, "HTTPClient", "")
	return s.http.Do(req)
}

func (s *remote) dialSocket(ctx context.Context, url string, o *websocket.DialOptions) (_ *websocket.Conn, _ *http.Response, err error) {
	defer panics.Catch(&err, s.opts.Logger, "HTTPClient", "")
	return websocket.Dial(ctx, url, o)
}

// body is the body of a response, which the user's round tripper may have made.
type body struct {
	io.ReadCloser
	logger *slog.Logger
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (n int, err error) {
	defer panics.Catch(&err, b.logger, "HTTPClient", "")
	return b.ReadCloser.Read(p)
}

// Close implements [io.Closer].
func (b *body) Close() (err error) {
	defer panics.Catch(&err, b.logger, "HTTPClient", "")
	return b.ReadCloser.Close()
}

// inform calls a function of Options. A panic in it is only logged.
func inform(logger *slog.Logger, what string, f func()) {
	var err error // is logged
	defer panics.Catch(&err, logger, what, "")
	f()
}

// panicked reports whether err is a panic of the user's code.
func panicked(err error) bool {
	if no, ok := errors.AsType[*refusal](err); ok {
		err = no.why
	}
	var p *panics.Error
	return errors.As(err, &p)
}
