package client_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
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

// When the server has ended the session, the client begins a new one, and the user learns which calls are lost.
func TestNewSession(t *testing.T) {
	t.Parallel()
	var handler atomic.Pointer[holdfast.Handler]
	var runs atomic.Int32
	started := make(chan struct{}, 10)
	end := func(h *holdfast.Handler) {
		if h != nil {
			ctx, stop := context.WithCancel(context.Background())
			stop() // without waiting for requests in flight
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
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.Load().ServeHTTP(w, r) }))
	lost := make(chan []string, 10)
	a := newRaw(t, url, client.Options{Lost: func(l []string) { lost <- l }})
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

// A host that subscribes to a resource is told in a new session that the resource may have changed.
func TestSubscribedAgain(t *testing.T) {
	t.Parallel()
	var sessions atomic.Int32
	subscribed := make(chan string, 10)
	at := mcptest.Serve(t, mcptest.Methods{
		"initialize": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			w.Header().Set("Mcp-Session-Id", fmt.Sprint(sessions.Add(1)))
			mcptest.JSON(w, fmt.Sprintf(keyedGreeting, m.ID))
		},
		"*": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			id := r.Header.Get("Mcp-Session-Id")
			if m.Method == "tools/list" && id == "1" {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			if m.Method == "resources/subscribe" {
				subscribed <- id + jsonrpc.String(jsonrpc.Field(m.Params, "uri"))
			}
			mcptest.JSON(w, mcptest.Result(m, `{}`))
		},
	})
	r := newRaw(t, at, client.Options{NoListen: true, Lost: func([]string) {}})
	r.open()
	for i, request := range []string{`subscribe","params":{"uri":"r:/1"}`, `subscribe","params":{"uri":"r:/2"}`, `unsubscribe","params":{"uri":"r:/2"}`} {
		r.send(`{"jsonrpc":"2.0","id":%d,"method":"resources/%s}`, i, request)
		r.answer(fmt.Sprint(i))
	}
	r.send(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
	m := r.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/resources/updated" })
	if uri := jsonrpc.String(jsonrpc.Field(m.Params, "uri")); uri != "r:/1" {
		t.Errorf("the host is told of %q", uri)
	}
	for _, want := range []string{"1r:/1", "1r:/2", "2r:/1"} {
		if got := <-subscribed; got != want {
			t.Errorf("subscribed to %q, want %q", got, want)
		}
	}
}

// A retry-safe request that is in flight when the server restarts is sent again.
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
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

// A late reply to a request of an ended session does not answer another request with the same id.
func TestStaleServerRequest(t *testing.T) {
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
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	a.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x"}}`) // the server refuses it, as the session has ended
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

// A call that begins while a session is being renewed has an idempotency key like any other: it
// is sent again when its POST is cut.
func TestKeyBetweenSessions(t *testing.T) {
	t.Parallel()
	var sessions, posts atomic.Int32
	begin, cut := make(chan struct{}), make(chan string, 1)
	at := mcptest.Serve(t, mcptest.Methods{
		"initialize": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			n := sessions.Add(1)
			if n > 1 {
				<-begin
			}
			w.Header().Set("Mcp-Session-Id", fmt.Sprint(n))
			mcptest.JSON(w, fmt.Sprintf(keyedGreeting, m.ID))
		},
		"*": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			switch key := r.Header.Get("Idempotency-Key"); {
			case r.Header.Get("Mcp-Session-Id") == "1":
				w.WriteHeader(http.StatusNotFound)
			case mcptest.Tool(m) == "cut" && posts.Add(1) == 1:
				cut <- key
				panic(http.ErrAbortHandler)
			default:
				mcptest.JSON(w, mcptest.Result(m, fmt.Sprintf(`{"key":%q}`, key)))
			}
		},
	})
	lost := make(chan struct{}, 1)
	r := newRaw(t, at, client.Options{NoListen: true, Lost: func([]string) { lost <- struct{}{} }})
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

// A call that begins while a session is being renewed has an idempotency key like any other.
func TestWebSocketKeyBetweenSessions(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 1)
	s := &sockets{t: t, session: func(n int32) string { return fmt.Sprint(n) }, say: func(ws *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		switch jsonrpc.String(jsonrpc.Field(m.Params, "name")) {
		case "cut":
			return false
		case "x":
			keys <- jsonrpc.String(jsonrpc.Field(m.Params, "_meta", "holdfast/idempotencyKey"))
			utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		}
		return true
	}}
	at := "ws" + strings.TrimPrefix(mcptest.Serve(t, s), "http")
	lost, made := make(chan struct{}), make(chan struct{})
	r := newRaw(t, at, client.Options{Lost: func([]string) {
		close(lost)
		<-made
	}})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"cut"}}`)
	<-lost
	r.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"x"}}`)
	close(made)
	r.answer("2")
	if <-keys == "" {
		t.Error("the call has no key")
	}
}
