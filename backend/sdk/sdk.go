// Package sdk is the backend for servers built with the official go-sdk: an
// unmodified *mcp.Server, driven through a transport of ours.
package sdk

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/session"
)

// A Backend opens sessions of mcp.Servers.
type Backend struct {
	getServer func(*http.Request) *mcp.Server

	mu     sync.Mutex
	known  map[weak.Pointer[mcp.Server]]bool // servers that have our middleware
	extras map[*mcp.RequestExtra]*session.Call
}

// New returns a backend whose sessions are answered by the server that getServer
// returns for their first request. It may return the same server each time; if
// it returns nil the session is refused.
func New(getServer func(*http.Request) *mcp.Server) *Backend {
	return &Backend{
		getServer: getServer,
		known:     make(map[weak.Pointer[mcp.Server]]bool),
		extras:    make(map[*mcp.RequestExtra]*session.Call),
	}
}

// Open implements [session.Backend].
func (b *Backend) Open(_ context.Context, start session.Start, sink session.Sink) (session.Conn, error) {
	server := b.getServer(start.HTTP)
	if server == nil {
		return nil, session.ErrNoServer
	}
	b.adopt(server)
	c := newConn(b, start, sink)
	// The handlers' contexts descend from this one: they get its values and not
	// its end.
	ss, err := server.Connect(context.WithoutCancel(start.HTTP.Context()), transport{c}, nil)
	if err != nil {
		return nil, err
	}
	return &handle{conn: c, session: ss}, nil
}

// handle is a conn as Holdfast closes it: with what the SDK has built on it.
type handle struct {
	*conn
	session *mcp.ServerSession
}

// handlerGrace is how long handlers may take to return once they are cancelled.
const handlerGrace = 5 * time.Second

// Close implements [session.Conn].
func (h *handle) Close() error {
	_ = h.conn.Close() // it has no error
	closed := make(chan error, 1)
	go func() { closed <- h.session.Close() }()
	t := time.NewTimer(handlerGrace)
	defer t.Stop()
	select {
	case err := <-closed:
		return err
	case <-t.C:
		return fmt.Errorf("handlers run on %v after their cancellation", handlerGrace)
	}
}

// adopt lets a server's handlers know which call they work for: its outermost
// receiving middleware puts the call into their context, where [conn.Write]
// finds it. (The SDK keeps the id of the request in a key of its own.)
func (b *Backend) adopt(server *mcp.Server) {
	p := weak.Make(server)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known[p] {
		return
	}
	b.known[p] = true
	runtime.AddCleanup(server, b.forget, p)
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if call := b.callOf(req.GetExtra()); call != nil {
				ctx = session.NewContext(ctx, call)
			}
			return next(ctx, method, req)
		}
	})
}

func (b *Backend) forget(p weak.Pointer[mcp.Server]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known, p)
}

// extra returns what the SDK is to pass to a request's handler, and remembers
// which call it stands for.
func (b *Backend) extra(in *session.Inbound) *mcp.RequestExtra {
	e := &mcp.RequestExtra{Header: in.Header}
	if in.Context != nil {
		e.TokenInfo = auth.TokenInfoFromContext(in.Context)
	}
	if in.Call == nil {
		return e
	}
	call := in.Call
	e.CloseSSEStream = func(args mcp.CloseSSEStreamArgs) {
		retry := args.RetryAfter
		if retry == 0 {
			retry = -1
		}
		call.Disconnect(retry)
	}
	b.mu.Lock()
	b.extras[e] = call
	b.mu.Unlock()
	return e
}

func (b *Backend) callOf(e *mcp.RequestExtra) *session.Call {
	if e == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.extras[e]
}

func (b *Backend) drop(e *mcp.RequestExtra) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.extras, e)
}
