package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/backend/message"
	"holdfast/internal/engine/shared"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A backend that is slow to take a request gets the next request after it, also from a WebSocket
// at another node.
func TestSocketElsewhereSlowOrder(t *testing.T) {
	t.Parallel()
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			s, ran := newScript(), make(chan string, 2)
			f := newFarm(t, 2, config{backend: message.New(message.HandlerFunc(func(x *message.Exchange) {
				if x.Method != "tools/call" {
					s.Serve(x)
					return
				}
				if strings.Contains(string(x.Params), "first") {
					time.Sleep(2500 * time.Millisecond)
				}
				ran <- string(x.ID)
				x.Result(result("ok"))
			}))})
			p := f.nodes[0].connect("2025-11-25", nil)
			c := openSocket(f.nodes[i].node, 0, "Mcp-Session-Id: "+p.id)
			c.say(callAs("1", "hold", `{"k":"first"}`), callAs("2", "hold", `{"k":"second"}`))
			if one, two := <-ran, <-ran; one != "1" {
				t.Errorf("order %s, %s", one, two)
			}
		})
	}
}

// A WebSocket is not ended by DisconnectAfter while it has a light call, wherever its session is.
func TestSocketElsewhereStays(t *testing.T) {
	testlong.Only(t, "it waits for seconds to see that nothing happens")
	t.Parallel()
	for i := range 2 {
		f := newFarm(t, 2, config{server: server.Options{DisconnectAfter: 3 * time.Second, UpgradeAfter: 15 * time.Second}})
		p := f.nodes[0].able("2025-11-25", "")
		p.post(listTools)
		c := openSocket(f.nodes[i].node, 0, "Mcp-Session-Id: "+p.id)
		c.say(callAs("1", "safe_hold", `{"key":"k"}`))
		mcptest.Eventually(t, "run", time.Minute, func() bool { return f.runs("k") == 1 })
		ch := make(chan string, 1)
		go func() {
			for {
				b, err := c.recv()
				if err != nil {
					ch <- websocket.CloseStatus(err).String()
					return
				}
				if strings.Contains(string(b), `"id":1`) {
					ch <- string(b)
					return
				}
				t.Logf("node %d: %s", i, b)
			}
		}()
		select {
		case m := <-ch:
			t.Errorf("node %d: %s", i, m)
		case <-time.After(6 * time.Second):
			f.nodes[0].release(1)[0].Result(result("held"))
			if m := <-ch; !strings.Contains(m, "held") {
				t.Errorf("node %d, after the release: %s", i, m)
			}
		}
	}
}

// A node that drains keeps a WebSocket until its calls at another node have ended.
func TestSocketElsewhereDrainWaits(t *testing.T) {
	testlong.Only(t, "it waits for seconds to see that nothing happens")
	t.Parallel()
	f, _, c := elsewhere(t, config{}, 2)
	c.say(callAs("1", "hold", `{"key":"k"}`))
	mcptest.Eventually(t, "run", time.Minute, func() bool { return f.runs("k") == 1 })
	go func() { _ = f.nodes[1].drain(24 * time.Second) }()
	began := time.Now()
	ch := make(chan string, 1)
	go func() {
		for {
			b, err := c.recv()
			if err != nil {
				ch <- err.Error()
				return
			}
			if strings.Contains(string(b), `"id":1`) {
				ch <- string(b)
				return
			}
		}
	}()
	select {
	case g := <-ch:
		t.Errorf("after %v: %q", time.Since(began), g)
	case <-time.After(9500 * time.Millisecond):
		f.nodes[0].release(1)[0].Result(result("held"))
		if g := <-ch; !strings.Contains(g, "held") {
			t.Errorf("after the release: %q", g)
		}
	}
}

// A call that is made again under its key is answered on a WebSocket of a session at another
// node, though the key's session is at this node.
func TestSocketElsewhereKeyHere(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{server: server.Options{UpgradeAfter: 50 * time.Millisecond}})
	me := http.Header{"Authorization": {"Bearer me"}}
	a := f.nodes[0].connect("2025-11-25", me)
	b := f.nodes[1].connect("2025-11-25", me)
	body := strings.Replace(callAs(`"k"`, "hold", `{"key":"k"}`), `"_meta":{`, `"_meta":{"holdfast/idempotencyKey":"K",`, 1)
	w := b.open("POST", "/mcp", body)
	f.nodes[1].release(1)[0].Result(result("held"))
	w.all()
	c := openSocket(f.nodes[1].node, 0, "Mcp-Session-Id: "+a.id, "Authorization: Bearer me")
	c.say(body)
	c.hears(`"id":"k"`, "held")
}

type panickyWriter struct {
	http.ResponseWriter
	bad *atomic.Bool
}

