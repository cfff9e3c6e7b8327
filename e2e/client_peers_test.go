package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"

	"holdfast/internal/mcptest"
)

// aCall is a text that is in each request tools/call.
const aCall = `"tools/call"`

// soon bounds each wait of these tests. It is long, as the machine may stall.
const soon = time.Minute

// A transportClient is an official client on a transport of NewClientTransport.
type transportClient struct {
	*officialClient
	t *testing.T
	f *foreign
}

// newTransportClient connects a client to a server; if plan is not nil, through a proxy with that plan.
func newTransportClient(t *testing.T, f *foreign, least int, plan func(string) Cut) *transportClient {
	t.Helper()
	target := f.url
	if plan != nil {
		target = behind(t, f.url, least, plan)
	}
	v := mcptest.Must(connectOfficial(bounded(t, soon), holdfast.NewClientTransport(target, nil), "", nil))(t)
	t.Cleanup(func() { _ = v.Close() })
	return &transportClient{v, t, f}
}

// behind starts a proxy to a server and returns the server's URL through it. When the test
// ends, the proxy must have cut at least least connections.
func behind(t *testing.T, to string, least int, plan func(request string) Cut) string {
	t.Helper()
	u := mcptest.Must(url.Parse(to))(t)
	proxy := mcptest.Must(NewProxy(u.Host, plan))(t)
	t.Cleanup(func() {
		proxy.Close()
		if n := proxy.Cuts(); n < least && !t.Skipped() {
			t.Errorf("%d connections were cut, want %d at least", n, least)
		}
	})
	u.Host = proxy.Addr()
	return u.String()
}

// call calls a tool, and returns the text of its result.
func (g *transportClient) call(params mcp.CallToolParams, token string) (string, error) {
	if token != "" {
		params.SetProgressToken(token)
	}
	res, err := g.CallTool(bounded(g.t, soon), &params)
	if err != nil {
		return "", err
	}
	if res.IsError {
		err = fmt.Errorf("answered %+v", res)
	}
	return textOf(res), err
}

// wantLong makes a long call, and checks that its answer comes, and each progress notification
// once and in order.
func (g *transportClient) wantLong(token string) {
	g.t.Helper()
	said, err := g.call(g.f.long, token)
	if err != nil || said != g.f.said {
		g.t.Errorf("call %s: answered %q, %v; received %v", token, said, err, g.progressOf(token))
		return
	}
	if g.f.loose {
		g.wantEcho()
		received := g.progressOf(token)
		slices.Sort(received)
		if once := slices.Compact(slices.Clone(received)); len(once) < len(received) {
			g.t.Errorf("call %s: received %v", token, received)
		}
		return
	}
	var want []float64
	for i := range g.f.steps {
		want = append(want, float64(i+1))
	}
	// The official client may handle a notification after a response that followed it.
	mcptest.Eventually(g.t, "the progress of "+token, soon, func() bool { return len(g.progressOf(token)) >= len(want) })
	g.wantEcho()
	if received := g.progressOf(token); !slices.Equal(received, want) {
		g.t.Errorf("call %s: received %v", token, received)
	}
}

// wantEcho checks that the session still works.
func (g *transportClient) wantEcho() {
	g.t.Helper()
	if said, err := g.call(g.f.echo, ""); err != nil || !strings.HasSuffix(said, "hello") {
		g.t.Errorf("echo: %q, %v", said, err)
	}
}

// wantUnknown makes a long call that gets lost, and checks that its error says "outcome
// unknown".
func (g *transportClient) wantUnknown() {
	g.t.Helper()
	said, err := g.call(g.f.long, "lost")
	if err == nil || !strings.Contains(err.Error(), "outcome unknown: ") {
		g.t.Errorf("the call was answered with %q, %v", said, err)
	}
}

// once is a plan that cuts only the answer to the first request that contains text.
func once(text string, c Cut) func(string) Cut {
	var done bool
	return func(request string) Cut {
		if done || !strings.Contains(request, text) {
			return Cut{}
		}
		done = true
		return c
	}
}

// TestClientResumes has our client make calls to servers that keep their streams, over
// connections that are cut.
func TestClientResumes(t *testing.T) {
	t.Parallel()
	const often = 250 * time.Millisecond
	servers := map[string]func(*testing.T) *foreign{
		"go-sdk": func(t *testing.T) *foreign {
			return official(t, kept())
		},
		"server-everything": func(t *testing.T) *foreign { return everythingOver(t, "streamableHttp", "/mcp") },
	}
	for server, start := range servers {
		for _, test := range []struct {
			name  string
			plan  func(string) Cut
			least int
			calls int
		}{
			{name: "whole", calls: 3},
			{name: "FIN", plan: always(Cut{After: often}), least: 3, calls: 1},
			{name: "RST", plan: always(Cut{After: often, Reset: true}), least: 3, calls: 1},
			{name: "half-open", plan: always(Cut{After: often, HalfOpen: true}), least: 1, calls: 1},
			{name: "many", plan: always(Cut{After: often}), least: 3, calls: 3},
			{name: "once", plan: once(aCall, Cut{After: often}), least: 1, calls: 1},
			{
				name: "within the header of resumed streams", least: 3, calls: 1,
				plan: resumed(Cut{After: often}, Cut{Bytes: 20}, Cut{After: often}),
			},
			{
				name: "before the first event of resumed streams", least: 3, calls: 1,
				plan: resumed(Cut{After: often}, Cut{Bytes: 1, Body: true}, Cut{After: often}),
			},
		} {
			t.Run(server+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				f := start(t)
				g := newTransportClient(t, f, test.least, test.plan)
				var calls sync.WaitGroup
				for i := range test.calls {
					calls.Go(func() { g.wantLong(fmt.Sprintf("call %d", i)) })
				}
				calls.Wait()
				if server == "go-sdk" {
					f.work.wantRuns("long", test.calls, test.calls)
				}
			})
		}
	}
}

