package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"runtime"
	"sync"

	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend"
	"holdfast/internal/panics"
	"holdfast/jsonrpc"
)

// Most requests are tools/call. Between its connection and a handler the SDK decodes such a
// request twice, with a buffer of 32 KiB each time, on three goroutines. So plain calls are
// decoded once and given to the server's method handler directly, on one goroutine. All
// other requests go through the SDK, which also answers those that are wrong.

// direct starts a plain call of a tool, and reports whether the request is one.
func (c *conn) direct(in *backend.Inbound) bool {
	if in.Method != "tools/call" {
		return false
	}
	params, ok := plainCall(in.Params, c.modern)
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
		growStack()
		defer c.running.Done()
		defer cancel()
		c.run(ctx, n, id, req)
	}()
	return true
}

// run calls the tool of the direct call n, and emits the answer.
//
//go:noinline
func (c *conn) run(ctx context.Context, n int64, id []byte, req *mcp.CallToolRequest) {
	var answer jsonrpc.Message
	defer func() {
		if r, ok := c.take(n); ok {
			if answer.Kind == 0 { // the handler has ended the goroutine (runtime.Goexit)
				answer = failure(r.id, errNoAnswer)
			}
			c.emit(r.call, answer)
		}
	}()
	c.answer(ctx, id, req, &answer)
}

// growStack makes the stack of a new goroutine grow from 2 KiB to 4 KiB, which every call needs. The
// stack is still empty: to move it later takes longer than all other work of the backend.
//
//go:noinline
func growStack() {
	var room [1200]byte
	runtime.KeepAlive(&room)
}

// answer calls a tool and encodes its result; both may panic. The result is not returned, as
// the copies would double the stack of a call that waits.
func (c *conn) answer(ctx context.Context, id []byte, req *mcp.CallToolRequest, answer *jsonrpc.Message) {
	if err := c.callTool(ctx, id, req, answer); err != nil {
		fail(id, err, answer)
	}
}

func (c *conn) callTool(ctx context.Context, id []byte, req *mcp.CallToolRequest, answer *jsonrpc.Message) (err error) {
	defer onWire(&err)
	defer panics.Catch(&err, c.b.logger(), handling, "tools/call")
	result, err := handlerOf(c.server)(ctx, "tools/call", req)
	c.encode(id, result, err, answer)
	return nil
}

// encode encodes the result of a call. Its copy of the answer is not on the stack while the tool
// runs.
//
//go:noinline
func (c *conn) encode(id []byte, result mcp.Result, err error, answer *jsonrpc.Message) {
	*answer = c.response(id, result, err)
}

// fail sets the answer to a call that has failed.
//
//go:noinline
func fail(id []byte, err error, answer *jsonrpc.Message) { *answer = failure(id, err) }

// errNoAnswer is the error of a handler that returned nothing.
var errNoAnswer = &sdkrpc.Error{Code: sdkrpc.CodeInternalError, Message: "the handler returned neither a result nor an error"}

// begin stores a direct call. It returns false if the session has ended or is not
// initialized, or if the SDK has yet to handle a notification that came before the call.
func (c *conn) begin(r request) (n int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ready {
		c.ready = c.session.InitializeParams() != nil && (c.modern == nil || c.modern.isReady())
	}
	if c.over || c.closing || !c.ready || c.notice != nil {
		return 0, false
	}
	c.running.Add(1)
	return c.add(r), true
}

// plainCall decodes the params of a tools/call. It returns false if anything in them is
// wrong, belongs to another revision than the conversation's, or asks for log messages.
func plainCall(params []byte, modern *modern) (*mcp.CallToolParamsRaw, bool) {
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
			if plain = plain && p.Meta == nil; !plain {
				return
			}
			p.Meta, plain = modern.metaOf(value)
		default:
			plain = false
		}
	})
	return p, object && plain
}

// handlerOf returns the method handler of a server, with its present middleware. It
// adds a middleware that returns the handler it gets, which changes nothing.
func handlerOf(server *mcp.Server) mcp.MethodHandler {
	look := lookers.Get().(*looker)
	defer lookers.Put(look)
	server.AddReceivingMiddleware(look.middleware...)
	h := look.found
	look.found = nil
	return h
}

// A looker is the middleware that handlerOf adds.
type looker struct {
	found      mcp.MethodHandler
	middleware []mcp.Middleware // itself, as a list
}

// lookers are kept for reuse: each call needs one.
var lookers = sync.Pool{New: func() any {
	l := &looker{}
	l.middleware = []mcp.Middleware{func(next mcp.MethodHandler) mcp.MethodHandler {
		l.found = next
		return next
	}}
	return l
}}

// response makes a response of a handler's result or error, as the SDK does.
func (c *conn) response(id []byte, result mcp.Result, err error) jsonrpc.Message {
	if err == nil && result == nil {
		err = errNoAnswer
	}
	if err != nil {
		return failure(id, err)
	}
	if m, ok := c.textOf(id, result); ok {
		return m
	}
	text, err := encode(result)
	if err != nil {
		return failure(id, errEncode(err))
	}
	if c.modern != nil {
		text = c.modern.complete(text)
	}
	return success(id, text)
}

// encode encodes a result as JSON, as the SDK does.
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
