package remote_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"holdfast"
	"holdfast/backend/remote"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(8) // the tests wait more than they work
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for an event that must come.
const patience = time.Minute

// A world is a server, which can be cut off and replaced, and a Holdfast in front of it.
type world struct {
	t        *testing.T
	url      string // of Holdfast
	upstream string // of the server
	runs     atomic.Int32
	let      chan struct{} // ends calls of the tool "slow"
	cut      func()        // cuts all connections to the server
	servers  []*mcp.Server // all servers so far
	release  func()        // ends all calls of "slow"

	mu   sync.Mutex
	http http.Handler // the server; nil: it is away
	seen []http.Header
}

// begin makes a server with handler, and puts it behind Holdfast.
func begin(t *testing.T, opts *remote.Options, handler func(*mcp.Server) http.Handler) *world {
	t.Helper()
	w := &world{t: t, let: make(chan struct{}, 100)}
	w.release = sync.OnceFunc(func() { close(w.let) })
	t.Cleanup(func() { // after Holdfast has shut down: the sessions of a killed server have no client left to end them
		for _, s := range w.servers {
			for session := range s.Sessions() {
				_ = session.Close()
			}
		}
	})
	w.http = handler(w.server())
	up := httptest.NewServer(w)
	t.Cleanup(func() {
		w.release()
		up.CloseClientConnections()
		up.Close()
	})
	w.cut, w.upstream = up.CloseClientConnections, up.URL
	w.url = front(t, up.URL, opts, nil) // closed first
	return w
}

// front puts a Holdfast in front of a server.
func front(t *testing.T, url string, opts *remote.Options, hopts *holdfast.Options) string {
	t.Helper()
	var o remote.Options
	if opts != nil {
		o = *opts
	}
	network := http.DefaultTransport.(*http.Transport).Clone()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.HTTPClient == nil {
		o.HTTPClient = &http.Client{Transport: network}
	}
	ho := holdfast.Options{Retry: 20 * time.Millisecond}
	if hopts != nil {
		ho = *hopts
	}
	ho.Logger, ho.Eras = o.Logger, holdfast.ErasBoth
	h := holdfast.NewBackendHandler(remote.New(url, &o), &ho)
	t.Cleanup(network.CloseIdleConnections)
	served := mcptest.Serve(t, h)
	mcptest.ShutDownAtEnd(t, h, 2*time.Second)
	return served
}

// ServeHTTP implements [http.Handler]. It stands for the network in front of the server.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	h := w.http
	w.seen = append(w.seen, r.Header.Clone())
	w.mu.Unlock()
	if h == nil {
		panic(http.ErrAbortHandler)
	}
	h.ServeHTTP(rw, r)
}

// become replaces the server.
func (w *world) become(h http.Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.http = h
}

// kill ends the connections to the server, and puts another in its place.
func (w *world) kill(next http.Handler) {
	w.become(next)
	w.cut()
}

// headers returns the values of a header in the requests to the server.
func (w *world) headers(name string) map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	values := make(map[string]bool)
	for _, h := range w.seen {
		values[h.Get(name)] = true
	}
	return values
}

var impl = &mcp.Implementation{Name: "test", Version: "1"}

type count struct{ To int }

// server returns an official server.
func (w *world) server() *mcp.Server {
	s := mcp.NewServer(impl, nil)
	w.servers = append(w.servers, s)
	mcp.AddTool(s, &mcp.Tool{Name: "count"}, func(ctx context.Context, req *mcp.CallToolRequest, args count) (*mcp.CallToolResult, any, error) {
		w.runs.Add(1)
		for i := range args.To {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1)})
		}
		return nil, args.To, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "slow"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		w.runs.Add(1)
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1})
		select {
		case <-w.let:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 2})
		return nil, "done", nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "ask"}, func(ctx context.Context, req *mcp.CallToolRequest, args struct{ Name string }) (*mcp.CallToolResult, any, error) {
		res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: args.Name, RequestedSchema: map[string]any{
			"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}}})
		if err != nil {
			return nil, nil, err
		}
		return nil, res.Content["name"], nil
	})
	return s
}

// streamable serves a server over Streamable HTTP, without an event store.
func streamable(s *mcp.Server) http.Handler {
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`

// clientOf returns a client of a URL, without an SDK, with fields in the headers of its requests.
func clientOf(url string, header ...string) *mcptest.Client {
	return &mcptest.Client{URL: url, HTTP: mcptest.Unpooled, Header: header}
}

// open begins a session.
func open(t *testing.T, url string, header ...string) *mcptest.Client {
	t.Helper()
	c := clientOf(url, header...)
	mcptest.Check(t, c.Begin(t.Context(), hello))
	return c
}

// response returns the response that ends an answer.
func response(r mcptest.Reply) jsonrpc.Message { return mcptest.Parse(r.Message()) }

// tool returns a request that calls a tool.
func tool(id, name, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":%s}}}`, id, name, arguments, id)
}

// unknown reports whether a response says that the outcome of its call is unknown.
func unknown(m jsonrpc.Message) bool {
	return m.Error != nil && strings.HasPrefix(jsonrpc.String(jsonrpc.Field(m.Error, "message")), "outcome unknown")
}
