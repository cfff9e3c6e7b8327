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
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/client"
	"holdfast/jsonrpc"
)

// raw is a host that speaks JSON.
type raw struct {
	*client.Conn
	t     *testing.T
	heard map[string]int // notifications, by method
}

func newRaw(t *testing.T, url string, opts client.Options) *raw {
	t.Helper()
	c, err := client.New(url, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &raw{c, t, make(map[string]int)}
}

func (r *raw) send(format string, args ...any) {
	r.t.Helper()
	m, err := jsonrpc.Parse(fmt.Appendf(nil, format, args...))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.Send(r.t.Context(), m); err != nil {
		r.t.Fatal(err)
	}
}

// until returns the first message for which f is true.
func (r *raw) until(f func(jsonrpc.Message) bool) jsonrpc.Message {
	r.t.Helper()
	ctx, stop := context.WithTimeout(r.t.Context(), soon)
	defer stop()
	for {
		m, err := r.Receive(ctx)
		if err != nil {
			r.t.Fatal(err)
		}
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

// taken waits until the server was heard to have a call.
func (r *raw) taken(id string) {
	r.t.Helper()
	ctx, stop := context.WithTimeout(r.t.Context(), soon)
	defer stop()
	if !eventually(ctx, func() bool {
		return !slices.ContainsFunc(r.State().Calls, func(c client.CallState) bool { return string(c.ID) == id && len(c.Request) > 0 })
	}) {
		r.t.Fatalf("the server does not have %s", id)
	}
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
	serving atomic.Int32 // requests
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
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Retry: 10 * time.Millisecond})
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		_ = h.Shutdown(ctx)
	})
	old := h.SSE("/messages")
	g.url = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

// A call is begun by one Conn and finished by another, which knows only what the
// first one's State says, whatever of it is left.
func TestGoOn(t *testing.T) {
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
			if err := json.Unmarshal(text, &s); err != nil {
				t.Fatal(err)
			}
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
				want = "1 2" // nobody knows that the first one has arrived
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

// A question that one Conn has left without an answer comes to the next one, which
// answers it.
func TestGoOnAsked(t *testing.T) {
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
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Retry: 10 * time.Millisecond})
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		_ = h.Shutdown(ctx)
	})
	a := newRaw(t, serve(t, h), client.Options{})
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

