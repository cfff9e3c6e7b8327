// Package message is a backend that passes raw JSON-RPC messages to a Go function: for
// gateways, and for servers that are written without an SDK.
//
// Write a [Handler], make a backend of it with [New], and serve that with
// holdfast.NewBackendHandler.
package message

import (
	"bytes"
	"context"

	"holdfast/backend"
	"holdfast/jsonrpc"
)

// A Handler answers the messages of clients. It may also implement [Closer].
type Handler interface {
	// Serve handles a request, a notification, or the response to a request that the
	// handler made; x.Kind says which. It must not wait: work that takes time
	// continues on another goroutine, which keeps x and answers later. Every request
	// must be answered once, with Result or Error. Serve may be called concurrently.
	Serve(x *Exchange)
}

// A HandlerFunc is a function that is a [Handler].
type HandlerFunc func(x *Exchange)

// Serve calls f(x).
func (f HandlerFunc) Serve(x *Exchange) { f(x) }

// An Exchange is one message of a client, with the means to answer it. Its methods may be
// called concurrently, and after Serve has returned. Arguments that are JSON must be
// well-formed and must not be changed afterwards. Messages after the response to the
// request are dropped, or sent on the session's standalone stream.
type Exchange struct {
	backend.Inbound
	// Sink takes messages that the methods below do not cover, such as those that
	// belong to no request.
	Sink backend.Sink
}

// Result answers the request with a result.
func (x *Exchange) Result(result []byte) {
	result = oneLine(result)
	raw := jsonrpc.AppendResult(make([]byte, 0, len(result)+len(x.ID)+40), x.ID, result)
	x.Sink.Emit(x.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: x.ID, Result: result, Raw: raw})
}

// Error answers the request with an error; nil stands for an internal error.
func (x *Exchange) Error(e *jsonrpc.Error) {
	if e == nil {
		e = jsonrpc.Errorf(jsonrpc.CodeInternal, "internal error")
	}
	raw := jsonrpc.AppendError(nil, x.ID, e)
	x.Sink.Emit(x.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: x.ID, Error: jsonrpc.Field(raw, "error"), Raw: raw})
}

// Notify sends the client a notification that belongs to the request.
func (x *Exchange) Notify(method string, params []byte) {
	params = oneLine(params)
	raw := jsonrpc.AppendRequest(make([]byte, 0, len(params)+len(method)+40), nil, method, params)
	x.Sink.Emit(x.Call, jsonrpc.Message{Kind: jsonrpc.Notification, Method: method, Params: params, Raw: raw})
}

// Request sends the client a request that belongs to this one, such as an elicitation. The
// client's response comes to [Handler.Serve] with the id that is given here. No other
// request in flight of the same session may have that id.
func (x *Exchange) Request(id []byte, method string, params []byte) {
	params = oneLine(params)
	raw := jsonrpc.AppendRequest(nil, id, method, params)
	x.Sink.Emit(x.Call, jsonrpc.Message{Kind: jsonrpc.Request, ID: id, Method: method, Params: params, Raw: raw})
}

// oneLine returns JSON with spaces in the place of line breaks, because a message is one
// line. It does not change raw.
func oneLine(raw []byte) []byte {
	if bytes.IndexByte(raw, '\n') < 0 && bytes.IndexByte(raw, '\r') < 0 {
		return raw
	}
	raw = bytes.Clone(raw)
	for i, c := range raw {
		if c == '\n' || c == '\r' {
			raw[i] = ' '
		}
	}
	return raw
}

// A Closer is a [Handler] that is told when a conversation has ended, to release its resources.
type Closer interface {
	// Closed is called once for each conversation. The exchanges of the conversation had
	// this sink. A session that is opened again has a new sink.
	Closed(sink backend.Sink)
}

// New returns a backend that hands every message to h, which may be a [Closer]. h speaks a
// legacy revision, up to 2025-11-25: a session begins with an initialize request. Holdfast
// translates for modern clients.
func New(h Handler) backend.Backend { return &server{h} }

type server struct{ h Handler }

// Open implements [backend.Backend].
func (b *server) Open(_ context.Context, _ backend.Start, sink backend.Sink) (backend.Conn, error) {
	return &conn{h: b.h, sink: sink}, nil
}

// Eras implements [backend.EraSpeaker].
func (b *server) Eras() backend.Eras { return backend.Legacy }

type conn struct {
	h    Handler
	sink backend.Sink
}

// Deliver implements [backend.Conn].
func (c *conn) Deliver(in backend.Inbound) error {
	c.h.Serve(&Exchange{Inbound: in, Sink: c.sink})
	return nil
}

// Close implements [backend.Conn].
func (c *conn) Close() error {
	if h, ok := c.h.(Closer); ok {
		h.Closed(c.sink)
	}
	return nil
}
