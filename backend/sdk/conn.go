package sdk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// transport is an [mcp.Transport] with a connection that exists already.
type transport struct{ c *conn }

// Connect implements [mcp.Transport].
func (t transport) Connect(context.Context) (mcp.Connection, error) { return t.c, nil }

// conn is one session: an [mcp.Connection] to the SDK and, inside a handle, a
// [backend.Conn] to Holdfast.
//
// The SDK converts ids to float64. So it gets numbers of our own, and conn keeps the client's ids.
type conn struct {
	b       *Backend
	secret  string
	sink    backend.Sink
	server  *mcp.Server
	session *mcp.ServerSession // set before a message is delivered
	ctx     context.Context    // the parent of handlers' contexts

	in   chan sdkrpc.Message
	done chan struct{}

	running sync.WaitGroup // handlers of direct calls, and listens that end

	modern   *modern      // nil in a legacy conversation
	call     backend.Call // the call of all messages, in the conversation of a listen; else nil
	listener func()       // called when a listen was answered

	mu       sync.Mutex
	last     int64
	requests map[int64]request
	notice   *mcp.RequestExtra // of the last notification, until the SDK has handled it
	ready    bool              // the SDK has seen initialize
	closing  bool              // the SDK has closed the conversation: no direct call begins
	over     bool
}

// request is a request that has not been answered.
type request struct {
	id     []byte // the client's id
	call   backend.Call
	extra  *mcp.RequestExtra  // of a request that went to the SDK
	cancel context.CancelFunc // of a direct call
}

// SessionID implements [mcp.Connection].
func (c *conn) SessionID() string { return c.secret }

// Deliver implements [backend.Conn]. It waits for the SDK's reading goroutine,
// which only queues.
func (c *conn) Deliver(in backend.Inbound) error {
	if c.modern != nil {
		if done, err := c.deliverModern(&in); done || err != nil {
			return err
		}
	}
	if in.Kind == jsonrpc.Request && c.direct(&in) {
		return nil
	}
	m, err := c.translate(&in)
	if err != nil || m == nil {
		return err
	}
	return c.put(m)
}

// put hands a message to the SDK.
func (c *conn) put(m sdkrpc.Message) error {
	select {
	case c.in <- m:
		return nil
	case <-c.done:
		return mcp.ErrConnectionClosed
	}
}

// translate converts a message for the SDK. It returns nil for a message that the SDK does
// not need.
func (c *conn) translate(in *backend.Inbound) (sdkrpc.Message, error) {
	switch in.Kind {
	case jsonrpc.Request:
		extra := newExtra(in)
		modern := jsonrpc.Field(in.Params, "_meta", mcp.MetaKeyProtocolVersion) != nil // the SDK changes the _meta of its results
		c.b.remember(extra, origin{call: in.Call, encode: !modern})
		c.mu.Lock()
		over, id := c.over, int64(0)
		if !over {
			id = c.add(request{id: in.ID, call: in.Call, extra: extra})
		}
		c.mu.Unlock()
		if over { // end has dropped the other requests
			c.b.drop(extra)
			return nil, mcp.ErrConnectionClosed
		}
		return &sdkrpc.Request{ID: number(id), Method: in.Method, Params: in.Params, Extra: extra}, nil
	case jsonrpc.Notification:
		params := in.Params
		if in.Method == protocol.MethodCancelled {
			if params = c.cancelled(params); params == nil {
				return nil, nil
			}
		}
		extra := newExtra(in)
		switch in.Method { // those that a handler may act upon
		case "notifications/initialized", "notifications/roots/list_changed":
			c.deliverNotice(extra)
		}
		return &sdkrpc.Request{Method: in.Method, Params: params, Extra: extra}, nil
	}
	id, err := answerID(in.ID)
	if err != nil {
		return nil, err
	}
	r := &sdkrpc.Response{ID: id, Result: in.Result}
	if in.Error != nil {
		r.Error = answerError(in.Error)
	}
	return r, nil
}