// The status of a call is told without taking what it has to say.
func TestStatus(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	a := newRaw(t, g.url, client.Options{})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
	a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
	s := a.State()
	a.Detach()
	if !eventually(t.Context(), func() bool { return g.serving.Load() == 0 }) {
		t.Error("the server still writes to who has left")
	}
	s = client.State{URL: s.URL, Revision: s.Revision, Calls: s.Calls}
	ask := func() client.Status {
		t.Helper()
		b := newRaw(t, s.URL, client.Options{State: &client.State{URL: s.URL, Revision: s.Revision}, NoListen: true})
		got, err := b.StatusOf(t.Context(), s.Calls[0])
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := ask(); got.Status != "processing" || got.HasInputRequest {
		t.Errorf("%+v", got)
	}
	close(g.open)
	for ask().Status == "processing" {
		time.Sleep(time.Millisecond) // there is nothing to wait on: that is what this is for
	}
	if got := ask(); got.Status != "completed" || !got.HasPendingMessage {
		t.Errorf("%+v", got)
	}
}

// A request that the host cancels is cancelled at the server, and has no answer.
func TestCancel(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	a := newRaw(t, g.url, client.Options{})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
	a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
	s := a.State()
	a.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	b := newRaw(t, s.URL, client.Options{State: &client.State{URL: s.URL, Revision: s.Revision}, NoListen: true})
	for {
		if got, err := b.StatusOf(t.Context(), s.Calls[0]); err != nil || got.Status != "processing" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	a.send(`{"jsonrpc":"2.0","id":8,"method":"ping"}`)
	if m := a.answer("8"); m.Error != nil || string(m.Result) != "{}" {
		t.Errorf("%s", m.Raw)
	}
}

// When the server has ended the session another one begins, and the host is told
// what of the old one is lost.
func TestNewSession(t *testing.T) {
	t.Parallel()
	var handler atomic.Pointer[holdfast.Handler]
	var runs atomic.Int32
	started := make(chan struct{}, 10)
	end := func(h *holdfast.Handler) {
		if h != nil {
			ctx, stop := context.WithCancel(context.Background())
			stop() // without waiting for anybody
			_ = h.Shutdown(ctx)
		}
	}
	restart := func() {
		server := mcp.NewServer(impl, nil)
		mcp.AddTool(server, &mcp.Tool{Name: "wait"}, func(ctx context.Context, _ *mcp.CallToolRequest, args struct {
			Quick bool `json:"Quick,omitempty"`
		}) (*mcp.CallToolResult, any, error) {
			n := runs.Add(1)
			if !args.Quick {
				started <- struct{}{}
				<-ctx.Done()
			}
			return nil, n, nil
		})
		end(handler.Swap(holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Retry: 10 * time.Millisecond})))
	}
	restart()
	t.Cleanup(func() { end(handler.Load()) })
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.Load().ServeHTTP(w, r) }))
	lost := make(chan client.Lost, 10)
	a := newRaw(t, url, client.Options{Lost: func(l client.Lost) { lost <- l }})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait","arguments":{}}}`)
	<-started
	old := a.SessionID()
	restart()
	m := a.answer("1")
	if !strings.Contains(string(m.Error), "outcome unknown") {
		t.Errorf("a call in flight: %s", m.Raw)
	}
	a.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"wait","arguments":{"Quick":true}}}`)
	if m := a.answer("2"); m.Error != nil {
		t.Errorf("a call after that: %s", m.Raw)
	}
	if id := a.SessionID(); id == old || id == "" {
		t.Errorf("session %q, after %q", id, old)
	}
	if n := runs.Load(); n != 2 {
		t.Errorf("tools ran %d times", n)
	}
	select {
	case <-lost:
	case <-time.After(soon):
		t.Error("nobody said that the session was lost")
	}
	const changed = "notifications/tools/list_changed"
	if a.heard[changed] == 0 {
		a.until(func(m jsonrpc.Message) bool { return m.Method == changed })
	}
}

// What changes nothing is asked again of a server that was restarted while it was
// asked.
func TestNewSessionWhileAsked(t *testing.T) {
	t.Parallel()
	server := newServer()
	begin := func() *holdfast.Handler {
		return holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Retry: 10 * time.Millisecond})
	}
	var handler atomic.Pointer[holdfast.Handler]
	handler.Store(begin())
	end := func(h *holdfast.Handler) {
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		_ = h.Shutdown(ctx)
	}
	t.Cleanup(func() { end(handler.Load()) })
	restarts := 0
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "tools/list") && restarts == 0 {
			restarts++
			end(handler.Swap(begin()))
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		handler.Load().ServeHTTP(w, r)
	}))
	a := newRaw(t, url, client.Options{})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if m := a.answer("1"); m.Error != nil || restarts != 1 {
		t.Errorf("%s, after %d restarts", m.Raw, restarts)
	}
}

// A call that one official client began is finished by another, in a process that
// has nothing but its CallState, and a session and ids of its own.
func TestResumeOfficial(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	began := make(chan struct{}, 1)
	first := holdfast.NewClientTransport(g.url, nil)
	a, err := mcp.NewClient(impl, &mcp.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { began <- struct{}{} },
	}).Connect(ctx, first, nil)
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{Name: "wait", Arguments: map[string]any{}}
		p.SetProgressToken("p")
		_, err := a.CallTool(ctx, p)
		left <- err
	}()
	<-began
	call := first.State().Calls[0]
	first.Detach()
	if err := <-left; err == nil {
		t.Error("the call ended here")
	}

	progress := make(chan float64, 10)
	second := holdfast.NewClientTransport(g.url, nil)
	b, err := mcp.NewClient(impl, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { progress <- req.Params.Progress },
	}).Connect(ctx, second, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	close(g.open)
	text, err := second.Resume(ctx, call)
	if err != nil {
		t.Fatal(err)
	}
	var result mcp.CallToolResult
	if err := json.Unmarshal(text, &result); err != nil || result.StructuredContent != 1.0 {
		t.Errorf("%s: %v", text, err)
	}
	if got := <-progress; got != 2 {
		t.Errorf("progress %v: what was told before is told again", got)
	}
	if _, err := second.Resume(ctx, client.CallState{ID: call.ID, Method: call.Method, Token: "wrong"}); !holdfast.OutcomeUnknown(err) {
		t.Errorf("a wrong token: %v", err)
	}
	if err := b.Ping(ctx, nil); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// A late answer to a question of a session that is gone does not answer another
// question that has its id.
func TestStaleQuestion(t *testing.T) {
	t.Parallel()
	var gone atomic.Bool
	answered := make(chan string, 10)
	s := &script{t: t}
	s.serve = func(w http.ResponseWriter, r *http.Request, body []byte) {
		id := jsonrpc.Field(body, "id")
		switch {
		case jsonrpc.Field(body, "method") == nil && r.Method == http.MethodPost:
			answered <- string(body)
			w.WriteHeader(http.StatusAccepted)
		case gone.CompareAndSwap(true, false):
			w.WriteHeader(http.StatusNotFound)
		default:
			stream(w, "", data(question("0", "sure?")))
			_ = http.NewResponseController(w).Flush()
			if string(id) == "2" {
				stream(w, "", data(`{"jsonrpc":"2.0","id":2,"result":{}}`))
			}
			<-r.Context().Done()
		}
	}
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Mcp-Session-Id", "s")
		s.ServeHTTP(w, r)
	}))
	a := newRaw(t, url, client.Options{NoListen: true})
	a.open()
	asked := func() jsonrpc.Message {
		return a.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	}
	a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	old := asked()
	gone.Store(true)
	a.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x"}}`) // finds the session gone
	fresh := asked()
	if string(old.ID) == string(fresh.ID) {
		t.Fatalf("two questions are both called %s", fresh.ID)
	}
	a.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, old.ID)
	a.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`, fresh.ID)
	if got := <-answered; got != `{"jsonrpc":"2.0","id":0,"result":{"action":"decline"}}` {
		t.Errorf("answered %s", got)
	}
}

// A request is in the State before it is sent.
func TestStateBeforeSending(t *testing.T) {
	t.Parallel()
	var conn atomic.Pointer[client.Conn]
	var posts, early atomic.Int32
	server := newServer()
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, nil)
	t.Cleanup(func() { _ = h.Shutdown(t.Context()) })
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

// A call of which the server has said nothing yet but that it has it is gone on with
// under its idempotency key: what State tells is enough at any time.
func TestGoOnByKey(t *testing.T) {
	t.Parallel()
	t.Run("http", func(t *testing.T) {
		t.Parallel()
		g := newGate(t)
		at := g.behind(t, strip{link: true, ids: true, policy: true})
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
		a.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`) // by its answer the call has been written
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

