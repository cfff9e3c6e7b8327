package sdk

import (
	"bytes"
	"context"
	"encoding/json"

	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend"
	"holdfast/internal/panics"
	"holdfast/jsonrpc"
)

// Most of what a server does is to answer tools/call. On the SDK's own way from
// a connection to a handler such a request is decoded twice, with a buffer of
// 32 KiB each time, and passes three goroutines. So a plain one is handed to the
// server's method handler as the connection would hand it over, on one goroutine
// and decoded once. Whatever is not plain goes the SDK's way, and what the SDK
// says about it is its own.

// direct starts a call of a tool, and says whether it did.
func (c *conn) direct(in *backend.Inbound) bool {
	if in.Method != "tools/call" {
		return false
	}
	params, ok := plainCall(in.Params)
	if !ok {
		return false
	}
	ctx, cancel := context.WithCancel(backend.NewContext(c.ctx, in.Call))
	n, ok := c.begin(request{id: in.ID, call: in.Call, cancel: cancel})
	if !ok {
		cancel()
		return false
	}
	id := in.ID // so that in need not live on the heap
	req := &mcp.CallToolRequest{Session: c.session, Params: params, Extra: newExtra(in)}
	go func() {
		defer c.running.Done()
		defer cancel()
		var answer jsonrpc.Message
		defer func() {
			if r, ok := c.take(n); ok {
				if answer.Kind == 0 { // the handler has ended the goroutine (runtime.Goexit)
					answer = failure(r.id, errNoAnswer)
				}
				c.sink.Emit(r.call, answer)
			}
		}()
		answer = c.answer(ctx, id, req)
	}()
	return true
}

// answer calls a tool. Its result may panic, too, where it makes JSON of itself.
func (c *conn) answer(ctx context.Context, id []byte, req *mcp.CallToolRequest) jsonrpc.Message {
	var answer jsonrpc.Message
	err := func() (err error) {
		defer onWire(&err)
		defer panics.Catch(&err, c.b.logger(), handling, "tools/call")
		result, err := handlerOf(c.server)(ctx, "tools/call", req)
		answer = response(id, result, err)
		return nil
	}()
	if err != nil {
		return failure(id, err)
	}
	return answer
}

// errNoAnswer answers for a handler that returned nothing.
var errNoAnswer = &sdkrpc.Error{Code: sdkrpc.CodeInternalError, Message: "the handler returned neither a result nor an error"}

// begin puts a direct call on record, unless the session is not ready for one:
// it is over, not initialized, or the SDK is still at work on a notification that
// came before the call.
func (c *conn) begin(r request) (n int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready {
		c.ready = c.session.InitializeParams() != nil
	}
	if c.over || c.closing || !c.ready || c.notice != nil {
		return 0, false
	}
	c.running.Add(1)
	return c.add(r), true
}

// plainCall decodes the params of a tools/call in which there is nothing that
// only newer revisions have, and nothing wrong.
func plainCall(params []byte) (*mcp.CallToolParamsRaw, bool) {
	p := new(mcp.CallToolParamsRaw)
	plain := true
	object := jsonrpc.Each(params, func(name, value []byte) {
		switch string(name) {
		case "name":
			p.Name = jsonrpc.String(value)
			plain = plain && value[0] == '"'
		case "arguments":
			p.Arguments = value
			plain = plain && value[0] == '{'
		case "_meta":
			plain = plain && p.Meta == nil && json.Unmarshal(value, &p.Meta) == nil && p.Meta[mcp.MetaKeyProtocolVersion] == nil
		default:
			plain = false
		}
	})
	return p, object && plain
}

// handlerOf returns a server's method handler with all the middleware that it
// has now: a middleware is shown what it would wrap, and one that returns just
// that adds nothing.
func handlerOf(server *mcp.Server) (h mcp.MethodHandler) {
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		h = next
		return next
	})
	return h
}

// response is what the client is told of a handler's return, as the SDK has it.
func response(id []byte, result mcp.Result, err error) jsonrpc.Message {
	if err == nil && result == nil {
		err = errNoAnswer
	}
	if err != nil {
		return failure(id, err)
	}
	text, err := encode(result)
	if err != nil {
		return failure(id, errEncode(err))
	}
	return success(id, text)
}

// encode makes JSON of a result as the SDK does.
func encode(result mcp.Result) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(result)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}

func errEncode(err error) error {
	return &sdkrpc.Error{Code: sdkrpc.CodeInternalError, Message: "the result cannot be encoded: " + err.Error()}
}
