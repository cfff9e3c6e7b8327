// Package sdk is the backend for servers of the official go-sdk: it connects to an
// unmodified mcp.Server for each session.
//
// holdfast.NewHandler uses it; a program needs this package only to wrap the backend in one
// of its own.
package sdk

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend"
	"holdfast/internal/panics"
)

// A Backend is a [backend.Backend] for mcp.Servers. Its method may be called concurrently.
type Backend struct {
	// Logger logs panics of handlers; slog.Default() if nil. It must not be changed once
	// the backend is in use.
	Logger *slog.Logger

	getServer func(*http.Request) *mcp.Server

	mu     sync.Mutex
	known  map[weak.Pointer[mcp.Server]]*asking // servers that have our middleware
	extras map[*mcp.RequestExtra]origin
}

// origin is the message that the SDK handles when it passes on a RequestExtra.
type origin struct {
	call   backend.Call // of a request
	encode bool         // the result of the request is encoded before the SDK gets it
	notice *conn        // the session of a notification
}

// New returns a backend. getServer returns the server of a new session. It gets the request
// that began the session, and may be called concurrently. It may return the same server
// each time. If it returns nil the session is refused with [backend.ErrNoServer].
func New(getServer func(*http.Request) *mcp.Server) *Backend {
	return &Backend{
		getServer: getServer,
		known:     make(map[weak.Pointer[mcp.Server]]*asking),
		extras:    make(map[*mcp.RequestExtra]origin),
	}
}

// Open implements [backend.Backend].
func (b *Backend) Open(_ context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	server := b.serverOf(start.HTTP)
	if server == nil {
		return nil, backend.ErrNoServer
	}
	b.adopt(server)
	// The contexts of handlers descend from this one: they have its values, and are not
	// canceled with it.
	ctx := context.WithoutCancel(start.HTTP.Context())
	if start.Revision != "" {
		return b.openModern(ctx, server, sink)
	}
	c, err := b.connect(ctx, server, sink, start.Secret)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// connect begins a session with a server.
func (b *Backend) connect(ctx context.Context, server *mcp.Server, sink backend.Sink, secret string) (*handle, error) {
	c := &conn{
		b:      b,
		secret: secret,
		sink:   sink,
		server: server,
		ctx:    ctx,
		in:     make(chan sdkrpc.Message, 4),
		done:   make(chan struct{}),
	}
	var err error
	if c.session, err = server.Connect(c.ctx, transport{c}, nil); err != nil {
		return nil, err
	}
	return &handle{c}, nil
}

// handle is a conn with a Close that ends the SDK's session, too.
type handle struct{ *conn }

// handlerGrace is how long handlers may take to return once they are cancelled.
const handlerGrace = 5 * time.Second

// Close implements [backend.Conn].
func (h *handle) Close() error {
	h.endListens()
	h.end()
	h.endRounds()
	closed := make(chan error, 1)
	go func() {
		h.running.Wait()
		closed <- h.session.Close()
	}()
	t := time.NewTimer(handlerGrace)
	defer t.Stop()
	select {
	case err := <-closed:
		return err
	case <-t.C:
		return fmt.Errorf("handlers run on %v after their cancellation", handlerGrace)
	}
}

// adopt adds our middleware to a server that does not have it yet. The outermost receiving
// middleware puts the call into the context of handlers, where [conn.Write] finds it. (The
// SDK keeps the id of the request in a key of its own.)
func (b *Backend) adopt(server *mcp.Server) {
	p := weak.Make(server)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known[p] != nil {
		return
	}
	b.known[p] = new(asking)
	runtime.AddCleanup(server, b.forget, p)
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			from := b.origin(req.GetExtra())
			if from.call != nil {
				ctx = backend.NewContext(ctx, from.call)
			}
			if from.notice != nil {
				defer from.notice.handled(req.GetExtra())
			}
			res, err := b.handle(ctx, next, method, req)
			if err == nil && res != nil && from.encode {
				return b.encode(method, res)
			}
			return res, err
		}
	})
	server.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if asksByItself(ctx, method) {
				return nil, errAsksByItself
			}
			return b.run(ctx, next, method, req)
		}
	})
}

// handle calls a handler as [Backend.run] does.
func (b *Backend) handle(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request) (_ mcp.Result, err error) {
	defer onWire(&err)
	defer panics.Catch(&err, b.logger(), handling, method)
	return throughRounds(ctx, next, method, req)
}

// run calls handlers and middleware of the user. A panic becomes the error of this one
// message: the SDK runs handlers, keep-alives and notifications on goroutines of its own,
// where a panic would end the process. (Middleware that is added to a server in use is out
// of reach: it wraps ours.)
func (b *Backend) run(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request) (_ mcp.Result, err error) {
	defer onWire(&err)
	defer panics.Catch(&err, b.logger(), handling, method)
	return next(ctx, method, req)
}

// encoded is a result with its JSON.
type encoded struct {
	mcp.Result
	text []byte
}

// MarshalJSON implements [json.Marshaler].
func (e encoded) MarshalJSON() ([]byte, error) { return e.text, nil }

// encode encodes a result as JSON. If the SDK failed to do so it would not answer the
// request; and code of the user that encodes a value may panic.
func (b *Backend) encode(method string, res mcp.Result) (_ mcp.Result, err error) {
	defer onWire(&err)
	defer panics.Catch(&err, b.logger(), handling, method)
	text, err := encode(res)
	if err != nil {
		return nil, errEncode(err)
	}
	return encoded{res, text}, nil
}

// handling names the code that has panicked, in a log.
const handling = "the server's handler of"

// onWire turns the error of a panic into an error of the protocol.
func onWire(err *error) {
	if p, ok := (*err).(*panics.Error); ok { //nolint:errorlint // it was not wrapped yet
		*err = &sdkrpc.Error{Code: sdkrpc.CodeInternalError, Message: "internal error: " + p.Error()}
	}
}

func (b *Backend) logger() *slog.Logger {
	if b.Logger == nil {
		return slog.Default()
	}
	return b.Logger
}

func (b *Backend) forget(p weak.Pointer[mcp.Server]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known, p)
}

// newExtra returns the facts about a message's HTTP request that its handler may know.
func newExtra(in *backend.Inbound) *mcp.RequestExtra {
	e := &mcp.RequestExtra{Header: in.Header}
	if in.Context != nil {
		e.TokenInfo = auth.TokenInfoFromContext(in.Context)
	}
	if call := in.Call; call != nil {
		e.CloseSSEStream = func(args mcp.CloseSSEStreamArgs) {
			retry := args.RetryAfter
			if retry == 0 {
				retry = -1
			}
			call.Disconnect(retry)
		}
	}
	return e
}

// remember stores the message that an Extra was made for.
func (b *Backend) remember(e *mcp.RequestExtra, from origin) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.extras[e] = from
}

// origin returns the message that an Extra was made for, if it is one of ours.
func (b *Backend) origin(e *mcp.RequestExtra) origin {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.extras[e]
}

// drop forgets an Extra, which may be nil.
func (b *Backend) drop(e *mcp.RequestExtra) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.extras, e)
}
