package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync"
	"weak"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend"
	"holdfast/internal/protocol"
)

// This file is for handlers that return InputRequests (2026-07-28, Multi Round-Trip Requests).
// The SDK passes those on in a modern session. In a legacy session it asks the client by itself,
// and enters the handler again, once. But only in a legacy session may a handler ask by
// [mcp.ServerSession.Elicit] and the like. So a modern conversation begins with a legacy session.
// If the handler of a request turns out to return InputRequests, the request is made again in a
// modern session; from then on the tool, prompt or resource has that session from the start.

// asking knows which handlers of a server return InputRequests.
type asking struct {
	mu     sync.Mutex
	rounds map[handlerName]bool // the handlers that return InputRequests
}

// mostRounds bounds how many names are kept for a server: clients choose the URIs of resources.
const mostRounds = 1000

// inRounds reports whether a handler returns InputRequests.
func (a *asking) inRounds(name handlerName) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rounds[name]
}

// note notes that a handler returns InputRequests.
func (a *asking) note(name handlerName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rounds == nil {
		a.rounds = make(map[handlerName]bool)
	}
	if len(a.rounds) < mostRounds {
		a.rounds[name] = true
	}
}

// rounds is the modern session of a conversation, for handlers that return InputRequests.
type rounds struct {
	asking *asking

	mu   sync.Mutex
	open *handle // nil until there is such a handler
	over bool
}

// modernKey is the key of a modern conversation in the contexts of its handlers.
type modernKey struct{}

// openModern opens a conversation of modern requests.
func (b *Backend) openModern(ctx context.Context, server *mcp.Server, sink backend.Sink) (backend.Conn, error) {
	b.mu.Lock()
	m := &modern{ready: make(chan struct{}), rounds: rounds{asking: b.known[weak.Make(server)]}}
	b.mu.Unlock()
	// No client knows the session's secret, and handlers must not take it for one.
	c, err := b.connect(context.WithValue(ctx, modernKey{}, m), server, sink, "")
	if err != nil {
		return nil, err
	}
	c.modern, m.conn = m, c.conn
	return c, nil
}

// throughRounds calls a handler. A handler that returns InputRequests gets the modern session of its conversation.
func throughRounds(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request) (mcp.Result, error) {
	m, ok := ctx.Value(modernKey{}).(*modern)
	if !ok {
		return next(ctx, method, req)
	}
	name, continued := nameOf(method, req)
	if name.method == "" {
		return next(ctx, method, req)
	}
	if !continued && !m.rounds.asking.inRounds(name) {
		res, err := next(ctx, method, req)
		if !errors.Is(err, errAsksByItself) {
			return res, err
		}
		m.rounds.asking.note(name)
	}
	session, err := m.modernSession(ctx)
	if err != nil {
		return nil, err
	}
	return next(ctx, method, withSession(req, session))
}

// A handlerName names the handler of a tool, a prompt or a resource. Its zero value stands for
// a request with a handler that cannot return InputRequests.
type handlerName struct{ method, of string }

// nameOf returns the name of the handler of a request. continued reports that it has returned
// InputRequests: only then does a client send a requestState or inputResponses.
func nameOf(method string, req mcp.Request) (name handlerName, continued bool) {
	switch p := req.GetParams().(type) {
	case *mcp.CallToolParamsRaw:
		return handlerName{method, p.Name}, p.RequestState != "" || len(p.InputResponses) > 0
	case *mcp.GetPromptParams:
		return handlerName{method, p.Name}, p.RequestState != "" || len(p.InputResponses) > 0
	case *mcp.ReadResourceParams:
		return handlerName{method, p.URI}, p.RequestState != "" || len(p.InputResponses) > 0
	}
	return handlerName{}, false
}

// withSession returns a request with another session.
func withSession(req mcp.Request, session *mcp.ServerSession) mcp.Request {
	switch r := req.(type) {
	case *mcp.CallToolRequest:
		return &mcp.CallToolRequest{Session: session, Params: r.Params, Extra: r.Extra}
	case *mcp.GetPromptRequest:
		return &mcp.GetPromptRequest{Session: session, Params: r.Params, Extra: r.Extra}
	case *mcp.ReadResourceRequest:
		return &mcp.ReadResourceRequest{Session: session, Params: r.Params, Extra: r.Extra}
	}
	return req
}

// modernSession returns the modern session of the conversation. It has no messages of its
// own: the messages of handlers in it belong to their calls.
func (m *modern) modernSession(ctx context.Context) (*mcp.ServerSession, error) {
	h, err := m.openRounds()
	if err != nil {
		return nil, err
	}
	select {
	case <-h.modern.ready:
		return h.session, nil
	case <-h.done:
		return nil, mcp.ErrConnectionClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// openRounds opens the modern session, once. The SDK takes it for modern because of the revision in its initialize.
func (m *modern) openRounds() (*handle, error) {
	m.rounds.mu.Lock()
	defer m.rounds.mu.Unlock()
	switch {
	case m.rounds.over:
		return nil, mcp.ErrConnectionClosed
	case m.rounds.open != nil:
		return m.rounds.open, nil
	}
	c := m.conn
	client := *c.session.InitializeParams()
	client.ProtocolVersion = protocol.V20260728
	params, err := json.Marshal(&client)
	if err != nil {
		return nil, err
	}
	h, err := c.b.connect(c.ctx, c.server, c.sink, "")
	if err != nil {
		return nil, err
	}
	h.modern, h.listener = &modern{conn: h.conn, ready: make(chan struct{})}, func() {}
	if err := h.putInitialize(params, nil); err != nil {
		_ = h.Close()
		return nil, err
	}
	m.rounds.open = h
	return h, nil
}

// endRounds ends the modern session, if there is one.
func (c *conn) endRounds() {
	if c.modern == nil {
		return
	}
	c.modern.rounds.mu.Lock()
	h := c.modern.rounds.open
	c.modern.rounds.open, c.modern.rounds.over = nil, true
	c.modern.rounds.mu.Unlock()
	if h != nil {
		_ = h.Close()
	}
}

// errAsksByItself keeps the SDK from asking the client for a handler.
var errAsksByItself = errors.New("the handler's InputRequests go to the client")

// asksByItself reports whether it is the SDK that asks the client of a modern conversation,
// because a handler has returned InputRequests, and not the handler. Nothing but the stack
// tells one from the other.
func asksByItself(ctx context.Context, method string) bool {
	switch method {
	case "elicitation/create", "sampling/createMessage", "roots/list":
	default:
		return false
	}
	if ctx.Value(modernKey{}) == nil {
		return false
	}
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "/mcp.fulfillServerInputRequest") {
			return true
		}
		if !more {
			return false
		}
	}
}
