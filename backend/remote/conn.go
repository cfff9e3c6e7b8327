package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/client"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// A conn is the conversation of one session: its session at the server. It has no goroutine
// but those of its [client.Conn].
type conn struct {
	b        *Backend
	sink     backend.Sink
	up       *client.Conn
	requests rpc.Table[request]
	pass     bool          // the client's Authorization is passed on
	socket   bool          // the server is reached over a WebSocket
	closed   chan struct{} // closed by Close

	mu      sync.Mutex
	token   string                 // the last Authorization of a client
	refused *protocol.Unauthorized // how the server has refused the last message, or nil
	opening chan<- error           // told how the first request ended; nil: no delivery waits
}

// Deliver sends a message to the server, in the background. It waits only until the server
// has notifications/initialized, and, for [refusalWait], for the response to the first request.
func (c *conn) Deliver(in backend.Inbound) error {
	m := in.Message
	ctx := context.Background()
	if m.Method == protocol.MethodCallTool {
		ctx = callContext
	}
	ctx = c.note(ctx, in.Header, in.Call != nil)
	switch {
	case m.Kind == jsonrpc.Request && protocol.Opens(m.Method):
		return c.open(ctx, in)
	case m.Kind == jsonrpc.Request:
		m = c.requests.Add(m, request{call: in.Call})
		if c.pass || c.b.hasCredentials() {
			ctx = context.WithValue(ctx, requestKey{}, string(jsonrpc.Key(m.ID)))
		}
	case m.Kind == jsonrpc.Notification && m.Method == protocol.MethodCancelled:
		m = c.requests.Cancelled(m)
	}
	return c.send(ctx, m)
}

// send sends a message. A request that is not sent is forgotten.
func (c *conn) send(ctx context.Context, m jsonrpc.Message) error {
	err := c.up.Send(ctx, m)
	if err == nil {
		return nil
	}
	if m.Kind == jsonrpc.Request {
		c.requests.End(m.ID)
	}
	return fmt.Errorf("send to the upstream server: %w", err)
}

// refusalWait bounds how long the delivery of the first request waits for the server to refuse
// it: the client can be answered with the server's status as long as it has no answer yet.
const refusalWait = 10 * time.Second

