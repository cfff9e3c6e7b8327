package client_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"holdfast"
	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(24)
	// The go-sdk's server keeps a session if the DELETE does not arrive, as where a proxy cuts the connection.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/modelcontextprotocol/go-sdk/mcp.(*streamableServerConn).Read"))
}

// soon bounds an act that takes no time, also on a busy machine.
const soon = time.Minute

var impl = &mcp.Implementation{Name: "test", Version: "1"}

// connect connects an official client to the URL.
func connect(t *testing.T, url string, opts *client.Options, copts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	o := &holdfast.ClientOptions{}
	if opts != nil {
		o.Options = *opts
	}
	s := mcptest.Must(mcp.NewClient(impl, copts).Connect(ctx, holdfast.NewClientTransport(url, o), nil))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

type addArgs struct{ A, B int }

func newServer() *mcp.Server {
	server := mcp.NewServer(impl, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "add"}, func(ctx context.Context, req *mcp.CallToolRequest, args addArgs) (*mcp.CallToolResult, any, error) {
		if token := req.Params.GetProgressToken(); token != nil {
			for i := range args.A {
				_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(i + 1)})
			}
		}
		return nil, args.A + args.B, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "ask"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "name?", RequestedSchema: map[string]any{
			"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}}})
		if err != nil {
			return nil, nil, err
		}
		return nil, res.Content["name"], nil
	})
	return server
}

// serveInside serves h in the test's synctest bubble. The connections are pipes in memory,
// as a goroutine in the bubble must not wait for anything outside of it.
func serveInside(t *testing.T, h http.Handler) (url string, hc *http.Client) {
	t.Helper()
	return "http://inside.test", mcptest.ServePipes(t, h)
}

// holdfastOf returns a handler of a server, which is shut down at the end of the test.
func holdfastOf(t *testing.T, server *mcp.Server, opts *holdfast.Options) *holdfast.Handler {
	t.Helper()
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, opts)
	mcptest.ShutDownAtEnd(t, h, time.Second)
	return h
}

func holdfastServer(t *testing.T, opts *holdfast.Options) string {
	t.Helper()
	return mcptest.Serve(t, holdfastOf(t, newServer(), opts))
}

// officialServer serves with the go-sdk alone, which ends a session only at a DELETE. A client
// that has left may not have waited for its DELETE, so the sessions end with the test.
func officialServer(t *testing.T, server *mcp.Server, opts *mcp.StreamableHTTPOptions) string {
	t.Helper()
	t.Cleanup(func() {
		for s := range server.Sessions() {
			_ = s.Close()
		}
	})
	return mcptest.Serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, opts))
}

func TestSkeleton(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"holdfast":            holdfastServer(t, nil),
		"go-sdk":              officialServer(t, newServer(), nil),
		"go-sdk, event store": officialServer(t, newServer(), &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			progress := make(chan float64, 100)
			s := connect(t, url, nil, &mcp.ClientOptions{
				ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { progress <- req.Params.Progress },
				ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "bob"}}, nil
				},
			})
			ctx, stop := context.WithTimeout(t.Context(), soon)
			defer stop()
			p := &mcp.CallToolParams{Name: "add", Arguments: map[string]any{"A": 3, "B": 4}}
			p.SetProgressToken("t")
			res, err := s.CallTool(ctx, p)
			if err != nil {
				t.Fatal(err)
			}
			if res.StructuredContent != 7.0 {
				t.Errorf("%v", res.StructuredContent)
			}
			for i := range 3 {
				select {
				case got := <-progress:
					if got != float64(i+1) {
						t.Errorf("progress %v, want %d", got, i+1)
					}
				case <-ctx.Done():
					t.Fatal(ctx.Err())
				}
			}
			res, err = s.CallTool(ctx, &mcp.CallToolParams{Name: "ask", Arguments: map[string]any{}})
			if err != nil || res.StructuredContent != "bob" {
				t.Errorf("%v %v", res, err)
			}
		})
	}
}

// received reads a posted message, and its id and method, if any. It aborts the connection of a request with a body that breaks off.
func received(r *http.Request) (body, id []byte, method string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return body, jsonrpc.Field(body, "id"), jsonrpc.String(jsonrpc.Field(body, "method"))
}

// open begins a stream of events, and keeps it open until a value comes on a channel, or the channel is closed.
func open(w http.ResponseWriter, r *http.Request, until <-chan struct{}, format string, args ...any) {
	w.Header().Set("Content-Type", typeEvents)
	fmt.Fprintf(w, format, args...)
	_ = http.NewResponseController(w).Flush()
	select {
	case <-until:
	case <-r.Context().Done():
	}
}

// pour is the stream of an HTTP+SSE client: the endpoint event, and then the messages in said, until one is "".
func pour(w http.ResponseWriter, r *http.Request, endpoint string, said <-chan string) {
	w.Header().Set("Content-Type", typeEvents)
	for text := "event: endpoint\ndata: " + endpoint; ; {
		fmt.Fprintf(w, "%s\n\n", text)
		_ = http.NewResponseController(w).Flush()
		select {
		case message := <-said:
			if text = "data: " + message; message == "" {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
