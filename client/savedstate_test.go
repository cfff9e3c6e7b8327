package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// raw is a host that sends and receives JSON.
type raw struct {
	*client.Conn
	t      *testing.T
	within time.Duration  // the time for an answer
	heard  map[string]int // the number of notifications, by method
}

func newRaw(t *testing.T, url string, opts client.Options) *raw {
	t.Helper()
	c := mcptest.Must(client.New(url, &opts))(t)
	t.Cleanup(func() { _ = c.Close() })
	return &raw{c, t, soon, make(map[string]int)}
}

func (r *raw) send(format string, args ...any) {
	r.t.Helper()
	m := mcptest.Must(jsonrpc.Parse(fmt.Appendf(nil, format, args...)))(r.t)
	mcptest.Check(r.t, r.Send(r.t.Context(), m))
}

// until returns the first message for which f is true.
func (r *raw) until(f func(jsonrpc.Message) bool) jsonrpc.Message {
	r.t.Helper()
	ctx, stop := context.WithTimeout(r.t.Context(), r.within)
	defer stop()
	for {
		m := mcptest.Must(r.Receive(ctx))(r.t)
		if m.Kind == jsonrpc.Notification {
			r.heard[m.Method]++
		}
		if f(m) {
			return m
		}
	}
}

func (r *raw) answer(id string) jsonrpc.Message {
	r.t.Helper()
	return r.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Response && string(m.ID) == id })
}

// taken waits until the server has got a call.
func (r *raw) taken(id string) {
	r.t.Helper()
	mcptest.Eventually(r.t, "the server to have "+id, soon, func() bool {
		return !slices.ContainsFunc(r.State().Calls, func(c client.CallState) bool { return string(c.ID) == id && len(c.Request) > 0 })
	})
}

func (r *raw) open() {
	r.t.Helper()
	r.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"raw","version":"1"}}}`)
	if m := r.answer("0"); m.Error != nil {
		r.t.Fatalf("initialize: %s", m.Error)
	}
	r.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// gate is a server with a tool that waits.
type gate struct {
	url     string
	runs    atomic.Int32
	serving atomic.Int32 // the number of requests
	open    chan struct{}
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{open: make(chan struct{})}
	server := mcp.NewServer(impl, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "wait"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		n := g.runs.Add(1)
		if token := req.Params.GetProgressToken(); token != nil {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1})
		}
		select {
		case <-g.open:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		if token := req.Params.GetProgressToken(); token != nil {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 2})
		}
		return nil, n, nil
	})
	h := holdfastOf(t, server, &holdfast.Options{Retry: 10 * time.Millisecond})
	old := h.SSE("/messages")
	g.url = mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.serving.Add(1)
		defer g.serving.Add(-1)
		if r.URL.Path == "/sse" || r.URL.Path == "/messages" {
			old.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	}))
	return g
}

// A call is begun by one Conn and finished by another, which has only the first one's State, with any of the ways back.
func TestContinue(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*client.State){
		"all": func(*client.State) {},
		"one call": func(s *client.State) {
			*s = client.State{URL: s.URL, Revision: s.Revision, Keys: s.Keys, Calls: s.Calls}
		},
		"stream URL": func(s *client.State) {
			*s = client.State{URL: s.URL, Revision: s.Revision, Calls: s.Calls}
			s.Calls[0].Session, s.Calls[0].Token, s.Calls[0].LastEventID, s.Calls[0].Key = "", "", "", ""
		},
		"token": func(s *client.State) {
			*s = client.State{URL: s.URL, Revision: s.Revision, Calls: s.Calls}
			s.Calls[0].Session, s.Calls[0].Stream, s.Calls[0].LastEventID, s.Calls[0].Key = "", "", "", ""
		},
		"event id": func(s *client.State) {
			s.Calls[0].Session, s.Calls[0].Stream, s.Calls[0].Token, s.Calls[0].Key = "", "", "", ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			a := newRaw(t, g.url, client.Options{})
			a.open()
			a.send(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
			a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
			text, err := json.Marshal(a.State())
			a.Detach()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Receive(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("after Detach: %v", err)
			}
			close(g.open)
			var s client.State
			mcptest.Check(t, json.Unmarshal(text, &s))
			forget(&s)
			b := newRaw(t, s.URL, client.Options{State: &s})
			var progress []string
			m := b.until(func(m jsonrpc.Message) bool {
				if m.Method == "notifications/progress" {
					progress = append(progress, string(jsonrpc.Field(m.Params, "progress")))
				}
				return m.Kind == jsonrpc.Response
			})
			if string(m.ID) != `"x"` || m.Error != nil {
				t.Fatalf("%s", m.Raw)
			}
			want := "2"
			if s.Calls[0].LastEventID == "" {
				want = "1 2" // the State does not say that the first message has arrived
			}
			if got := strings.Join(progress, " "); got != want {
				t.Errorf("progress %s, want %s", got, want)
			}
			if n := g.runs.Load(); n != 1 {
				t.Errorf("the tool ran %d times", n)
			}
		})
	}
}

// A server request without a reply of one Conn comes to the next one, which replies.
func TestContinueServerRequest(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "asks", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "ask"}, func(ctx context.Context, req *mcp.CallToolRequest, _ any) (*mcp.CallToolResult, any, error) {
		if token := req.Params.GetProgressToken(); token != nil {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1})
		}
		res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{Message: "?", RequestedSchema: map[string]any{"type": "object"}})
		if err != nil {
			return nil, nil, err
		}
		return nil, res.Action, nil
	})
	h := holdfastOf(t, server, &holdfast.Options{Retry: 10 * time.Millisecond})
	a := newRaw(t, mcptest.Serve(t, h), client.Options{})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"ask","arguments":{},"_meta":{"progressToken":"p"}}}`)
	asked := a.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	s := a.State()
	a.Detach()
	b := newRaw(t, s.URL, client.Options{State: &s})
	again := b.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	if string(again.ID) != string(asked.ID) || b.heard["notifications/progress"] != 0 {
		t.Errorf("asked %s, then %s, after %v", asked.ID, again.ID, b.heard)
	}
	b.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`, again.ID)
	if m := b.answer(`"x"`); string(jsonrpc.Field(m.Result, "structuredContent")) != `"decline"` {
		t.Errorf("answered %s", m.Raw)
	}
}

// A request is in the State before it is sent.
func TestStateBeforeSending(t *testing.T) {
	t.Parallel()
	var conn atomic.Pointer[client.Conn]
	var posts, early atomic.Int32
	h := holdfastOf(t, newServer(), nil)
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		posts.Add(1)
		h.ServeHTTP(w, r)
	}))
	a := newRaw(t, url, client.Options{NoListen: true, Changed: func() {
		c := conn.Load()
		if c == nil {
			return
		}
		if calls := c.State().Calls; len(calls) == 1 && calls[0].Key != "" && calls[0].Request != nil && posts.Load() == 0 {
			early.Add(1)
		}
	}})
	a.open()
	posts.Store(0)
	conn.Store(a.Conn)
	a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nothing"}}`)
	a.answer("1")
	if early.Load() == 0 {
		t.Error("nobody was told of the request before it was sent")
	}
}

