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

	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
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

// A tool may send requests to its client, several times, and several tools may do so concurrently.
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
	mcptest.Check(t, cs.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "warning"}))
	must(t, cs, "log", map[string]any{"Text": "a"}, "logged")
	must(t, cs, "log", map[string]any{"Text": "b"}, "logged")
	if all := got.wait(t, 2); !slices.Equal(all, []string{"error a", "error b"}) {
		t.Errorf("got %q", all)
	}
}

// A message that belongs to no call is kept while no client listens.
func TestUnheard(t *testing.T) {
	t.Parallel()
	server := newServer(&mcp.ServerOptions{
		InitializedHandler: func(ctx context.Context, req *mcp.InitializedRequest) {
			ctx = context.WithoutCancel(ctx)
			go func() { // the request is made while no client listens, and answered later
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
	post(t, url, id, `{"jsonrpc":"2.0","id":2,"method":"ping"}`) // the server has handled initialized
	server.AddTool(&mcp.Tool{Name: "new", InputSchema: json.RawMessage(`{"type":"object"}`)}, echo)

	listen := func() *mcptest.Stream {
		return (&mcptest.Client{URL: url, Session: id, HTTP: mcptest.Unpooled}).Stream(t, http.MethodGet, "")
	}
	next := func(rd *mcptest.Stream) jsonrpc.Message {
		t.Helper()
		for {
			ev := mcptest.Must(rd.Next())(t)
			if len(ev.Data) > 0 {
				return mcptest.Must(jsonrpc.Parse(ev.Data))(t)
			}
		}
	}
	first := listen()
	told := map[string]jsonrpc.Message{}
	for range 2 { // in any order
		m := next(first)
		told[m.Method] = m
	}
	if _, ok := told["notifications/tools/list_changed"]; !ok || told["roots/list"].ID == nil {
		t.Fatalf("got %v", told)
	}
	second := listen() // takes the stream over
	if ev, err := first.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the first goes on: %+v and %v", ev, err)
	}
	post(t, url, id, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[{"uri":"file:///r"}]}}`, told["roots/list"].ID))
	m := next(second)
	if m.Method != "notifications/message" || !strings.Contains(string(m.Params), "answered") {
		t.Errorf("got %s", m.Raw)
	}
}

// A client that listens gets updates of resources that it has subscribed to, and notifications of changed lists.
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
		mcptest.Check(t, cs.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}))
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

// Messages of a call go to its own stream, however many calls run at a time, for
// tools and for other methods.
func TestCallsKeepTheirStreams(t *testing.T) {
	t.Parallel()
	const calls, steps = 6, 20
	var all sync.WaitGroup // all calls run at the same time
	all.Add(calls)
	server := newServer(nil, map[string]mcp.ToolHandler{
		"count": func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			all.Done()
			all.Wait()
			return count(ctx, req)
		},
	})
	server.AddPrompt(&mcp.Prompt{Name: "count"}, func(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		all.Done()
		all.Wait()
		for i := range steps {
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1), Total: steps,
			})
			if err != nil {
				return nil, err
			}
		}
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{}}, nil
	})
	url := serve(t, server, nil)
	id := post(t, url, "", initialize).session
	if res := post(t, url, id, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); res.status != http.StatusAccepted {
		t.Fatalf("initialized: %d", res.status)
	}
	var clients sync.WaitGroup
	for i := range calls {
		clients.Go(func() {
			method, args := "tools/call", fmt.Sprintf(`{"N":%d}`, steps)
			if i%2 == 1 {
				method, args = "prompts/get", `{}`
			}
			res := post(t, url, id, fmt.Sprintf(
				`{"jsonrpc":"2.0","id":"c%d","method":%q,"params":{"name":"count","arguments":%s,"_meta":{"progressToken":%d}}}`, i, method, args, i))
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
