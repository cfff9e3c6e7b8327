//nolint:staticcheck // roots, sampling and logging are deprecated only from 2026-07-28 on
package sdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/jsonrpc"
	"holdfast/sse"
)

func args(req *mcp.CallToolRequest) (a struct {
	Text string
	N    int
}) {
	_ = json.Unmarshal(req.Params.Arguments, &a)
	return a
}

func echo(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return say("%s", args(req).Text)
}

func count(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	n := args(req).N
	for i := 1; i <= n; i++ {
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: req.Params.GetProgressToken(), Progress: float64(i), Total: float64(n),
		})
		if err != nil {
			return nil, err
		}
	}
	return say("%d", n)
}

func TestTools(t *testing.T) {
	t.Parallel()
	type in struct {
		A int `json:"a"`
	}
	server := newServer(nil, map[string]mcp.ToolHandler{
		"echo": echo,
		"fail": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, &sdkrpc.Error{Code: -32042, Message: "no <way>", Data: json.RawMessage(`{"a":1}`)}
		},
	})
	mcp.AddTool(server, &mcp.Tool{Name: "typed"}, func(_ context.Context, _ *mcp.CallToolRequest, v in) (*mcp.CallToolResult, in, error) {
		return nil, in{v.A + 1}, nil
	})
	cs := connect(t, serve(t, server, nil), nil, nil)
	list, err := cs.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 3 {
		t.Errorf("got %+v and %v", list, err)
	}
	for _, text := range []string{"", "a", "\u2028 \"<&>\n\r\x00é😀", strings.Repeat("x", 1<<20)} {
		must(t, cs, "echo", map[string]any{"Text": text}, text)
	}
	must(t, cs, "typed", map[string]any{"a": 1}, `{"a":2}`)
	if _, err := call(t, cs, "typed", map[string]any{"a": "x"}); err == nil {
		t.Error("an argument of the wrong type was taken")
	}
	_, err = call(t, cs, "fail", nil)
	var wire *sdkrpc.Error
	if !errors.As(err, &wire) || wire.Code != -32042 || wire.Message != "no <way>" || string(wire.Data) != `{"a":1}` {
		t.Errorf("got %#v", err)
	}
	if _, err = call(t, cs, "none", nil); !errors.As(err, &wire) || wire.Code != sdkrpc.CodeInvalidParams {
		t.Errorf("unknown tool: %v", err)
	}
	if err := cs.Ping(t.Context(), nil); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	got := newHeard()
	cs := connect(t, serve(t, newServer(nil, map[string]mcp.ToolHandler{"count": count}), nil), nil, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			got.add("%v %v", req.Params.ProgressToken, req.Params.Progress)
		},
	})
	const n = 200
	must(t, cs, "count", map[string]any{"N": n, "token": "p"}, fmt.Sprint(n))
	for i, text := range got.wait(t, n) {
		if want := fmt.Sprintf("p %d", i+1); text != want {
			t.Fatalf("got %q, want %q", text, want)
		}
	}
}