// A call that is made while a session begins in the place of a lost one has an
// idempotency key as any other: it is sent again when its POST is cut.
func TestKeyBetweenSessions(t *testing.T) {
	t.Parallel()
	var sessions, posts atomic.Int32
	begin, cut := make(chan struct{}), make(chan string, 1)
	at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		id := jsonrpc.Field(body, "id")
		w.Header().Set("Content-Type", "application/json")
		switch name := jsonrpc.String(jsonrpc.Field(body, "params", "name")); {
		case jsonrpc.String(jsonrpc.Field(body, "method")) == "initialize":
			n := sessions.Add(1)
			if n > 1 {
				<-begin
			}
			w.Header().Set("Mcp-Session-Id", fmt.Sprint(n))
			fmt.Fprintf(w, keyedGreeting, id)
		case id == nil:
			w.WriteHeader(http.StatusAccepted)
		case r.Header.Get("Mcp-Session-Id") == "1":
			w.WriteHeader(http.StatusNotFound)
		case name == "cut" && posts.Add(1) == 1:
			cut <- r.Header.Get("Idempotency-Key")
			panic(http.ErrAbortHandler)
		default:
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"key":%q}}`, id, r.Header.Get("Idempotency-Key"))
		}
	}))
	lost := make(chan struct{}, 1)
	r := newRaw(t, at, client.Options{NoListen: true, Lost: func(client.Lost) { lost <- struct{}{} }})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	<-lost
	r.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"cut"}}`)
	close(begin)
	m := r.answer("2")
	if key := <-cut; key == "" || jsonrpc.String(jsonrpc.Field(m.Result, "key")) != key {
		t.Errorf("first under %q, then %s", key, m.Raw)
	}
}

