package sdk_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/sse"
)

// patience is how long a test waits for an event that must come.
const patience = time.Minute

// serve puts a server behind Holdfast, in the handler that wrap returns, on a real
// socket, and returns the URL.
func serve(t *testing.T, server *mcp.Server, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	return serveFunc(t, func(*http.Request) *mcp.Server { return server }, wrap)
}

func serveFunc(t *testing.T, getServer func(*http.Request) *mcp.Server, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := holdfast.NewHandler(getServer, &holdfast.Options{
		Eras:   holdfast.ErasBoth,
		Retry:  20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	var handler http.Handler = h
	if wrap != nil {
		handler = wrap(h)
	}
	ts := httptest.NewServer(handler)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		if err := h.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		ts.CloseClientConnections()
		ts.Close()
	})
	return ts.URL
}

// wire is the network of a client.
type wire struct {
	http.RoundTripper
	bearer string

	mu      sync.Mutex
	resumed int // GETs with Last-Event-ID that were answered with a stream
	back    chan struct{}
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.bearer != "" {
		r.Header.Set("Authorization", "Bearer "+w.bearer)
	}
	resume := r.Header.Get("Last-Event-ID") != ""
	res, err := w.RoundTripper.RoundTrip(r)
	if err == nil && r.Method == http.MethodGet && resume && res.StatusCode == http.StatusOK {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.resumed++; w.resumed == 1 && w.back != nil {
			close(w.back)
		}
	}
	return res, err
}

// connect connects an official client.
func connect(t *testing.T, url string, w *wire, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	if w == nil {
		w = &wire{}
	}
	network := http.DefaultTransport.(*http.Transport).Clone()
	w.RoundTripper = network
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o)
	cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint:   url,
		HTTPClient: &http.Client{Transport: w},
	}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cs.Close() // a server may have closed the session before
		network.CloseIdleConnections()
	})
	return cs
}

// newServer returns a server with the given functions as tools.
func newServer(o *mcp.ServerOptions, tools map[string]mcp.ToolHandler) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, o)
	for name, handler := range tools {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, handler)
	}
	return s
}

func say(format string, args ...any) (*mcp.CallToolResult, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}, nil
}

// call calls a tool, and returns the text of its result.
func call(t *testing.T, cs *mcp.ClientSession, tool string, args map[string]any) (string, error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	if token := args["token"]; token != nil {
		params.SetProgressToken(token)
	}
	res, err := cs.CallTool(ctx, params)
	if err != nil {
		return "", err
	}
	if len(res.Content) != 1 {
		return "", fmt.Errorf("%d contents", len(res.Content))
	}
	text := res.Content[0].(*mcp.TextContent).Text
	if res.IsError {
		return "", fmt.Errorf("tool failed: %s", text)
	}
	return text, nil
}

// must calls a tool, and fails the test if the result is not the wanted text.
func must(t *testing.T, cs *mcp.ClientSession, tool string, args map[string]any, want string) {
	t.Helper()
	if got, err := call(t, cs, tool, args); err != nil || got != want {
		t.Errorf("%s: got %q and %v, want %q", tool, got, err, want)
	}
}

// heard collects the calls of a client's handlers.
type heard struct {
	mu   sync.Mutex
	all  []string
	more chan struct{}
}

func newHeard() *heard { return &heard{more: make(chan struct{}, 1)} }

func (h *heard) add(format string, args ...any) {
	h.mu.Lock()
	h.all = append(h.all, fmt.Sprintf(format, args...))
	h.mu.Unlock()
	select {
	case h.more <- struct{}{}:
	default:
	}
}

// wait waits until handlers were called n times, and returns the texts.
func (h *heard) wait(t *testing.T, n int) []string {
	t.Helper()
	timeout := time.After(patience)
	for {
		h.mu.Lock()
		all := slices.Clone(h.all)
		h.mu.Unlock()
		if len(all) >= n {
			return all
		}
		select {
		case <-h.more:
		case <-timeout:
			t.Fatalf("heard only %q of %d", all, n)
		}
	}
}

// reply is the answer to a client without an SDK.
type reply struct {
	status  int
	session string
	events  *sse.Reader // of the body
}

// post sends one message as a client without an SDK.
func post(t *testing.T, url, sessionID, body string) reply {
	t.Helper()
	c := &mcptest.Client{URL: url, Session: sessionID, HTTP: mcptest.Unpooled}
	res, err := c.Send(t.Context(), http.MethodPost, body)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	})
	return reply{res.StatusCode, res.Header.Get("Mcp-Session-Id"), sse.NewReader(res.Body, 1<<20)}
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
