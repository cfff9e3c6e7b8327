package sdk_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
)

func TestCancel(t *testing.T) {
	t.Parallel()
	started, ended := make(chan struct{}), make(chan error, 1)
	server := newServer(nil, map[string]mcp.ToolHandler{
		"echo": echo,
		"slow": func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			close(started)
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		},
	})
	cs := connect(t, serve(t, server, nil), nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "slow"})
		done <- err
	}()
	<-started
	must(t, cs, "echo", map[string]any{"Text": "beside it"}, "beside it")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the tool sees %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the tool was not cancelled")
	}
	must(t, cs, "echo", map[string]any{"Text": "after it"}, "after it")
}

// A tool closes its client's connection, and the client comes back for the remaining events.
func TestCloseSSEStream(t *testing.T) {
	t.Parallel()
	w := &wire{back: make(chan struct{})}
	got := newHeard()
	server := newServer(nil, map[string]mcp.ToolHandler{
		"away": func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if req.Extra.CloseSSEStream == nil {
				return nil, errors.New("there is no CloseSSEStream")
			}
			for i := range 2 {
				err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
					ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1),
				})
				if err != nil {
					return nil, err
				}
				if i == 0 {
					req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
				}
			}
			select {
			case <-w.back:
				return say("done")
			case <-time.After(patience):
				return nil, errors.New("the client did not come back")
			}
		},
	})
	cs := connect(t, serve(t, server, nil), w, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			got.add("%v", req.Params.Progress)
		},
	})
	must(t, cs, "away", map[string]any{"token": "p"}, "done")
	if all := got.wait(t, 2); !slices.Equal(all, []string{"1", "2"}) {
		t.Errorf("got %q", all)
	}
}

// getServer selects the server by the request, and refuses a request with nil.
func TestGetServer(t *testing.T) {
	t.Parallel()
	one := newServer(nil, map[string]mcp.ToolHandler{"one": echo})
	two := newServer(nil, map[string]mcp.ToolHandler{"two": echo})
	url := serveFunc(t, func(r *http.Request) *mcp.Server {
		return map[string]*mcp.Server{"/one": one, "/two": two}[r.URL.Path]
	}, nil)
	must(t, connect(t, url+"/one", nil, nil), "one", map[string]any{"Text": "a"}, "a")
	must(t, connect(t, url+"/two", nil, nil), "two", map[string]any{"Text": "b"}, "b")
	if res := post(t, url+"/three", "", initialize); res.status != http.StatusBadRequest || res.session != "" {
		t.Errorf("got %d with session %q", res.status, res.session)
	}
}

// A tool sees the caller's token, which the go-sdk's own middleware verifies, in each call.
func TestAuth(t *testing.T) {
	t.Parallel()
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		user, _, _ := strings.Cut(token, "-")
		return &auth.TokenInfo{UserID: user, Scopes: []string{token}, Expiration: time.Now().Add(time.Hour)}, nil
	}
	whoami := func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return say("%s %s %s", req.Extra.TokenInfo.UserID, req.Extra.TokenInfo.Scopes, req.Extra.Header.Get("Authorization"))
	}
	url := serve(t, newServer(nil, map[string]mcp.ToolHandler{"whoami": whoami}), auth.RequireBearerToken(verify, nil))
	w := &wire{bearer: "alice-1"}
	cs := connect(t, url, w, nil)
	must(t, cs, "whoami", nil, "alice [alice-1] Bearer alice-1")
	must(t, connect(t, url, &wire{bearer: "bob-1"}, nil), "whoami", nil, "bob [bob-1] Bearer bob-1")
	r := mcptest.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	r.Header = http.Header{"Accept": {"text/event-stream"}, "Mcp-Session-Id": {cs.ID()}}
	res, err := (&wire{RoundTripper: &http.Transport{DisableKeepAlives: true}, bearer: "bob-1"}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("another's session answers %s", res.Status)
	}
}

// A tool that panics fails its own call and no other.
func TestPanic(t *testing.T) {
	t.Parallel()
	entered, panicked := make(chan struct{}), make(chan struct{})
	server := newServer(nil, map[string]mcp.ToolHandler{
		"echo":  echo,
		"panic": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { panic("hunter2") },
		"other": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			close(entered)
			<-panicked
			return say("unharmed")
		},
	})
	server.AddPrompt(&mcp.Prompt{Name: "panic"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		panic("hunter2")
	})
	cs := connect(t, serve(t, server, nil), nil, nil)
	var other sync.WaitGroup
	other.Go(func() { must(t, cs, "other", nil, "unharmed") })
	<-entered
	_, err := call(t, cs, "panic", map[string]any{})
	_, err2 := cs.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "panic"})
	for _, err := range []error{err, err2} {
		var wire *sdkrpc.Error
		if !errors.As(err, &wire) || wire.Code != sdkrpc.CodeInternalError || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	}
	close(panicked)
	other.Wait()
	must(t, cs, "echo", map[string]any{"Text": "a"}, "a")
}

// A server that closes a session waits for the calls in it, as in the SDK, and
// leaves other sessions alone.
func TestServerCloses(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"tool", "prompt"} { // a tool runs directly, a prompt through the SDK
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			entered, release := make(chan struct{}), make(chan struct{})
			server := newServer(nil, map[string]mcp.ToolHandler{
				"echo": echo,
				"slow": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					close(entered)
					<-release
					return say("done")
				},
			})
			server.AddPrompt(&mcp.Prompt{Name: "slow"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
				close(entered)
				<-release
				return &mcp.GetPromptResult{Description: "done", Messages: []*mcp.PromptMessage{}}, nil
			})
			url := serve(t, server, nil)
			cs, other := connect(t, url, nil, nil), connect(t, url, nil, nil)
			must(t, cs, "echo", map[string]any{"Text": "a"}, "a")
			ended := make(chan error, 1)
			go func() {
				var err error
				if what == "tool" {
					_, err = call(t, cs, "slow", map[string]any{})
				} else {
					_, err = cs.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "slow"})
				}
				ended <- err
			}()
			<-entered
			closed := make(chan error, 1)
			for ss := range server.Sessions() {
				if ss.ID() == cs.ID() {
					go func() { closed <- ss.Close() }()
				}
			}
			must(t, other, "echo", map[string]any{"Text": "b"}, "b")
			close(release)
			// The SDK drops the results of its own handlers after Close.
			err := <-ended
			if what == "tool" && err != nil || err != nil && !strings.Contains(err.Error(), "the server closed the session") {
				t.Errorf("got %v", err)
			}
			if err := <-closed; err != nil {
				t.Errorf("Close: %v", err)
			}
			// Close does not wait for the session's end: a call may still come before it.
			err = nil
			for deadline := time.Now().Add(time.Minute); err == nil && time.Now().Before(deadline); {
				_, err = call(t, cs, "echo", map[string]any{"Text": "d"})
			}
			if err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the closed session: %v", err)
			}
			must(t, other, "echo", map[string]any{"Text": "c"}, "c")
		})
	}
}
