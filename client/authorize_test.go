package client_test

import (
	"context"
	"net/http"
	"net/http/httputil"
	neturl "net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/client"
	"holdfast/internal/mcptest"
)

// transports serves the same server over each transport, Holdfast's and the go-sdk's.
func transports(t *testing.T) map[string]string {
	t.Helper()
	server := newServer()
	mux := mcptest.Endpoints(holdfastOf(t, server, &holdfast.Options{Retry: 10 * time.Millisecond}))
	mux.Handle("/old", mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return server }, nil))
	base := mcptest.Serve(t, mux)
	return map[string]string{
		"http":        base + "/mcp",
		"sse":         base + "/sse",
		"sse, go-sdk": base + "/old",
		"ws":          "ws" + strings.TrimPrefix(base, "http") + "/mcp",
	}
}

// A latch is an Authorizer that has a token after its first Authorize.
type latch struct{ open atomic.Bool }

func (l *latch) Authorization(context.Context) (string, error) {
	if l.open.Load() {
		return "Bearer x", nil
	}
	return "", nil
}

func (l *latch) Authorize(ctx context.Context, _ *http.Request, resp *http.Response) error {
	_ = resp.Body.Close()
	if err := ctx.Err(); err != nil {
		return err
	}
	l.open.Store(true)
	return nil
}

// Over every transport the client calls the Authorizer, and sends the request again.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	for name, url := range transports(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, path, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(url, "http://"), "ws://"), "/")
			to := httputil.NewSingleHostReverseProxy(&neturl.URL{Scheme: "http", Host: base})
			to.FlushInterval = -1
			door := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") == "" {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				to.ServeHTTP(w, r)
			}))
			scheme, _, _ := strings.Cut(url, ":")
			s := connect(t, scheme+strings.TrimPrefix(door, "http")+"/"+path, &client.Options{Auth: &latch{}}, nil)
			if err := s.Ping(t.Context(), nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// A client gets the same messages over every transport.
func TestTransports(t *testing.T) {
	t.Parallel()
	for name, url := range transports(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var progress atomic.Int64
			s := connect(t, url, &client.Options{}, &mcp.ClientOptions{
				ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { progress.Add(1) },
				ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "bob"}}, nil
				},
			})
			ctx, stop := context.WithTimeout(t.Context(), soon)
			defer stop()
			for range 5 {
				p := &mcp.CallToolParams{Name: "add", Arguments: map[string]any{"A": 3, "B": 4}}
				p.SetProgressToken("t")
				res, err := s.CallTool(ctx, p)
				if err != nil || res.StructuredContent != 7.0 {
					t.Fatalf("%v, %v", res, err)
				}
				res, err = s.CallTool(ctx, &mcp.CallToolParams{Name: "ask", Arguments: map[string]any{}})
				if err != nil || res.StructuredContent != "bob" {
					t.Fatalf("%v %v", res, err)
				}
			}
			if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "none"}); err == nil || holdfast.OutcomeUnknown(err) {
				t.Errorf("a tool that is not there: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if n := progress.Load(); n != 15 {
				t.Errorf("%d progress notifications", n)
			}
		})
	}
}