func (w panickyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w panickyWriter) Write(b []byte) (int, error) {
	if w.bad.Load() {
		panic("a middleware's writer")
	}
	return w.ResponseWriter.Write(b)
}

// A panic of a middleware's writer while a continued call is written ends the connection, not the process. The client gets the
// call on its next connection.
func TestContinuedCallPanics(t *testing.T) {
	t.Parallel()
	var bad atomic.Bool
	n := newNode(t, config{http: func(s *http.Server) {
		h := s.Handler
		s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w = panickyWriter{w, &bad}
			}
			h.ServeHTTP(w, r)
		})
	}})
	n.HurryLost(50 * time.Millisecond)
	p := n.connect("2025-06-18", nil)
	left := p.open("POST", "/mcp", call("hold", `{}`))
	held := n.release(1)
	left.atMost(20, rst)
	w := p.open("GET", "/mcp", "")
	w.head()
	mcptest.Eventually(t, "the call to be continued", time.Minute, func() bool { return n.sessions.Readers() == 2 })
	bad.Store(true)
	held[0].Result(result("held"))
	if ev, err := w.next(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %s, %v", ev.Data, err)
	}
	bad.Store(false)
	if ev := p.open("GET", "/mcp", "").message(); !strings.Contains(string(ev.Data), "held") {
		t.Errorf("after that, got %s", ev.Data)
	}
}

// A call that is resumed on the connection that reads it already is answered once.
func TestSocketResumedTwice(t *testing.T) {
	testlong.Only(t, "it waits for seconds to see that nothing happens")
	t.Parallel()
	n := newNode(t, config{})
	p := n.able("2025-11-25", "")
	c := openSocket(n, 1<<26, "Mcp-Session-Id: "+p.id)
	c.say(callAs("1", "steps", `{"key":"k","n":3000,"size":4000}`))
	token := ""
	for token == "" {
		m := c.message()
		token = jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken"))
		if token == "" {
			t.Logf("%.200s", m.Raw)
		}
		if m.Kind == jsonrpc.Response {
			t.Fatal("no token")
		}
	}
	time.Sleep(500 * time.Millisecond) // until the socket is full
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"requests/resume","params":{"resumeToken":%q}}`, token))
	time.Sleep(500 * time.Millisecond)
	c.say(callAs(`"last"`, "echo", `{"text":"answered"}`))
	responses, steps := 0, 0
	for {
		m := c.message()
		switch {
		case string(m.ID) == `"end"`:
			t.Logf("%d responses, %d steps", responses, steps)
			if responses != 1 {
				t.Errorf("%d responses", responses)
			}
			return
		case m.Kind == jsonrpc.Response && string(m.ID) == "1":
			if responses++; responses == 1 {
				time.AfterFunc(time.Second, func() { c.say(callAs(`"end"`, "echo", `{"text":"the end"}`)) })
			}
		case strings.Contains(string(m.Raw), "progress"):
			steps++
		}
	}
}

// twoSessions returns a client with a session at node 1, and a WebSocket at node 1 of another
// session of the same principal, which is at node 0.
func twoSessions(t *testing.T) (*farm, *peer, *talker) {
	f := newFarm(t, 2, config{})
	p, other := f.nodes[0].able("2025-11-25", "me"), f.nodes[1].able("2025-11-25", "me")
	p.post(listTools)
	d := openSocket(f.nodes[1].node, 0, "Mcp-Session-Id: "+p.id, "Authorization: Bearer me")
	return f, other, d
}

// An answer to a server's request in a session at this node arrives from a WebSocket of a session
// at another node.
func TestSocketElsewhereAnswerHere(t *testing.T) {
	t.Parallel()
	_, other, d := twoSessions(t)
	w := other.open("POST", "/mcp", callAs(`"a"`, "ask", `{}`))
	token := w.token()
	w.message()
	d.say(again(`"a"`, token))
	d.policy(`"a"`)
	var question struct{ ID json.RawMessage }
	if err := json.Unmarshal(d.hears("elicitation/create"), &question); err != nil {
		t.Fatal(err)
	}
	d.say(`{"jsonrpc":"2.0","id":"s","method":"requests/getStatus","params":{"requestId":"a","resumeToken":"` + token + `"}}`)
	for {
		m := d.message()
		t.Logf("%s", m.Raw)
		if string(m.ID) == `"s"` {
			break
		}
	}
	d.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, question.ID))
	got := make(chan []byte, 1)
	go func() { got <- d.hears(`"id":"a"`, "accept") }()
	select {
	case g := <-got:
		t.Logf("answered: %s", g)
	case <-time.After(time.Minute):
		t.Error("the answer did not reach the tool")
	}
}

// TestSocketElsewhereAnswerHere with a cancellation.
func TestSocketElsewhereCancelHere(t *testing.T) {
	t.Parallel()
	f, other, d := twoSessions(t)
	w := other.open("POST", "/mcp", callAs(`"c"`, "hold", `{}`))
	token := w.token()
	f.nodes[1].release(1)
	d.say(again(`"c"`, token))
	d.policy(`"c"`)
	d.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c","_meta":{"holdfast/resumeToken":%q}}}`, token))
	for end := time.Now().Add(time.Minute); f.nodes[1].sessions.Calls() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not cancelled")
		}
	}
}