// TestClientIsAsked has a server send a request to our client on a stream that the client has
// resumed.
func TestClientIsAsked(t *testing.T) {
	t.Parallel()
	f := official(t, kept())
	g := newTransportClient(t, f, 3, always(Cut{After: 250 * time.Millisecond}))
	if said, err := g.call(call("ask", map[string]any{"id": "ask", "steps": 20, "ms": 2000}), "asking"); err != nil || said != "Ada" {
		t.Errorf("answered %q, %v", said, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked != 1 {
		t.Errorf("asked %d times", g.asked)
	}
	f.work.wantRuns("ask", 1, 1)
}

// TestClientDoesNotKnow has our client lose calls to servers that keep no streams: the client
// soon reports an unknown outcome, and the session still works.
func TestClientDoesNotKnow(t *testing.T) {
	t.Parallel()
	cut := Cut{After: 200 * time.Millisecond}
	for _, test := range []struct {
		name  string
		start func(*testing.T) *foreign
		cut   Cut
	}{
		{name: "go-sdk", start: func(t *testing.T) *foreign { return official(t, nil) }, cut: cut},
		{
			name: "go-sdk, RST", cut: Cut{After: cut.After, Reset: true},
			start: func(t *testing.T) *foreign { return official(t, nil) },
		},
		{
			name: "go-sdk, before the first event id", cut: Cut{Bytes: 1},
			start: func(t *testing.T) *foreign { return official(t, kept()) },
		},
		{name: "mcp-go", start: func(t *testing.T) *foreign { return mcpgo(t, "/mcp") }, cut: cut},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := test.start(t)
			g := newTransportClient(t, f, 1, once(aCall, test.cut))
			g.wantUnknown()
			g.wantEcho()
			if strings.HasPrefix(test.name, "go-sdk") {
				f.work.wantRuns("long", 1, 1)
			}
			g.wantLong("next")
		})
	}
	t.Run("HTTP+SSE", func(t *testing.T) {
		t.Parallel()
		f := everythingOver(t, "sse", "/sse")
		g := newTransportClient(t, f, 1, once("GET /", Cut{After: 100 * time.Millisecond, Since: "notifications/progress"}))
		g.wantUnknown()
		g.wantLong("next")
	})
}

// TestClientAsksAgain has our client repeat a request that may be repeated, to a server that
// keeps no streams.
func TestClientAsksAgain(t *testing.T) {
	t.Parallel()
	f := official(t, nil)
	var asked int
	g := newTransportClient(t, f, 3, func(request string) Cut {
		if !strings.Contains(request, `"tools/list"`) {
			return Cut{}
		}
		asked++
		return []Cut{{Bytes: 1}, {Bytes: 1, Body: true}, {Bytes: 40, Body: true, Reset: true}, {}}[min(asked-1, 3)]
	})
	if res, err := g.ListTools(bounded(t, soon), nil); err != nil || len(res.Tools) != 5 {
		t.Errorf("tools/list: %+v, %v", res, err)
	}
}

// TestClientListens has a server send notifications that belong to no call, while the
// standalone stream is cut.
func TestClientListens(t *testing.T) {
	t.Parallel()
	f := official(t, kept())
	comes := make(chan struct{}, 100)
	g := newTransportClient(t, f, 3, func(request string) Cut {
		if !strings.HasPrefix(request, "GET ") {
			return Cut{}
		}
		comes <- struct{}{}
		return Cut{After: 150 * time.Millisecond}
	})
	late := time.After(soon)
	for i := range 4 {
		select {
		case <-comes:
		case <-late:
			t.Fatal("the client does not come back")
		}
		f.server.AddTool(&mcp.Tool{Name: fmt.Sprintf("more-%d", i), InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{}, nil
			})
		mcptest.Eventually(t, "the change is received", soon, func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.lists > i
		})
	}
}

// TestClientBeginsAnew has a server forget its sessions while a call is running.
func TestClientBeginsAnew(t *testing.T) {
	t.Parallel()
	f := official(t, kept())
	g := newTransportClient(t, f, 0, nil)
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		g.wantUnknown()
	}()
	mcptest.Eventually(t, "the call begins", soon, func() bool { return len(g.progressOf("lost")) > 0 })
	f.restart(kept())
	<-lost
	g.wantEcho()
	f.work.wantRuns("long", 1, 1)
	g.wantLong("next")
}
