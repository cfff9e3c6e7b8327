package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/jsonrpc"
	"holdfast/session"
)

// transport gives the SDK a connection that exists already.
type transport struct{ c *conn }

// Connect implements [mcp.Transport].
func (t transport) Connect(context.Context) (mcp.Connection, error) { return t.c, nil }

// conn is one session, seen from the SDK as an [mcp.Connection] and from
// Holdfast as a [session.Conn]. The two Closes are one method, which may be
// called by both.
//
// Ids: the SDK passes ids through float64, so it is given numbers of ours, and
// the client's bytes are kept here.
type conn struct {
	b      *Backend
	secret string
	sink   session.Sink

	in   chan sdkrpc.Message
	done chan struct{}
	once sync.Once

	mu       sync.Mutex
	last     int64
	requests map[int64]request
}

// request is one that the SDK has not answered.
type request struct {
	id    []byte // the client's
	call  *session.Call
	extra *mcp.RequestExtra
}

func newConn(b *Backend, start session.Start, sink session.Sink) *conn {
	return &conn{
		b:      b,
		secret: start.Secret,
		sink:   sink,
		in:     make(chan sdkrpc.Message, 4),
		done:   make(chan struct{}),
	}
}

// SessionID implements [mcp.Connection].
func (c *conn) SessionID() string { return c.secret }

// Deliver implements [session.Conn]. It waits for the SDK's reading goroutine,
// which only queues.
func (c *conn) Deliver(in session.Inbound) error {
	m, err := c.translate(&in)
	if err != nil || m == nil {
		return err
	}
	select {
	case c.in <- m:
		return nil
	case <-c.done:
		return mcp.ErrConnectionClosed
	}
}

// translate makes a message of the SDK's out of one of ours. A nil message is
// one that the SDK has no use for.
func (c *conn) translate(in *session.Inbound) (sdkrpc.Message, error) {
	switch in.Kind {
	case jsonrpc.Request:
		extra := c.b.extra(in)
		c.mu.Lock()
		c.last++
		id := c.last
		if c.requests == nil {
			c.requests = make(map[int64]request, 1)
		}
		c.requests[id] = request{id: in.ID, call: in.Call, extra: extra}
		c.mu.Unlock()
		return &sdkrpc.Request{ID: number(id), Method: in.Method, Params: in.Params, Extra: extra}, nil
	case jsonrpc.Notification:
		params := in.Params
		if in.Method == "notifications/cancelled" {
			if params = c.cancelled(params); params == nil {
				return nil, nil
			}
		}
		return &sdkrpc.Request{Method: in.Method, Params: params, Extra: c.b.extra(in)}, nil
	}
	id, err := answerID(in.ID)
	if err != nil {
		return nil, err
	}
	r := &sdkrpc.Response{ID: id, Result: in.Result}
	if in.Error != nil {
		e := new(sdkrpc.Error)
		if err := json.Unmarshal(in.Error, e); err != nil {
			return nil, fmt.Errorf("answer: %w", err)
		}
		r.Error = e
	}
	return r, nil
}

// cancelled puts our number in the place of the client's id. It returns nil if
// there is no such request.
func (c *conn) cancelled(params []byte) []byte {
	id := jsonrpc.Field(params, "requestId")
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, r := range c.requests {
		if id != nil && string(r.id) == string(id) {
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

// answerID makes an SDK id of the raw one that the SDK gave itself.
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

// Write implements [mcp.Connection]. An error that is not "rejected" would end
// the session.
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
		return c.say(ctx, m)
	}
	return fmt.Errorf("unexpected message of type %T", m)
}

func (c *conn) respond(m *sdkrpc.Response) error {
	n, ok := m.ID.Raw().(int64)
	c.mu.Lock()
	r, found := c.requests[n]
	delete(c.requests, n)
	c.mu.Unlock()
	if !ok || !found {
		return nil
	}
	c.b.drop(r.extra)
	out := jsonrpc.Message{Kind: jsonrpc.Response, ID: r.id}
	if m.Error == nil {
		out.Result = m.Result
		out.Raw = jsonrpc.AppendResult(make([]byte, 0, len(m.Result)+len(r.id)+40), r.id, m.Result)
	} else {
		e := &jsonrpc.Error{Message: m.Error.Error()}
		var wire *sdkrpc.Error
		if errors.As(m.Error, &wire) {
			e.Code, e.Data = int(wire.Code), wire.Data
		}
		out.Raw = jsonrpc.AppendError(nil, r.id, e)
		out.Error = jsonrpc.Field(out.Raw, "error")
	}
	c.sink.Emit(r.call, out)
	return nil
}

func (c *conn) say(ctx context.Context, m *sdkrpc.Request) error {
	out := jsonrpc.Message{Kind: jsonrpc.Notification, Method: m.Method, Params: m.Params}
	if m.IsCall() {
		id, err := json.Marshal(m.ID.Raw())
		if err != nil {
			return fmt.Errorf("id of %s: %w", m.Method, err)
		}
		out.Kind, out.ID = jsonrpc.Request, id
	}
	out.Raw = jsonrpc.AppendRequest(make([]byte, 0, len(m.Params)+len(m.Method)+64), out.ID, m.Method, m.Params)
	if call := session.FromContext(ctx); call != nil {
		c.sink.Emit(call, out)
	} else {
		c.sink.EmitUnrelated(out)
	}
	return nil
}

// Close implements [mcp.Connection] and [session.Conn]. The SDK's reader then
// sees the end of its input, cancels the handlers that still run, and ends the
// session when they have returned.
func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.done)
		c.mu.Lock()
		left := c.requests
		c.requests = nil
		c.mu.Unlock()
		for _, r := range left {
			c.b.drop(r.extra)
		}
		// If it was the SDK that closed, the session is over.
		go c.sink.Closed(errors.New("the server closed the session"), false)
	})
	return nil
}
