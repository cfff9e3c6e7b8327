package servers_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/config"
	"holdfast/internal/mcptest"
	"holdfast/internal/servers"
)

// patience is how long a test waits for an event that must come.
const patience = time.Minute

// A farm has some servers over HTTP, and a Holdfast that serves them by a configuration.
type farm struct {
	t       testing.TB
	base    string // the URL of Holdfast
	set     *servers.Set
	up      map[string]string // URLs of the servers
	server  map[string]*mcp.Server
	inits   map[string]*atomic.Int32
	let     chan struct{} // closed by release: lets calls of the tool "slow" end
	release func()
	began   chan string // receives the server's name at each call of "slow"
	ended   chan string // receives the server's name at each such call that was cancelled
}

type message struct{ Message string }

// newFarm begins servers with the given names, and serves them as conf says. In conf $NAME
// stands for the URL of a server.
func newFarm(t testing.TB, conf string, names ...string) *farm {
	t.Helper()
	f := &farm{t: t, up: make(map[string]string), server: make(map[string]*mcp.Server), inits: make(map[string]*atomic.Int32), let: make(chan struct{}), began: make(chan string, 1000), ended: make(chan string, 1000)}
	f.release = sync.OnceFunc(func() { close(f.let) })
	for _, name := range names {
		f.begin(name)
	}
	t.Cleanup(f.release)
	f.set = servers.New(f.parse(conf), slog.New(slog.DiscardHandler))
	f.base = serveSet(t, f.set, &holdfast.Options{Logger: slog.New(slog.DiscardHandler), Retry: 20 * time.Millisecond, Eras: holdfast.ErasBoth})
	return f
}

// serveSet serves the servers of a set until the end of the test, and returns the URL.
func serveSet(t testing.TB, set *servers.Set, o *holdfast.Options) (url string) {
	t.Helper()
	h := holdfast.NewBackendHandler(set, o)
	url = mcptest.Serve(t, set.Handler(h, true))
	t.Cleanup(func() { _ = set.Close() })
	mcptest.ShutDownAtEnd(t, h, time.Second)
	return url
}

// begin begins a server with tools that return its name.
func (f *farm) begin(name string) {
	inits := new(atomic.Int32)
	f.inits[name] = inits
	s := mcp.NewServer(&mcp.Implementation{Name: name, Version: "1"}, &mcp.ServerOptions{
		InitializedHandler: func(context.Context, *mcp.InitializedRequest) { inits.Add(1) },
		PageSize:           3,
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{name + ":" + r.Params.Ref.Name + r.Params.Ref.URI}}}, nil
		},
	})
	for _, tool := range []string{"echo", "read_one", "read_all", "write_one", "write_all"} {
		mcp.AddTool(s, &mcp.Tool{Name: tool}, func(_ context.Context, _ *mcp.CallToolRequest, in message) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: name + ":" + tool + ":" + in.Message}}}, nil, nil
		})
	}
	mcp.AddTool(s, &mcp.Tool{Name: "slow"}, func(ctx context.Context, r *mcp.CallToolRequest, in message) (*mcp.CallToolResult, any, error) {
		if token := r.Params.GetProgressToken(); token != nil {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Message: in.Message})
		}
		f.began <- name
		select {
		case <-f.let:
		case <-ctx.Done():
			f.ended <- name
			return nil, nil, ctx.Err()
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: name + ":slow:" + in.Message}}}, nil, nil
	})
	if strings.HasPrefix(name, "ask") {
		mcp.AddTool(s, &mcp.Tool{Name: "ask"}, func(ctx context.Context, r *mcp.CallToolRequest, _ message) (*mcp.CallToolResult, any, error) {
			res, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: name + " asks", RequestedSchema: map[string]any{
				"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}}})
			if err != nil {
				return nil, nil, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(name, " heard ", res.Content["name"])}}}, nil, nil
		})
	}
	s.AddPrompt(&mcp.Prompt{Name: "greet"}, func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Description: name + ":" + r.Params.Name}, nil
	})
	read := func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: name + " has " + r.Params.URI}}}, nil
	}
	for i := range 4 {
		s.AddResource(&mcp.Resource{Name: "r", URI: fmt.Sprintf("test://%s/%d", name, i+1)}, read)
	}
	s.AddResourceTemplate(&mcp.ResourceTemplate{Name: "t", URITemplate: "test://" + name + "/items/{id}"}, read)
	f.t.Cleanup(func() {
		for session := range s.Sessions() {
			_ = session.Close()
		}
	})
	f.up[name], f.server[name] = mcptest.Serve(f.t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)), s
}

// parse parses a configuration.
func (f *farm) parse(text string) *config.File {
	f.t.Helper()
	for name, url := range f.up {
		text = strings.ReplaceAll(text, `"$`+name+`"`, fmt.Sprintf(`{"url": %q}`, url))
		text = strings.ReplaceAll(text, `"$url_`+name+`"`, fmt.Sprintf(`"url": %q`, url))
	}
	return mcptest.Must(config.Parse("test.json", []byte(text), config.Options{}))(f.t)
}

// connect connects an official client to a path.
func (f *farm) connect(path string) *mcp.ClientSession {
	f.t.Helper()
	return f.with(mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil), path)
}

// with connects a client to a path.
func (f *farm) with(c *mcp.Client, path string) *mcp.ClientSession { return f.at(c, path, "") }

// at connects a client of the given revision, or, with "", of the client's own choice.
func (f *farm) at(c *mcp.Client, path, revision string) *mcp.ClientSession {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	s, err := c.Connect(ctx, holdfast.NewClientTransport(f.base+path, nil), &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		f.t.Fatalf("%s: %v", path, err)
	}
	f.t.Cleanup(func() { _ = s.Close() })
	return s
}

// call calls a tool and returns the text of its result or error.
func call(t *testing.T, s *mcp.ClientSession, tool string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: message{"hi"}})
	if err != nil {
		return err.Error()
	}
	return r.Content[0].(*mcp.TextContent).Text
}

// tools returns the names of all tools, in order.
func tools(t *testing.T, s *mcp.ClientSession) (names []string) {
	t.Helper()
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	return names
}

// session begins a session at a path. header has fields of each of its requests, in pairs.
func (f *farm) session(path string, header ...string) *mcptest.Client {
	f.t.Helper()
	c := &mcptest.Client{URL: f.base + path, HTTP: mcptest.Unpooled, Header: header}
	mcptest.Check(f.t, c.Begin(f.t.Context(), hello))
	return c
}

// post sends one raw message to a path.
func (f *farm) post(path, session, body string, header ...string) (int, string, http.Header) {
	f.t.Helper()
	c := &mcptest.Client{URL: f.base + path, Session: session, HTTP: mcptest.Unpooled}
	r := c.Post(f.t, body, header...)
	return r.Status, r.Body, r.Header
}