// An invalid handshake at a node that does not own the session takes no messages of the session.
func TestSocketElsewhereFaulty(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{})
	p := f.nodes[0].connect("2025-11-25", nil)
	p.note("one")
	there := p.at(f.nodes[1])
	if r := there.open("GET", "/mcp", "", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13").all(); r.status != http.StatusBadRequest {
		t.Errorf("without a key: %d", r.status)
	}
	openSocket(f.nodes[1].node, 0, "Mcp-Session-Id: "+p.id).hears("one")
}

// A client's later messages do not overtake a request if the session comes to the node that was
// about to forward the request.
func TestSocketElsewhereComesInOrder(t *testing.T) {
	t.Parallel()
	var moved atomic.Bool
	pause := func(d time.Duration) {
		if moved.Load() {
			time.Sleep(d)
		}
	}
	c := config{server: server.Options{UpgradeAfter: time.Minute, Pack: func(context.Context) []byte { pause(100 * time.Millisecond); return nil }}}
	c.session.Safe = func(string) bool { pause(300 * time.Millisecond); return false }
	f := newFarm(t, 2, c)
	p := f.nodes[0].connect("2025-11-25", http.Header{"Authorization": {"Bearer me"}})
	d := openSocket(f.nodes[1].node, 0, "Mcp-Session-Id: "+p.id, "Authorization: Bearer me")
	moved.Store(true)
	f.take(f.nodes[0], f.nodes[1], string(whereabouts.KeyOf(p.id)))
	d.say(callAs("1", "hold", `{"key":"k"}`), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		callAs(`"last"`, "echo", `{"text":"answered"}`))
	d.hears(`"last"`, "answered")
	mcptest.Eventually(t, "the call to be cancelled", time.Minute, func() bool { return f.nodes[1].sessions.Calls() == 0 })
}

// Options.Pack panics for a WebSocket at another node, while another connection reads the
// standalone stream of its session: the close frame tells the client to come back.
func TestSocketElsewherePackPanics(t *testing.T) {
	t.Parallel()
	var panics atomic.Bool
	_, p, c := elsewhere(t, config{server: server.Options{KeepAlive: 4 * time.Second, Pack: func(context.Context) []byte {
		if panics.Load() {
			panic("user code")
		}
		return nil
	}}}, 2)
	c.reads()
	if _, err := p.open("GET", "/mcp", "").next(); err != nil {
		t.Fatal(err)
	}
	panics.Store(true)
	c.ended(websocket.StatusGoingAway, "going away")
}

// trimmedStore is a store that has trimmed the standalone stream. When its Bounds are asked for,
// the session leaves the node.
type trimmedStore struct {
	shared.Store
	leaves atomic.Pointer[func()]
}

func (s *trimmedStore) Read(ctx context.Context, after stream.Cursor, buf []stream.Entry) ([]stream.Entry, error) {
	if after.Stream.Number == 0 && s.leaves.Load() != nil {
		return buf, stream.ErrTrimmed
	}
	return s.Store.Read(ctx, after, buf)
}

func (s *trimmedStore) Bounds(ctx context.Context, id stream.ID) (oldest, next uint64, err error) {
	if leave := s.leaves.Swap(nil); leave != nil {
		(*leave)()
	}
	return s.Store.Bounds(ctx, id)
}

// A session leaves while a WebSocket's reader looks for the rest of its trimmed standalone
// stream: the close frame tells the client to come back.
func TestSocketTrimmedAndMoved(t *testing.T) {
	t.Parallel()
	var store trimmedStore
	c := config{}
	f := newFarm(t, 1, c)
	c.store = func(s stream.Store) stream.Store {
		store.Store = s.(shared.Store)
		return &store
	}
	n := f.start(c)
	p := n.connect("2025-11-25", http.Header{"Authorization": {"Bearer me"}})
	d := openSocket(n.node, 0, "Mcp-Session-Id: "+p.id, "Authorization: Bearer me")
	p.note("one")
	d.hears("one")
	leave := func() {
		f.take(n, f.nodes[0], string(whereabouts.KeyOf(p.id)))
		mcptest.Eventually(t, "the session to leave", time.Minute, func() bool { return n.sessions.Sessions() == 0 })
	}
	store.leaves.Store(&leave)
	p.note("two")
	d.ended(websocket.StatusGoingAway, "going away")
}
