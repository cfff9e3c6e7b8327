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

	"holdfast"
	"holdfast/client"
	"holdfast/jsonrpc"
)

// An older server speaks HTTP+SSE as little as can be: it answers what it is asked
// to, but for what is called "deaf", and resumes nothing unless the test makes it.
type older struct {
	comes atomic.Int32
	out   chan string   // messages to say
	cut   chan struct{} // ends the stream
	// come answers the nth GET itself if it says so.
	come func(w http.ResponseWriter, r *http.Request, n int32) (done bool)
	path func(n int32) string // the endpoint event's; nil: always the same
	ids  bool                 // events have ids, which begin anew in each stream
	tick time.Duration        // between keep-alives; 0: there are none
	hang <-chan struct{}      // from when on nothing is said, on the first stream
}

func newOlder() *older { return &older{out: make(chan string, 10), cut: make(chan struct{})} }

const greeting = `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`

// keyedGreeting is a greeting of a server that honours idempotency keys.
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
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.WriteHeader(http.StatusAccepted)
		id := string(jsonrpc.Field(body, "id"))
		switch method := jsonrpc.String(jsonrpc.Field(body, "method")); {
		case method == "initialize":
			o.out <- fmt.Sprintf(greeting, id)
		case method == "cut":
			o.cut <- struct{}{}
		case id != "" && jsonrpc.String(jsonrpc.Field(body, "params", "name")) != "deaf":
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
func TestPairIDsBeginAnew(t *testing.T) {
	t.Parallel()
	o := newOlder()
	o.ids, o.path = true, perSession
	r := newRaw(t, serve(t, o)+"/sse", client.Options{Transport: client.SSE, Lost: func(client.Lost) {}})
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
func TestPairHalfOpen(t *testing.T) {
	t.Parallel()
	o, hang := newOlder(), make(chan struct{})
	o.path, o.tick, o.hang = perSession, 5*time.Millisecond, hang
	r := newRaw(t, serve(t, o)+"/sse", client.Options{Transport: client.SSE, Silence: time.Second, Lost: func(client.Lost) {}})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"deaf"}}`)
	time.AfterFunc(50*time.Millisecond, func() { close(hang) })
	if m := r.answer("1"); !strings.Contains(string(m.Error), "outcome unknown") {
		t.Errorf("%s", m.Raw)
	}
}

// A call of a State whose session the server does not know any more has an outcome
// that nobody knows.
func TestPairRestoredTooLate(t *testing.T) {
	t.Parallel()
	o := newOlder()
	o.path = perSession
	url := serve(t, o)
	r := newRaw(t, url+"/sse", client.Options{Transport: client.SSE, Lost: func(client.Lost) {}, State: &client.State{
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

// Who goes on from the State of a Conn that has fallen back to HTTP+SSE speaks that.
func TestPairRestoredAfterFallback(t *testing.T) {
	t.Parallel()
	o := newOlder()
	o.ids = true
	url := serve(t, o) + "/sse"
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

// A stream that never says where messages are to be posted to is given up, however
// much else it says.
func TestPairWithoutEndpoint(t *testing.T) {
	t.Parallel()
	o := newOlder()
	o.come = func(w http.ResponseWriter, r *http.Request, _ int32) bool {
		w.Header().Set("Content-Type", typeEvents)
		fmt.Fprint(w, "event: other\ndata: x\n\n")
		hold(w, r, 5*time.Millisecond)
		return true
	}
	for _, transport := range []client.Transport{client.Auto, client.SSE} {
		r := newRaw(t, serve(t, o)+"/sse", client.Options{Transport: transport, ConnectTimeout: 50 * time.Millisecond})
		r.send(opening)
		if m := r.answer("0"); m.Error == nil {
			t.Errorf("%s", m.Raw)
		}
	}
}

// Only a refusal that says that a session is unknown ends it.
func TestPairRefusedForNow(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 408, 409, 429} {
		o := newOlder()
		o.ids = true
		o.come = func(w http.ResponseWriter, _ *http.Request, n int32) bool {
			if n == 2 {
				w.WriteHeader(status)
				// The first has an event id that was there before.
				o.out <- `{"jsonrpc":"2.0","id":7,"result":{}}`
				o.out <- `{"jsonrpc":"2.0","id":1,"result":{}}`
			}
			return n == 2
		}
		r := newRaw(t, serve(t, o)+"/sse", client.Options{Transport: client.SSE})
		r.open()
		r.send(`{"jsonrpc":"2.0","id":1,"method":"cut"}`)
		if m := r.answer("1"); m.Error != nil {
			t.Errorf("%d: %s", status, m.Raw)
		}
	}
}

// wsServer serves a WebSocket: say answers each message, and false ends the
// connection. A ping of the connection itself comes as a message without a kind. The
// server says that it honours idempotency keys.
func wsServer(t *testing.T, say func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool) (url string, dials *atomic.Int32) {
	t.Helper()
	return wsSessions(t, func(int32) string { return "s" }, say)
}

// wsSessions is wsServer with a session of its own for each connection, by its number.
func wsSessions(t *testing.T, session func(n int32) string, say func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool) (url string, dials *atomic.Int32) {
	t.Helper()
	dials = new(atomic.Int32)
	url = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := dials.Add(1)
		w.Header().Set("Mcp-Session-Id", session(n))
		var ws *websocket.Conn
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{
			OnPingReceived: func(context.Context, []byte) bool { return say(ws, n, jsonrpc.Message{}) },
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
				t.Error(err)
				return
			case m.Method == "initialize":
				utter(ws, keyedGreeting, m.ID)
			case !say(ws, n, m):
				return
			}
		}
	}))
	return "ws" + strings.TrimPrefix(url, "http"), dials
}

func utter(ws *websocket.Conn, format string, args ...any) {
	_ = ws.Write(context.Background(), websocket.MessageText, fmt.Appendf(nil, format, args...))
}

// A message of the server that is too large fails the call that it answers, and
// nothing else.
func TestSocketTooLarge(t *testing.T) {
	t.Parallel()
	url, dials := wsServer(t, func(ws *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		if m.Kind != jsonrpc.Request {
			return true
		}
		long := strings.Repeat("x", 20000)
		switch jsonrpc.String(jsonrpc.Field(m.Params, "name")) {
		case "before":
			utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{"id":0,"\"id":"\\\"%s"}}`, m.ID, long)
		case "after":
			utter(ws, `{"jsonrpc":"2.0","result":[{"x":"%s","id":0}], "id" : %s}`, long, m.ID)
		case "other":
			utter(ws, `{"jsonrpc":"2.0","method":"x","params":{"x":"%s"}}`, long)
			utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		}
		return true
	})
	r := newRaw(t, url, client.Options{MaxMessage: 10000})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":"held","method":"tools/call","params":{"name":"held"}}`)
	for i, name := range []string{"before", "after", "other"} {
		id := fmt.Sprint(i + 1)
		r.send(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q}}`, id, name)
		m := r.answer(id)
		if name == "other" && m.Error != nil ||
			name != "other" && !strings.Contains(string(m.Error), "outcome unknown: a message of the server is larger than 10000 bytes") {
			t.Errorf("%s: %s", name, m.Raw)
		}
	}
	if n, calls := dials.Load(), r.State().Calls; n != 1 || len(calls) != 1 {
		t.Errorf("%d connections, in flight %v", n, calls)
	}
}

// A request that is too large for the server fails, and others go on.
func TestSocketRequestTooLarge(t *testing.T) {
	t.Parallel()
	url := "ws" + strings.TrimPrefix(holdfastServer(t, &holdfast.Options{MaxBody: 64 << 10}), "http")
	r := newRaw(t, url, client.Options{})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask","arguments":{}}}`)
	question := r.until(func(m jsonrpc.Message) bool { return m.Method == "elicitation/create" })
	r.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"add","arguments":{"x":%q}}}`, strings.Repeat("x", 1<<20))
	if m := r.answer("2"); !strings.Contains(string(m.Error), "as large as this") || strings.Contains(string(m.Error), "outcome unknown") {
		t.Errorf("%.300s", m.Raw)
	}
	// Who waits for an answer that is too large is told that there is none.
	r.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"name":%q}}}`, question.ID, strings.Repeat("x", 1<<20))
	if m := r.answer("1"); !strings.Contains(string(m.Raw), "as large as this") {
		t.Errorf("%.300s", m.Raw)
	}
}