// Who resumes a call in a session of its own finds it in the session that it runs in:
// an event id means nothing in another, and a key that was not heard of there would
// have the tool run a second time.
func TestResumeForeign(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		strip  strip
		forget func(*client.CallState)
	}{
		"event id": {strip{}, func(c *client.CallState) { c.Stream, c.Token, c.Key = "", "", "" }},
		"key":      {strip{link: true, ids: true, policy: true}, func(*client.CallState) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			at := g.behind(t, test.strip)
			a, b := newRaw(t, at, client.Options{}), newRaw(t, at, client.Options{})
			a.open()
			b.open()
			a.send(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
			a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
			call := a.State().Calls[0]
			a.Detach()
			test.forget(&call)
			close(g.open)
			ctx, stop := context.WithTimeout(t.Context(), soon)
			defer stop()
			m, err := b.Resume(ctx, call)
			if err != nil || m.Error != nil || g.runs.Load() != 1 {
				t.Errorf("%s, %v, after %d runs", m.Raw, err, g.runs.Load())
			}
			// The end of its session is not the end of that of the others.
			call.Session = "gone"
			before := b.SessionID()
			if m, err := b.Resume(ctx, call); err != nil || !strings.Contains(string(m.Error), "outcome unknown") {
				t.Errorf("of a session that is gone: %s, %v", m.Raw, err)
			}
			b.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			if m := b.answer("1"); m.Error != nil || b.SessionID() != before || g.runs.Load() != 1 {
				t.Errorf("after that: %s, after %d runs", m.Raw, g.runs.Load())
			}
		})
	}
}

// behind returns where the server is to be found that does not offer all that it does.
func (g *gate) behind(t *testing.T, s strip) string {
	t.Helper()
	u, err := url.Parse(g.url)
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, s.wrap(httputil.NewSingleHostReverseProxy(u)))
}

// An official client over a WebSocket goes on with the call of another, with its token
// alone; one over HTTP+SSE can't, and is told so. A State beside it changes nothing.
func TestTransportResumesOverLine(t *testing.T) {
	t.Parallel()
	server, open := mcp.NewServer(impl, nil), make(chan struct{})
	mcp.AddTool(server, &mcp.Tool{Name: "wait"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: 1})
		select {
		case <-open:
		case <-ctx.Done():
		}
		return nil, "done", ctx.Err()
	})
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, nil)
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.Handle("/sse", h.SSE("/messages"))
	mux.Handle("/messages", h.SSE("/messages"))
	url := serve(t, mux)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		_ = h.Shutdown(ctx)
	})
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	began := make(chan struct{}, 1)
	first := holdfast.NewClientTransport(url, nil)
	a, err := mcp.NewClient(impl, &mcp.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { began <- struct{}{} },
	}).Connect(ctx, first, nil)
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{Name: "wait", Arguments: map[string]any{}}
		p.SetProgressToken("p")
		_, err := a.CallTool(ctx, p)
		left <- err
	}()
	<-began
	state := first.State()
	first.Detach()
	if err := <-left; err == nil {
		t.Error("the call ended here")
	}
	call := state.Calls[0]
	old := holdfast.NewClientTransport(url+"/sse", nil)
	b, err := mcp.NewClient(impl, nil).Connect(ctx, old, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := old.Resume(ctx, client.CallState{ID: call.ID, Method: call.Method, Token: call.Token}); !holdfast.OutcomeUnknown(err) ||
		!strings.Contains(err.Error(), "Streamable HTTP") {
		t.Errorf("over HTTP+SSE: %v", err)
	}
	line := holdfast.NewClientTransport("ws"+strings.TrimPrefix(url, "http"), &holdfast.ClientOptions{Options: client.Options{State: &state}})
	c, err := mcp.NewClient(impl, nil).Connect(ctx, line, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	close(open)
	if text, err := line.Resume(ctx, client.CallState{ID: call.ID, Method: call.Method, Token: call.Token}); err != nil || !strings.Contains(string(text), "done") {
		t.Errorf("over a WebSocket: %s, %v", text, err)
	}
}

// Over HTTP+SSE, where nobody can ask for a call, one that the server has goes on, and
// of one that the process before may not have sent the outcome is unknown, at once.
func TestPairUnsent(t *testing.T) {
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
