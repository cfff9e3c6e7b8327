package client_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// An older server speaks the least HTTP+SSE: it answers requests, except for calls
// of "deaf", and resumes no call unless the test makes it.
type older struct {
	comes atomic.Int32
	out   chan string   // messages to say
	cut   chan struct{} // ends the stream
	// come may answer the nth GET itself. It then returns true.
	come func(w http.ResponseWriter, r *http.Request, n int32) (done bool)
	path func(n int32) string // the path in the endpoint event; nil: always the same
	ids  bool                 // events have ids, which begin anew in each stream
	tick time.Duration        // the time between keep-alives; 0: there are none
	hang <-chan struct{}      // closed: the first stream falls silent
}

func newOlder() *older { return &older{out: make(chan string, 10), cut: make(chan struct{})} }

const greeting = `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`

// keyedGreeting is the initialize response of a server that honours idempotency keys.
const keyedGreeting = `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25",` +
	`"capabilities":{"experimental":{"holdfast/idempotencyKey":{}}},"serverInfo":{"name":"x","version":"1"}}}`

// ServeHTTP implements [http.Handler].
func (o *older) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/sse":
		n := o.comes.Add(1)
		if o.come == nil || !o.come(w, r, n) {
			o.stream(w, r, n)
		}
	case r.Method == http.MethodPost && r.URL.Path == "/post":
		body, id, method := received(r)
		w.WriteHeader(http.StatusAccepted)
		switch {
		case method == "initialize":
			o.out <- fmt.Sprintf(greeting, id)
		case method == "cut":
			o.cut <- struct{}{}
		case id != nil && jsonrpc.String(jsonrpc.Field(body, "params", "name")) != "deaf":
			o.out <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
		}
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (o *older) stream(w http.ResponseWriter, r *http.Request, n int32) {
	w.Header().Set("Content-Type", typeEvents)
	said, path := 0, "/post"
	if o.path != nil {
		path = o.path(n)
	}
	say := func(event, data string) {
		if said++; o.ids {
			fmt.Fprintf(w, "id: %d\n", said)
		}
		fmt.Fprintf(w, "event: %s\nretry: 1\ndata: %s\n\n", event, data)
		_ = http.NewResponseController(w).Flush()
	}
	say("endpoint", path)
	var tick <-chan time.Time
	if o.tick > 0 {
		t := time.NewTicker(o.tick)
		defer t.Stop()
		tick = t.C
	}
	hang := o.hang
	if n > 1 {
		hang = nil
	}
	for {
		select {
		case m := <-o.out:
			say("message", m)
		case <-tick:
			fmt.Fprint(w, ": still here\n\n")
			_ = http.NewResponseController(w).Flush()
		case <-hang:
			<-r.Context().Done()
			return
		case <-o.cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func perSession(n int32) string { return fmt.Sprint("/post?sessionId=", n) }

// In another session the event ids of HTTP+SSE begin anew.
func TestHTTPSSEIDsBeginAnew(t *testing.T) {
	t.Parallel()
	o := newOlder()
	o.ids, o.path = true, perSession
	r := newRaw(t, mcptest.Serve(t, o)+"/sse", client.Options{Transport: client.SSE, Lost: func([]string) {}})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	r.answer("1")
	r.send(`{"jsonrpc":"2.0","id":2,"method":"cut"}`)
	if m := r.answer("2"); !strings.Contains(string(m.Error), "outcome unknown") {
		t.Errorf("%s", m.Raw)
	}
	r.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x"}}`)
	if m := r.answer("3"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
}

// A stream that has sent keep-alives, and falls silent, is given up.
func TestHTTPSSEHalfOpen(t *testing.T) {
	t.Parallel()
	o, hang := newOlder(), make(chan struct{})
	o.path, o.tick, o.hang = perSession, 5*time.Millisecond, hang
	r := newRaw(t, mcptest.Serve(t, o)+"/sse", client.Options{Transport: client.SSE, Silence: time.Second, Lost: func([]string) {}})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"deaf"}}`)
	time.AfterFunc(50*time.Millisecond, func() { close(hang) })
	if m := r.answer("1"); !strings.Contains(string(m.Error), "outcome unknown") {
		t.Errorf("%s", m.Raw)
	}
}

// When the server does not know the session of a State any more, the outcomes of the State's calls are unknown.
func TestHTTPSSERestoredTooLate(t *testing.T) {
	t.Parallel()
	o := newOlder()
	o.path = perSession
	url := mcptest.Serve(t, o)
	r := newRaw(t, url+"/sse", client.Options{Transport: client.SSE, Lost: func([]string) {}, State: &client.State{
		URL: url + "/sse", Revision: "2024-11-05", Initialize: []byte(opening), Result: []byte(`{}`), Ready: true,
		Endpoint: url + "/post?sessionId=gone", LastEventID: "7",
		Calls: []client.CallState{{ID: []byte("1"), Method: "tools/call"}},
	}})
	if m := r.answer("1"); !strings.Contains(string(m.Error), "outcome unknown") {
		t.Errorf("%s", m.Raw)
	}
	if n := o.comes.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

const opening = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// A State of a Conn that has fallen back to HTTP+SSE is continued over HTTP+SSE.
func TestHTTPSSERestoredAfterFallback(t *testing.T) {
	t.Parallel()
	o := newOlder()
	o.ids = true
	url := mcptest.Serve(t, o) + "/sse"
	a := newRaw(t, url, client.Options{})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"deaf"}}`)
	a.send(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	a.answer("2")
	a.taken("1")
	state := a.State()
	a.Detach()
	b := newRaw(t, url, client.Options{State: &state})
	b.send(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	if m := b.answer("3"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	o.out <- `{"jsonrpc":"2.0","id":1,"result":{"late":true}}`
	if m := b.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
}

// A stream that never sends its endpoint event is given up, whatever else it sends.
func TestHTTPSSEWithoutEndpoint(t *testing.T) {
	t.Parallel()
	o := newOlder()
	o.come = func(w http.ResponseWriter, r *http.Request, _ int32) bool {
		w.Header().Set("Content-Type", typeEvents)
		fmt.Fprint(w, "event: other\ndata: x\n\n")
		hold(w, r, 5*time.Millisecond)
		return true
	}
	for _, transport := range []client.Transport{client.Auto, client.SSE} {
		r := newRaw(t, mcptest.Serve(t, o)+"/sse", client.Options{Transport: transport, ConnectTimeout: 50 * time.Millisecond})
		r.send(opening)
		if m := r.answer("0"); m.Error == nil {
			t.Errorf("%s", m.Raw)
		}
	}
}

// Only a refusal which says that a session is unknown ends the session.
func TestHTTPSSERefusedForNow(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 408, 409, 429} {
		o := newOlder()
		o.ids = true
		o.come = func(w http.ResponseWriter, _ *http.Request, n int32) bool {
			if n == 2 {
				w.WriteHeader(status)
				// The first event has an id that the client has seen before.
				o.out <- `{"jsonrpc":"2.0","id":7,"result":{}}`
				o.out <- `{"jsonrpc":"2.0","id":1,"result":{}}`
			}
			return n == 2
		}
		r := newRaw(t, mcptest.Serve(t, o)+"/sse", client.Options{Transport: client.SSE})
		r.open()
		r.send(`{"jsonrpc":"2.0","id":1,"method":"cut"}`)
		if m := r.answer("1"); m.Error != nil {
			t.Errorf("%d: %s", status, m.Raw)
		}
	}
}

// sockets is a server of WebSockets. It declares that it honours idempotency keys.
type sockets struct {
	t *testing.T
	// say answers a message of the nth connection, and ends the connection when it returns false. A ping of
	// the WebSocket itself comes as a message without a kind.
	say     func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool
	session func(n int32) string // the session of a connection; nil: the same for all
	dials   atomic.Int32
}

// wsServer serves a sockets.
func wsServer(t *testing.T, say func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool) (url string, dials *atomic.Int32) {
	t.Helper()
	s := &sockets{t: t, say: say}
	return "ws" + strings.TrimPrefix(mcptest.Serve(t, s), "http"), &s.dials
}

// ServeHTTP implements [http.Handler].
func (s *sockets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := s.dials.Add(1)
	session := "s"
	if s.session != nil {
		session = s.session(n)
	}
	w.Header().Set("Mcp-Session-Id", session)
	var ws *websocket.Conn
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		OnPingReceived: func(context.Context, []byte) bool { return s.say(ws, n, jsonrpc.Message{}) },
	})
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(1 << 20)
	for {
		_, data, err := ws.Read(r.Context())
		if err != nil {
			return
		}
		m, err := jsonrpc.Parse(data)
		switch {
		case err != nil:
			s.t.Error(err)
			return
		case m.Method == "initialize":
			utter(ws, keyedGreeting, m.ID)
		case !s.say(ws, n, m):
			return
		}
	}
}

func utter(ws *websocket.Conn, format string, args ...any) {
	_ = ws.Write(context.Background(), websocket.MessageText, fmt.Appendf(nil, format, args...))
}