// The answer that was lost is sent again, however many there were before; what the
// server has is not, and nobody misses pongs.
func TestSocketAnswers(t *testing.T) {
	t.Parallel()
	const many = 1100
	// The client asks, one ping after the other, what the server has. A ping that comes
	// after an answer may be about what was written before that. Each further question
	// waits for one more: the second of these is about all of the many answers, and the
	// third says that the second was answered.
	const more = 3
	var heard, again atomic.Int32
	asked, due := 0, false // on the goroutine that reads
	ask := func(ws *websocket.Conn) {
		id := "more"
		if due, asked = false, asked+1; asked > more {
			id = "last"
		}
		utter(ws, `{"jsonrpc":"2.0","id":%q,"method":"elicitation/create","params":{}}`, id)
	}
	done := make(chan struct{})
	url, _ := wsServer(t, func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool {
		switch id := jsonrpc.String(m.ID); {
		case m.Method == "tools/call":
			for i := range many {
				utter(ws, `{"jsonrpc":"2.0","id":"p%d","method":"ping"}`, i)
				utter(ws, `{"jsonrpc":"2.0","id":"e%d","method":"elicitation/create","params":{}}`, i)
			}
		case m.Kind == 0 && due:
			ask(ws)
		case m.Kind != jsonrpc.Response:
		case id == "last" && n == 1:
			return false // as if it had been lost with the connection
		case id == "last":
			close(done)
		case n > 1:
			again.Add(1)
		case id == "more":
			due = true
		case heard.Add(1) == 2*many:
			ask(ws)
		}
		return true
	})
	r := newRaw(t, url, client.Options{})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	for range 2*many + more + 1 {
		m := r.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
		r.send(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
	}
	select {
	case <-done:
	case <-time.After(soon):
		t.Fatal("the last answer was lost")
	}
	if n := again.Load(); n > many/2 {
		t.Errorf("%d answers were sent again", n)
	}
}

// A call that is made while a session begins in the place of a lost one has an
// idempotency key as any other.
func TestSocketKeyBetweenSessions(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 1)
	at, _ := wsSessions(t, func(n int32) string { return fmt.Sprint(n) }, func(ws *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		switch jsonrpc.String(jsonrpc.Field(m.Params, "name")) {
		case "cut":
			return false
		case "x":
			keys <- jsonrpc.String(jsonrpc.Field(m.Params, "_meta", "holdfast/idempotencyKey"))
			utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		}
		return true
	})
	lost, made := make(chan struct{}), make(chan struct{})
	r := newRaw(t, at, client.Options{Lost: func(client.Lost) {
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