// A tool may ask its client, several times and several tools at once.
func TestAsking(t *testing.T) {
	t.Parallel()
	server := newServer(nil, map[string]mcp.ToolHandler{
		"ask": func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			text := args(req).Text
			answer, err := req.Session.Elicit(ctx, &mcp.ElicitParams{
				Message:         text,
				RequestedSchema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}}}`),
			})
			if err != nil {
				return nil, err
			}
			sample, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{
				MaxTokens: 1,
				Messages:  []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: text}}},
			})
			if err != nil {
				return nil, err
			}
			return say("%s %v %s", answer.Action, answer.Content["a"], sample.Content.(*mcp.TextContent).Text)
		},
	})
	cs := connect(t, serve(t, server, nil), nil, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			if req.Params.Message == "bad" {
				return nil, errors.New("no answer")
			}
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"a": req.Params.Message + "!"}}, nil
		},
		CreateMessageHandler: func(_ context.Context, req *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			text := req.Params.Messages[0].Content.(*mcp.TextContent).Text
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: text + "?"}}, nil
		},
	})
	must(t, cs, "ask", map[string]any{"Text": "x"}, "accept x! x?")
	var calls sync.WaitGroup
	for i := range 8 {
		calls.Go(func() {
			text := fmt.Sprint(i)
			must(t, cs, "ask", map[string]any{"Text": text}, fmt.Sprintf("accept %s! %s?", text, text))
		})
	}
	calls.Wait()
	if _, err := call(t, cs, "ask", map[string]any{"Text": "bad"}); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("got %v", err)
	}
}

func TestLogging(t *testing.T) {
	t.Parallel()
	got := newHeard()
	server := newServer(nil, map[string]mcp.ToolHandler{
		"log": func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for _, level := range []mcp.LoggingLevel{"debug", "error"} {
				if err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Data: args(req).Text}); err != nil {
					return nil, err
				}
			}
			return say("logged")
		},
	})
	cs := connect(t, serve(t, server, nil), nil, &mcp.ClientOptions{
		LoggingMessageHandler: func(_ context.Context, req *mcp.LoggingMessageRequest) {
			got.add("%s %v", req.Params.Level, req.Params.Data)
		},
	})
	if err := cs.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "warning"}); err != nil {
		t.Fatal(err)
	}
	must(t, cs, "log", map[string]any{"Text": "a"}, "logged")
	must(t, cs, "log", map[string]any{"Text": "b"}, "logged")
	if all := got.wait(t, 2); !slices.Equal(all, []string{"error a", "error b"}) {
		t.Errorf("got %q", all)
	}
}

// What a server says to nobody in particular while nobody listens is kept, and
// told once.
func TestUnheard(t *testing.T) {
	t.Parallel()
	server := newServer(&mcp.ServerOptions{
		InitializedHandler: func(ctx context.Context, req *mcp.InitializedRequest) {
			ctx = context.WithoutCancel(ctx)
			go func() { // asked while nobody listens, answered when somebody does
				roots, err := req.Session.ListRoots(ctx, nil)
				if err != nil || len(roots.Roots) != 1 {
					t.Errorf("roots: %+v and %v", roots, err)
				}
				if err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "error", Data: "answered"}); err != nil {
					t.Error(err)
				}
			}()
		},
	}, map[string]mcp.ToolHandler{"echo": echo})
	url := serve(t, server, nil)
	id := post(t, url, "", strings.Replace(initialize, `"capabilities":{}`, `"capabilities":{"roots":{}}`, 1)).session
	post(t, url, id, `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`)
	post(t, url, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	post(t, url, id, `{"jsonrpc":"2.0","id":2,"method":"ping"}`) // initialized has been seen
	server.AddTool(&mcp.Tool{Name: "new", InputSchema: json.RawMessage(`{"type":"object"}`)}, echo)

	listen := func() *sse.Reader {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Accept": {"text/event-stream"}, "Mcp-Session-Id": {id}}
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return sse.NewReader(res.Body, 1<<20)
	}
	next := func(rd *sse.Reader) jsonrpc.Message {
		t.Helper()
		for {
			ev, err := rd.Next()
			if err != nil {
				t.Fatal(err)
			}
			if len(ev.Data) > 0 {
				m, err := jsonrpc.Parse(ev.Data)
				if err != nil {
					t.Fatal(err)
				}
				return m
			}
		}
	}
	first := listen()
	told := map[string]jsonrpc.Message{}
	for range 2 { // in whatever order
		m := next(first)
		told[m.Method] = m
	}
	if _, ok := told["notifications/tools/list_changed"]; !ok || told["roots/list"].ID == nil {
		t.Fatalf("got %v", told)
	}
	second := listen() // which takes over
	if ev, err := first.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the first goes on: %+v and %v", ev, err)
	}
	post(t, url, id, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[{"uri":"file:///r"}]}}`, told["roots/list"].ID))
	if m := next(second); m.Method != "notifications/message" || !strings.Contains(string(m.Params), "answered") {
		t.Errorf("got %s", m.Raw)
	}
}