// answerError converts the error of a client's answer. If a member is not of the type that JSON-RPC defines, such as -1.0 or a text for
// the code, it is read as far as it can be: a handler waits for the answer.
func answerError(raw []byte) *sdkrpc.Error {
	e := new(sdkrpc.Error)
	if json.Unmarshal(raw, e) == nil {
		return e
	}
	e = &sdkrpc.Error{Message: cmp.Or(jsonrpc.String(jsonrpc.Field(raw, "message")), string(raw)), Data: jsonrpc.Field(raw, "data")}
	if code, err := strconv.ParseFloat(string(jsonrpc.Field(raw, "code")), 64); err == nil {
		e.Code = int64(code)
	}
	return e
}

// add stores a request and returns the number that the SDK gets as its id. c.mu is held.
func (c *conn) add(r request) int64 {
	c.last++
	if c.requests == nil {
		c.requests = make(map[int64]request, 1)
	}
	c.requests[c.last] = r
	return c.last
}

// take removes and returns a request, and reports whether it was there.
func (c *conn) take(n int64) (request, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.requests[n]
	delete(c.requests, n)
	return r, ok
}

// deliverNotice stores that the SDK gets a notification. The SDK handles notifications in
// their order, so the last one is enough.
func (c *conn) deliverNotice(e *mcp.RequestExtra) {
	c.b.remember(e, origin{notice: c})
	c.mu.Lock()
	before := c.notice
	if c.notice = e; c.over {
		before, c.notice = e, nil
	}
	c.mu.Unlock()
	c.b.drop(before)
}

// handled stores that the SDK has handled a notification.
func (c *conn) handled(e *mcp.RequestExtra) {
	c.mu.Lock()
	if c.notice == e {
		c.notice = nil
	}
	c.mu.Unlock()
	c.b.drop(e)
}

// cancelled cancels a direct call, or returns the params of the notification with the SDK's
// id for the request. It returns nil if the SDK does not know the request.
func (c *conn) cancelled(params []byte) []byte {
	id := jsonrpc.Field(params, "requestId")
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, r := range c.requests {
		if id != nil && string(r.id) == string(id) {
			if r.cancel != nil {
				r.cancel()
				return nil
			}
			fields := map[string]json.RawMessage{}
			_ = json.Unmarshal(params, &fields) // well-formed: it was parsed
			fields["requestId"] = strconv.AppendInt(nil, n, 10)
			text, _ := json.Marshal(fields)
			return text
		}
	}
	return nil
}

func number(n int64) sdkrpc.ID {
	id, _ := sdkrpc.MakeID(float64(n)) // a float64 always makes an id
	return id
}

// answerID converts the id of a response, which the SDK made, back to its own type.
func answerID(raw []byte) (sdkrpc.ID, error) {
	if raw[0] == '"' {
		return sdkrpc.MakeID(jsonrpc.String(raw))
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return sdkrpc.ID{}, fmt.Errorf("answer to %s: %w", raw, err)
	}
	return number(n), nil
}