// open sends the first request. If the server refuses the client, the refusal is the error.
func (c *conn) open(ctx context.Context, in backend.Inbound) error {
	m, err := opener(in.Message)
	if err != nil {
		return err
	}
	answered := make(chan error, 1)
	c.mu.Lock()
	c.refused, c.opening = nil, answered
	c.mu.Unlock()
	if err := c.send(ctx, c.requests.Add(m, request{call: in.Call, opens: true})); err != nil {
		return err
	}
	t := time.NewTimer(refusalWait)
	defer t.Stop()
	select {
	case err = <-answered:
		return err
	case <-t.C:
	case <-c.closed:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening = nil
	select {
	case err = <-answered:
	default:
	}
	return err
}

// receive takes a message of the server. request is the id of the request that has the message's stream, or nil.
func (c *conn) receive(request []byte, m jsonrpc.Message) {
	if m.Kind != jsonrpc.Response {
		c.sink.Emit(c.callOf(request), m)
		return
	}
	e := c.requests.End(m.ID)
	if e == nil {
		return // it was cancelled
	}
	if string(e.ID) != string(m.ID) {
		m.Raw, m.ID = m.WithID(e.ID), e.ID
	}
	rq := e.Value
	if m.Error != nil {
		c.b.ended(m.Error, rq.opens)
	}
	if rq.opens {
		c.opened(rq.call, m)
		return
	}
	if of, ok := rq.call.(refusable); ok && rq.refused != nil && m.Error != nil && !unknown(m.Error) {
		of.Refused(rq.refused)
	}
	c.sink.Emit(rq.call, m)
}

// callOf returns the call of a request, by the id that the server knows; nil: there is none.
func (c *conn) callOf(id []byte) backend.Call {
	if id == nil {
		return nil
	}
	if e := c.requests.Named(id); e != nil {
		return e.Value.call
	}
	return nil
}

// Sessionless reports whether the server has answered initialize over Streamable HTTP, and keeps no
// session: without one it can send nothing to the client but responses.
func (c *conn) Sessionless() bool {
	if c.socket {
		return false
	}
	s := c.up.State()
	return s.Revision != "" && s.Session == "" && s.Endpoint == ""
}

// unknown reports whether an error says that the request may have run.
func unknown(e []byte) bool {
	return string(jsonrpc.Field(e, "code")) == strconv.Itoa(protocol.CodeOutcomeUnknown)
}

// A refusable is a [backend.Call] that can tell its client how the server has refused its token, with the server's
// status and challenge, if the client has no answer yet. Refused is called before the response is emitted.
type refusable interface{ Refused(err error) }

// opened takes the response to the first request.
func (c *conn) opened(call backend.Call, m jsonrpc.Message) {
	c.mu.Lock()
	opening, refused := c.opening, c.refused
	c.opening = nil
	c.mu.Unlock()
	if m.Error != nil && refused != nil && opening != nil {
		opening <- refused
		return
	}
	if m.Error == nil {
		c.b.refused.Store(0)
	}
	c.sink.Emit(call, withoutKeys(m))
	if opening != nil {
		opening <- nil
	}
}

// Close ends the session at the server. It waits for the server at most five seconds.
func (c *conn) Close() error {
	close(c.closed)
	c.b.mu.Lock()
	delete(c.b.conns, c)
	c.b.mu.Unlock()
	if err := c.up.Close(); err != nil && !c.b.away.Covers() && !c.b.ill.Covers() { // else the log has a line about that
		return fmt.Errorf("close the upstream session: %w", err)
	}
	return nil
}

// SentAgain notes that the client's message goes again, after the server had refused it: its outcome is not known yet.
func (c *conn) SentAgain(ctx context.Context) {
	if key, ok := ctx.Value(requestKey{}).(string); ok {
		c.requests.Update([]byte(key), func(rq *request) { rq.refused = nil })
	}
}

// requestKey is the key of the id of a request, in the context that it is sent with.
type requestKey struct{}

// tokenKey is the key of the Authorization of a message, in the context that it is sent with.
type tokenKey struct{}

// note keeps the client's Authorization, if that is passed on, and returns the context for sending the
// client's message. Another client of the session may have more rights: a call never gets the Authorization
// of another, whenever and however often it is sent. Messages of Holdfast itself get the last Authorization.
func (c *conn) note(ctx context.Context, header http.Header, call bool) context.Context {
	ctx = withHeaders(ctx, header)
	if !c.pass {
		return ctx
	}
	token := header.Get("Authorization")
	if token != "" {
		c.mu.Lock()
		c.token = token
		c.mu.Unlock()
	} else if !call {
		return ctx
	}
	return context.WithValue(ctx, tokenKey{}, token)
}

// headersKey is the key of the headers that a message is sent with beside those of the protocol, in its context.
type headersKey struct{}

// callKey is the key of the mark of a call of a tool, in the context that the call is sent with.
type callKey struct{}

// callContext is the context of all calls of tools.
var callContext = context.WithValue(context.Background(), callKey{}, true)

// withHeaders returns a context with the headers Mcp-* of a client's message that are not the protocol's own: those are
// about the connection to Holdfast, and differ at the server.
func withHeaders(ctx context.Context, header http.Header) context.Context {
	var more http.Header
	for name, values := range header {
		if !strings.HasPrefix(name, "Mcp-") {
			continue
		}
		switch name {
		case protocol.HeaderSession, protocol.HeaderVersion, protocol.HeaderMethod, protocol.HeaderName:
			continue
		}
		if more == nil {
			more = make(http.Header)
		}
		more[name] = values
	}
	if more == nil {
		return ctx
	}
	return context.WithValue(ctx, headersKey{}, more)
}

// Headers returns the headers of a message for package client.
func (c *conn) Headers(ctx context.Context) http.Header {
	more, _ := ctx.Value(headersKey{}).(http.Header)
	return more
}

// OpensWithin returns how long the server may take to begin, for package client: Holdfast
// gives up before that, and says more.
func (c *conn) OpensWithin() time.Duration { return protocol.OpensWithin + refusalWait }

// Account implements [budget.Accounted], for the client that has the conn as the Auth of its Options.
func (c *conn) Account() budget.Account { return budget.Of(c.sink) }

// Authorization implements [client.Authorizer].
func (c *conn) Authorization(ctx context.Context) (string, error) {
	if token, ok := ctx.Value(tokenKey{}).(string); ok {
		return token, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token, nil
}

// Authorize implements [client.Authorizer]. It notes how the server has refused a request: only the
// client can do something about it, or the operator, if the operator's credentials were refused.
func (c *conn) Authorize(ctx context.Context, _ *http.Request, resp *http.Response) error {
	err := &protocol.Unauthorized{Status: resp.StatusCode, Challenge: resp.Header.Values("WWW-Authenticate")}
	own := !c.pass && c.b.refuses(resp)
	if own {
		err = &protocol.Unauthorized{Status: http.StatusBadGateway, Text: ownRefused}
	}
	if key, ok := ctx.Value(requestKey{}).(string); ok && (c.pass || own) {
		c.requests.Update([]byte(key), func(rq *request) { rq.refused = err })
	}
	c.mu.Lock()
	c.refused = err
	c.mu.Unlock()
	return errors.Join(err, resp.Body.Close())
}