// A client that listens hears what it has subscribed to, and of what changes.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	updated, changed := newHeard(), newHeard()
	server := newServer(&mcp.ServerOptions{
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	}, nil)
	for _, uri := range []string{"test://a", "test://b"} {
		server.AddResource(&mcp.Resource{URI: uri, Name: uri}, nil)
	}
	cs := connect(t, serve(t, server, nil), nil, &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
			updated.add("%s", req.Params.URI)
		},
		ToolListChangedHandler:   func(context.Context, *mcp.ToolListChangedRequest) { changed.add("tools") },
		PromptListChangedHandler: func(context.Context, *mcp.PromptListChangedRequest) { changed.add("prompts") },
	})
	update := func(uri string) {
		t.Helper()
		if err := server.ResourceUpdated(t.Context(), &mcp.ResourceUpdatedNotificationParams{URI: uri}); err != nil {
			t.Error(err)
		}
	}
	for _, uri := range []string{"test://a", "test://b"} {
		if err := cs.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
	}
	update("test://a")
	updated.wait(t, 1)
	if err := cs.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: "test://a"}); err != nil {
		t.Fatal(err)
	}
	update("test://a")
	update("test://b")
	if all := updated.wait(t, 2); !slices.Equal(all, []string{"test://a", "test://b"}) {
		t.Errorf("updated %q", all)
	}
	server.AddTool(&mcp.Tool{Name: "new", InputSchema: json.RawMessage(`{"type":"object"}`)}, echo)
	changed.wait(t, 1)
	server.AddPrompt(&mcp.Prompt{Name: "new"}, nil)
	if all := changed.wait(t, 2); !slices.Equal(all, []string{"tools", "prompts"}) {
		t.Errorf("changed %q", all)
	}
}

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

// A tool ends its client's connection, and the client comes back for the rest.
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

// What a call says goes to its own stream, however many run at a time.
func TestCallsKeepTheirStreams(t *testing.T) {
	t.Parallel()
	const calls, steps = 6, 20
	var all sync.WaitGroup // the calls take turns
	all.Add(calls)
	url := serve(t, newServer(nil, map[string]mcp.ToolHandler{
		"count": func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			all.Done()
			all.Wait()
			return count(ctx, req)
		},
	}), nil)
	id := post(t, url, "", initialize).session
	if res := post(t, url, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); res.status != http.StatusAccepted {
		t.Fatalf("initialized: %d", res.status)
	}
	var clients sync.WaitGroup
	for i := range calls {
		clients.Go(func() {
			res := post(t, url, id, fmt.Sprintf(
				`{"jsonrpc":"2.0","id":"c%d","method":"tools/call","params":{"name":"count","arguments":{"N":%d},"_meta":{"progressToken":%d}}}`, i, steps, i))
			for step := 0; ; {
				ev, err := res.events.Next()
				if err != nil {
					if !errors.Is(err, io.EOF) || step != steps+1 {
						t.Errorf("call %d ended at step %d: %v", i, step, err)
					}
					return
				}
				if len(ev.Data) == 0 {
					continue
				}
				step++
				m, err := jsonrpc.Parse(ev.Data)
				want := fmt.Sprintf(`{"progressToken":%d,"progress":%d,"total":%d}`, i, step, steps)
				switch {
				case err != nil:
					t.Errorf("%s: %v", ev.Data, err)
				case step <= steps && !sameJSON(m.Params, want):
					t.Errorf("call %d: got %s, want %s", i, m.Raw, want)
				case step > steps && string(m.ID) != fmt.Sprintf(`"c%d"`, i):
					t.Errorf("call %d: got %s", i, m.Raw)
				}
			}
		})
	}
	clients.Wait()
}

func sameJSON(a []byte, b string) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

// getServer chooses by the request, and refuses with nil.
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

// A tool sees who calls, by the go-sdk's own middleware, with each call.
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
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
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

// A server that closes a session waits for what runs in it, as the SDK has it,
// and leaves the others alone.
func TestServerCloses(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"tool", "prompt"} { // which goes directly, and the SDK's way
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
			// The SDK drops what its own handlers return after Close.
			err := <-ended
			if what == "tool" && err != nil || err != nil && !strings.Contains(err.Error(), "the server closed the session") {
				t.Errorf("got %v", err)
			}
			if err := <-closed; err != nil {
				t.Errorf("Close: %v", err)
			}
			if _, err := call(t, cs, "echo", nil); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the closed session: %v", err)
			}
			must(t, other, "echo", map[string]any{"Text": "c"}, "c")
		})
	}
}
