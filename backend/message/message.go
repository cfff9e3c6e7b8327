// Package message is the backend for those who answer raw JSON-RPC messages
// themselves: gateways, and servers written without an SDK.
package message

import (
	"bytes"
	"context"

	"holdfast/backend"
	"holdfast/jsonrpc"
)

// A Handler answers the messages of clients. Serve is called for every request,
// every notification, and every response to a request that the handler made. It
// must not wait for anything: what takes time goes on in a goroutine or a timer,
// which keeps the exchange. Serve may be called concurrently.
type Handler interface {
	Serve(x *Exchange)
}

// HandlerFunc makes a function a Handler.
type HandlerFunc func(x *Exchange)

// Serve calls f.
func (f HandlerFunc) Serve(x *Exchange) { f(x) }

// An Exchange is one message of a client, and the means to speak about it. Its
// methods may be called concurrently, and after Serve has returned. Raw JSON
// that is given to them must be well-formed and is kept.
type Exchange struct {
	backend.Inbound
	Sink backend.Sink
}

// Result answers the request.
func (x *Exchange) Result(result []byte) {
	result = oneLine(result)
	raw := jsonrpc.AppendResult(make([]byte, 0, len(result)+len(x.ID)+40), x.ID, result)
	x.Sink.Emit(x.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: x.ID, Result: result, Raw: raw})
}

// Error fails the request. A nil error is an internal one.
func (x *Exchange) Error(e *jsonrpc.Error) {
	if e == nil {
		e = jsonrpc.Errorf(jsonrpc.CodeInternal, "internal error")
	}
	raw := jsonrpc.AppendError(nil, x.ID, e)
	x.Sink.Emit(x.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: x.ID, Error: jsonrpc.Field(raw, "error"), Raw: raw})
}

// Notify says something about the request before its answer.
func (x *Exchange) Notify(method string, params []byte) {
	params = oneLine(params)
	raw := jsonrpc.AppendRequest(make([]byte, 0, len(params)+len(method)+40), nil, method, params)
	x.Sink.Emit(x.Call, jsonrpc.Message{Kind: jsonrpc.Notification, Method: method, Params: params, Raw: raw})
}

// Request asks the client something about the request. The answer comes to the
// handler as a message of its own, with the id given here, which must be in use
// once at a time in the session.
func (x *Exchange) Request(id []byte, method string, params []byte) {
	params = oneLine(params)
	raw := jsonrpc.AppendRequest(nil, id, method, params)
	x.Sink.Emit(x.Call, jsonrpc.Message{Kind: jsonrpc.Request, ID: id, Method: method, Params: params, Raw: raw})
}

// oneLine makes the line breaks between tokens blanks: a message is a line, and
// so are its parts. What it is given stays as it is.
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

// A Closer is a [Handler] that is told when a conversation has ended.
type Closer interface {
	// Closed is called once for each conversation, when it has ended. sink is the one
	// that its exchanges had.
	Closed(sink backend.Sink)
}

// New returns a backend that hands every message to h, which may be a [Closer].
func New(h Handler) backend.Backend { return &server{h} }

type server struct{ h Handler }

// Open implements [backend.Backend].
func (b *server) Open(_ context.Context, _ backend.Start, sink backend.Sink) (backend.Conn, error) {
	return &conn{h: b.h, sink: sink}, nil
}

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