// A call that the server has, before its first message, is continued under its idempotency
// key: the State is enough at any time.
func TestContinueByKey(t *testing.T) {
	t.Parallel()
	t.Run("http", func(t *testing.T) {
		t.Parallel()
		g := newGate(t)
		at := g.behind(t, withheld{link: true, ids: true, policy: true})
		a := newRaw(t, at, client.Options{})
		a.open()
		a.send(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
		a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
		s := a.State()
		a.Detach()
		if c := s.Calls[0]; c.Stream != "" || c.LastEventID != "" || c.Token != "" {
			t.Fatalf("there is more than the key: %+v", c)
		}
		close(g.open)
		b := newRaw(t, at, client.Options{State: &s})
		if m := b.answer(`"x"`); m.Error != nil || g.runs.Load() != 1 {
			t.Errorf("%s, after %d runs", m.Raw, g.runs.Load())
		}
	})
	t.Run("ws", func(t *testing.T) {
		t.Parallel()
		keys := make(chan string, 2)
		at, _ := wsServer(t, func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool {
			switch m.Method {
			case "tools/call":
				keys <- jsonrpc.String(jsonrpc.Field(m.Params, "_meta", "holdfast/idempotencyKey"))
				if n > 1 {
					utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
				}
			case "ping":
				utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
			}
			return true
		})
		a := newRaw(t, at, client.Options{})
		a.open()
		a.send(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"wait","arguments":{}}}`)
		first := <-keys
		a.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`) // its answer shows that the call has been written
		a.answer("1")
		s := a.State()
		a.Detach()
		b := newRaw(t, at, client.Options{State: &s})
		if m := b.answer(`"x"`); m.Error != nil {
			t.Fatalf("%s", m.Raw)
		}
		if again := <-keys; again != first || first == "" {
			t.Errorf("sent under %q, then under %q", first, again)
		}
	})
}

// behind returns the URL of a proxy that withholds some of the server's ways back.
func (g *gate) behind(t *testing.T, s withheld) string {
	t.Helper()
	u := mcptest.Must(url.Parse(g.url))(t)
	return mcptest.Serve(t, s.wrap(httputil.NewSingleHostReverseProxy(u)))
}