// Read implements [mcp.Connection].
func (c *conn) Read(ctx context.Context) (sdkrpc.Message, error) {
	select {
	case m := <-c.in:
		return m, nil
	case <-c.done:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements [mcp.Connection]. An error that is not a rejection would end the session.
func (c *conn) Write(ctx context.Context, m sdkrpc.Message) error {
	select {
	case <-c.done:
		return io.ErrClosedPipe
	default:
	}
	switch m := m.(type) {
	case *sdkrpc.Response:
		return c.respond(m)
	case *sdkrpc.Request:
		return c.send(ctx, m)
	}
	return fmt.Errorf("unexpected message of type %T", m)
}

func (c *conn) respond(m *sdkrpc.Response) error {
	n, _ := m.ID.Raw().(int64)
	r, ok := c.take(n)
	if !ok {
		return nil
	}
	c.b.drop(r.extra)
	switch {
	case r.id == nil: // the initialize of a modern conversation
		c.modern.initialized(m.Result)
	case m.Error != nil:
		c.sink.Emit(r.call, failure(r.id, m.Error))
	case c.modern != nil:
		c.emit(r.call, success(r.id, typed(m.Result)))
	default:
		c.emit(r.call, success(r.id, m.Result))
	}
	if c.listener != nil {
		c.listener()
	}
	return nil
}

// emit passes a response on.
func (c *conn) emit(call backend.Call, m jsonrpc.Message) {
	if len(m.Raw) > budget.Uncounted {
		c.emitLong(call, m)
		return
	}
	c.sink.Emit(call, m)
}

// emitLong is emit for a response that is long: it waits for its turn.
func (c *conn) emitLong(call backend.Call, m jsonrpc.Message) {
	n := int64(len(m.Raw))
	arrival := budget.Of(c.sink).Arrive(c.done)
	defer arrival.Done()
	if err := arrival.Grow(n, n); err != nil {
		m = failure(m.ID, &sdkrpc.Error{Code: protocol.CodeOutcomeUnknown, Message: protocol.TextOutcomeUnknown + ": " + err.Error()})
	}
	c.sink.Emit(call, m)
}

func success(id, result []byte) jsonrpc.Message {
	raw := jsonrpc.AppendResult(make([]byte, 0, len(result)+len(id)+40), id, result)
	return jsonrpc.Message{Kind: jsonrpc.Response, ID: id, Result: result, Raw: raw}
}

func failure(id []byte, err error) jsonrpc.Message {
	e := &jsonrpc.Error{Message: err.Error()}
	if wire, ok := errors.AsType[*sdkrpc.Error](err); ok {
		e.Code, e.Data = int(wire.Code), wire.Data
	}
	raw := jsonrpc.AppendError(nil, id, e)
	return jsonrpc.Message{Kind: jsonrpc.Response, ID: id, Error: jsonrpc.Field(raw, "error"), Raw: raw}
}

// send passes a notification or a request of the server on. The context says which call it
// belongs to.
func (c *conn) send(ctx context.Context, m *sdkrpc.Request) error {
	out := jsonrpc.Message{Kind: jsonrpc.Notification, Method: m.Method, Params: m.Params}
	if c.modern != nil && m.IsCall() && m.Method == protocol.MethodPing {
		go func() { _ = c.put(&sdkrpc.Response{ID: m.ID, Result: json.RawMessage(`{}`)}) }() // modern clients know no pings
		return nil
	}
	if m.IsCall() {
		id, err := json.Marshal(m.ID.Raw())
		if err != nil {
			return fmt.Errorf("id of %s: %w", m.Method, err)
		}
		out.Kind, out.ID = jsonrpc.Request, id
	}
	out.Raw = jsonrpc.AppendRequest(make([]byte, 0, len(m.Params)+len(m.Method)+64), out.ID, m.Method, m.Params)
	call := c.call
	if call == nil {
		call = backend.FromContext(ctx)
	}
	if call != nil {
		c.sink.Emit(call, out)
	} else {
		c.sink.EmitUnrelated(out)
	}
	return nil
}

// Close implements [mcp.Connection]. The SDK calls it when the handlers that it runs have
// returned. The conversation ends when the handlers of direct calls have returned too.
// Close itself must not wait, because the SDK holds a lock.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	go func() {
		c.running.Wait()
		c.end()
	}()
	return nil
}

// end ends the conversation and cancels the handlers that still run. The SDK reads the end
// of its input, and ends its session when its handlers have returned.
func (c *conn) end() {
	c.mu.Lock()
	over, left, notice := c.over, c.requests, c.notice
	c.over, c.requests, c.notice = true, nil, nil
	c.mu.Unlock()
	if over {
		return
	}
	close(c.done)
	c.b.drop(notice)
	for _, r := range left {
		if r.cancel != nil {
			r.cancel()
		}
		c.b.drop(r.extra)
	}
	if c.listener != nil {
		return // this session is not the whole conversation
	}
	// If it was the SDK that closed, the session is over.
	go c.sink.Closed(errors.New("the server closed the session"), false)
}
