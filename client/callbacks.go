package client

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/coder/websocket"

	"holdfast/internal/panics"
)

// This file is where a Conn calls code of its user, on goroutines of its own: the functions
// of Options, an Authorizer, and what is below HTTPClient. A panic becomes the error of the
// exchange, and ends the call that it was for.

func (c *Conn) authorization(ctx context.Context) (_ string, err error) {
	defer panics.Catch(&err, c.logger, "Authorizer.Authorization", "")
	return c.opts.Auth.Authorization(ctx)
}

func (c *Conn) authorize(ctx context.Context, req *http.Request, resp *http.Response) (err error) {
	defer panics.Catch(&err, c.logger, "Authorizer.Authorize", "")
	return c.opts.Auth.Authorize(ctx, req, resp)
}

// roundTrip sends a request. The client's redirects are not followed.
func (c *Conn) roundTrip(req *http.Request) (_ *http.Response, err error) {
	defer panics.Catch(&err, c.logger, "HTTPClient", "")
	return c.remote.http.Do(req)
}

func (c *Conn) dialSocket(ctx context.Context, url string, o *websocket.DialOptions) (_ *websocket.Conn, _ *http.Response, err error) {
	defer panics.Catch(&err, c.logger, "HTTPClient", "")
	return websocket.Dial(ctx, url, o)
}

// body is the body of a response, which the user's round tripper may have made.
type body struct {
	io.ReadCloser
	c *Conn
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (n int, err error) {
	defer panics.Catch(&err, b.c.logger, "HTTPClient", "")
	return b.ReadCloser.Read(p)
}

// Close implements [io.Closer].
func (b *body) Close() (err error) {
	defer panics.Catch(&err, b.c.logger, "HTTPClient", "")
	return b.ReadCloser.Close()
}

// inform calls a function of Options. A panic in it is only logged.
func (c *Conn) inform(what string, f func()) {
	var err error // is logged
	defer panics.Catch(&err, c.logger, what, "")
	f()
}

// panicked reports whether err is a panic of the user's code.
func panicked(err error) bool {
	var no *refusal
	if errors.As(err, &no) {
		err = no.why
	}
	var p *panics.Error
	return errors.As(err, &p)
}