// Over HTTP+SSE no call can be resumed. A call that the server has continues. The outcome of a
// call that the process before may not have sent is unknown, at once.
func TestHTTPSSEMaybeSent(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	const request = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`
	a := newRaw(t, g.url+"/sse", client.Options{Transport: client.SSE})
	a.open()
	a.send(request, 1)
	a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
	a.taken("1")
	state := a.State()
	a.Detach()
	state.Calls = append(state.Calls, client.CallState{ID: []byte("2"), Method: "tools/call", Request: fmt.Appendf(nil, request, 2)})
	b := newRaw(t, g.url+"/sse", client.Options{Transport: client.SSE, State: &state})
	if m := b.answer("2"); !strings.Contains(string(m.Error), "outcome unknown: the process that was to send") {
		t.Errorf("not sent: %s", m.Raw)
	}
	close(g.open)
	if m := b.answer("1"); m.Error != nil || g.runs.Load() != 1 {
		t.Errorf("sent: %s, %d runs", m.Raw, g.runs.Load())
	}
}

// A call in flight stays in the State of a detached Conn: the Conn would lose a response
// that comes while it detaches.
func TestStateAfterDetach(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			url := scheme + strings.TrimPrefix(g.url, "http")
			a := newRaw(t, url, client.Options{})
			a.open()
			a.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
			a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
			a.Detach()
			s := a.State()
			if len(s.Calls) != 1 {
				t.Fatalf("%+v", s)
			}
			close(g.open)
			b := newRaw(t, url, client.Options{State: &s})
			if m := b.answer("7"); m.Error != nil || g.runs.Load() != 1 {
				t.Errorf("%s, after %d runs", m.Raw, g.runs.Load())
			}
		})
	}
}

// A request that another Conn may have sent without an idempotency key is not sent again under
// a new one.
func TestMaybeSentGetsNoKey(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	url, _ := wsServer(t, func(_ *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		if m.Method == "tools/call" {
			calls.Add(1)
		}
		return true
	})
	http := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && jsonrpc.String(jsonrpc.Field(body, "method")) == "tools/call" {
			calls.Add(1)
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	for _, url := range []string{url, http} {
		r := newRaw(t, url, client.Options{NoListen: true, State: &client.State{
			URL: url, Session: "s", Revision: "2025-11-25", Keys: true, Ready: true, Calls: []client.CallState{{
				ID: []byte("1"), Method: "tools/call", Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`),
			}},
		}})
		if m := r.answer("1"); !strings.Contains(string(m.Error), "outcome unknown") || calls.Load() > 0 {
			t.Errorf("%s: %s, sent %d times", url, m.Raw, calls.Load())
		}
	}
}

// A request that was sent again under another id is continued elsewhere as the server knows it: its response and its status are under that id.
func TestSentAgainElsewhere(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var sent, asked []string // the ids of the listings, and those in requests for their status
	url := mcptest.Serve(t, mcptest.Methods{
		"initialize": mcptest.Greet("s"),
		"tools/list": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			mu.Lock()
			sent = append(sent, string(m.ID))
			n := len(sent)
			mu.Unlock()
			if n == 1 {
				cut()
			}
			open(w, r, nil, "id: 1\ndata: %s\n\nid: 2\ndata: %s\n\n",
				mcptest.Note("notifications/requests/resumePolicy", `{"requestId":`+string(m.ID)+`,"resumeToken":"secret"}`),
				mcptest.Note("notifications/message", `{"level":"info","data":1}`))
		},
		"requests/getStatus": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			mu.Lock()
			asked = append(asked, string(jsonrpc.Field(m.Params, "requestId")))
			mu.Unlock()
			mcptest.JSON(w, mcptest.Result(m, `{"status":"processing"}`))
		},
		"GET": func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
			if r.Header.Get("Last-Event-ID") != "2" {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			events("id: 3\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"tools\":[]}}\n\n", sent[1])(w, r, jsonrpc.Message{})
		},
	})
	a := newRaw(t, url, client.Options{NoListen: true})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`)
	a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/message" })
	s := a.State()
	a.Detach()
	b := newRaw(t, url, client.Options{State: &s, NoListen: true})
	if got := mcptest.Must(b.Status(t.Context(), s.Calls[0]))(t); got.Status != "processing" {
		t.Errorf("%+v", got)
	}
	if m := b.answer("7"); m.Error != nil {
		t.Errorf("%s", m.Error)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(sent) != 2 || sent[0] == sent[1] || len(asked) != 1 || asked[0] != sent[1] {
		t.Errorf("sent under %q, and asked for %q", sent, asked)
	}
}
