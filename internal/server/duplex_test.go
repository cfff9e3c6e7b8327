package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/backend"
	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// TestDuplexCalls makes requests on a connection that goes both ways: pings, unknown methods,
// light calls and stored calls. Each gets its messages in order.
func TestDuplexCalls(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		for _, mode := range []server.Response{server.ResponseAuto, server.ResponseSSE, server.ResponseJSON} {
			n := newNode(t, config{server: server.Options{Response: mode, UpgradeAfter: 50 * time.Millisecond}})
			c := open(n, 0)
			c.begin("2025-11-25", "")
			c.say(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			c.hears(`"id":1`, `"result":{}`)
			c.say(`{"jsonrpc":"2.0","id":"two","method":"nothing/here"}`)
			c.fails(`"two"`, jsonrpc.CodeMethodNotFound, "nothing/here")
			c.say(callAs("3", "echo", `{"text":"hello"}`))
			c.hears(`"id":3`, `hello`)

			c.say(callAs("4", "steps", `{"key":"k","n":3}`)) // a stored call
			for i := 1; i <= 3; i++ {
				c.hears("notifications/progress", fmt.Sprintf(`"progress":%d,`, i))
			}
			c.hears(`"id":4`, "done")

			c.say(callAs("5", "safe_hold", `{}`))       // a light call that is promoted
			c.say(callAs("6", "safe_steps", `{"n":2}`)) // a light call until its first message
			c.hears("notifications/progress", `"progress":1,`)
			c.hears("notifications/progress", `"progress":2,`)
			c.hears(`"id":6`, "done")
			n.release(1)[0].Result(result("done"))
			c.hears(`"id":5`, "done")
			if n.runs("k") != 1 {
				t.Errorf("the tool ran %d times", n.runs("k"))
			}
		}
	})
}

// TestDuplexMany has many calls in flight at a time on one connection. Each is
// answered once.
func TestDuplexMany(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		const many = 300
		n := newNode(t, config{})
		c := open(n, 0)
		c.begin("2025-11-25", "")
		sent := make(chan error, 1)
		go func() {
			for i := range many {
				name, args := "steps", fmt.Sprintf(`{"key":"%d","n":3,"jitter":100}`, i)
				if i%2 == 0 {
					name, args = "echo", fmt.Sprintf(`{"text":"t%d"}`, i)
				}
				if err := c.send(callAs(fmt.Sprint(1000+i), name, args)); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		answered, told := map[string]bool{}, 0
		for len(answered) < many {
			m := c.message()
			if m.Kind == jsonrpc.Notification {
				told++
				continue
			}
			if m.Kind != jsonrpc.Response || answered[string(m.ID)] || m.Result == nil {
				t.Fatalf("got %s", m.Raw)
			}
			answered[string(m.ID)] = true
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if told != 3*many/2 {
			t.Errorf("%d notifications, want %d", told, 3*many/2)
		}
	})
}

// TestDuplexAsked is a request of the server, which the client answers on the same connection.
func TestDuplexAsked(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{})
		c := open(n, 0)
		c.begin("2025-11-25", "")
		c.say(callAs("1", "ask", `{}`))
		asked := c.message()
		if asked.Kind != jsonrpc.Request || asked.Method != "elicitation/create" {
			t.Fatalf("got %s", asked.Raw)
		}
		c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, asked.ID))
		c.hears(`"id":1`, "accept")
	})
}

// A shy is a backend that refuses answers of clients at first, as a process does whose stdin is full.
type shy struct {
	backend.Backend
	refusals atomic.Int32 // that are left
}

type shyConn struct {
	backend.Conn
	s *shy
}

func (s *shy) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	conn, err := s.Backend.Open(ctx, start, sink)
	return &shyConn{conn, s}, err
}

func (c *shyConn) Deliver(in backend.Inbound) error {
	if in.Kind == jsonrpc.Response && c.s.refusals.Add(-1) >= 0 {
		return errors.New("full")
	}
	return c.Conn.Deliver(in)
}

// withShy returns the config of a node with a shy, which refuses so many answers, and the shy.
func withShy(refusals int32) (config, *shy) {
	s := &shy{Backend: message.New(&script{runs: map[string]int{}})}
	s.refusals.Store(refusals)
	return config{backend: s}, s
}

// TestAnswerNotTaken has a server not take a client's answer at first. The client, which is not told, does not send the answer again.
func TestAnswerNotTaken(t *testing.T) {
	t.Parallel()
	const refusals = 3
	const answer = `{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`
	bothWays(t, func(t *testing.T, open dialer) {
		config, _ := withShy(refusals)
		c := open(newNode(t, config), 0)
		c.begin("2025-11-25", "")
		c.say(callAs("1", "ask", `{}`))
		c.say(fmt.Sprintf(answer, c.message().ID))
		c.hears(`"id":1`, "accept")
	})
	t.Run("session of another node", func(t *testing.T) {
		t.Parallel()
		config, _ := withShy(refusals)
		_, _, c := elsewhere(t, config, 2)
		c.say(callAs("1", "ask", `{}`))
		c.say(fmt.Sprintf(answer, c.message().ID))
		c.hears(`"id":1`, "accept")
	})
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("POST, full %t", full), func(t *testing.T) {
			t.Parallel()
			config, _ := withShy(refusals)
			n := newNode(t, config)
			if full {
				n.FillUntaken()
			}
			p := n.connect("2025-11-25", nil)
			w := p.open("POST", "/mcp", callAs("1", "ask", `{}`))
			if r := p.post(fmt.Sprintf(answer, jsonrpc.Field(w.message().Data, "id"))); r.status != http.StatusAccepted {
				t.Fatalf("the answer gets %d %s", r.status, r.body) // after which SDKs do not send it again
			}
			if got := string(w.message().Data); !strings.Contains(got, "accept") {
				t.Error(got)
			}
		})
	}
	t.Run("WebSocket, full", func(t *testing.T) {
		t.Parallel()
		config, _ := withShy(refusals)
		n := newNode(t, config)
		n.FillUntaken()
		c := openSocket(n, 0)
		c.begin("2025-11-25", "")
		c.say(callAs("1", "ask", `{}`))
		c.say(fmt.Sprintf(answer, c.message().ID))
		c.hears(`"id":1`, "accept")
	})
	t.Run("pair of 2024-11-05", func(t *testing.T) {
		t.Parallel()
		config, _ := withShy(refusals)
		c := newNode(t, config).pair(nil)
		c.initialize()
		c.send(callAs("1", "ask", `{}`))
		c.send(fmt.Sprintf(answer, jsonrpc.Field(c.next().Data, "id")))
		c.wants("accept")
	})
}

// TestPairGoesOnWhileNotTaken has a server take no answers for a while. A client of the pair of 2024-11-05 that sends one message after
// another can send the next one meanwhile.
func TestPairGoesOnWhileNotTaken(t *testing.T) {
	t.Parallel()
	config, full := withShy(1 << 30)
	c := newNode(t, config).pair(nil)
	c.initialize()
	c.send(callAs("1", "ask", `{}`))
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, jsonrpc.Field(c.next().Data, "id")))
	c.send(callAs("2", "echo", `{"text":"meanwhile"}`))
	c.wants("meanwhile")
	full.refusals.Store(0)
	c.wants("accept")
}

// TestDuplexOddError is a client's answer with an error that is not as JSON-RPC defines it: the server, whose SDK would drop such an
// answer and wait on, gets one that is.
func TestDuplexOddError(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		var asking atomic.Pointer[message.Exchange]
		n := newNode(t, config{backend: message.New(message.HandlerFunc(func(x *message.Exchange) {
			switch {
			case x.Kind == jsonrpc.Response:
				asking.Load().Result(fmt.Appendf(nil, `{"content":[],"got":%s}`, x.Message.Error))
			case x.Method == "initialize":
				x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}`))
			case x.Method == "tools/call":
				asking.Store(x)
				x.Request([]byte("1"), "elicitation/create", []byte(`{"message":"?"}`))
			}
		}))})
		c := open(n, 0)
		c.begin("2025-11-25", `{"elicitation":{}}`)
		for odd, want := range map[string]string{
			`{"code":"x","message":"no"}`:   `{"code":-32000,"message":"no"}`,
			`{"code":"-5","message":"no"}`:  `{"code":-5,"message":"no"}`,
			`{"code":-5.0,"message":"no"}`:  `{"code":-5,"message":"no"}`,
			`{"message":"no","data":1}`:     `{"message":"no","data":1,"code":-32000}`,
			`{"code":-1,"message":{"a":1}}`: `{"code":-1,"message":"the answer is an error that says nothing"}`,
		} {
			c.say(callAs("1", "ask", `{}`))
			c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, c.message().ID, odd))
			c.hears(`"id":1`, `"got":`+want)
		}
	})
}

// TestDuplexCancelled is a call, stored or light, that its client cancels: it gets no answer.
func TestDuplexCancelled(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{server: server.Options{UpgradeAfter: time.Hour}})
		c := open(n, 0)
		c.begin("2025-11-25", "")
		for i, tool := range []string{"hold", "safe_hold"} {
			c.say(callAs(fmt.Sprint(i), tool, `{}`))
		}
		held := n.release(2)
		for i := range held {
			c.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, i))
		}
		mcptest.Eventually(t, "the calls to end", time.Minute, func() bool { return n.sessions.Calls() == 0 })
		c.say(`{"jsonrpc":"2.0","id":9,"method":"ping"}`)
		c.hears(`"id":9`)
		for _, x := range held {
			x.Result(result("late"))
		}
		c.say(`{"jsonrpc":"2.0","id":10,"method":"ping"}`)
		c.hears(`"id":10`)
	})
}

// TestDuplexRefused sends wrong messages: each gets its error, unless it is a notification or a
// response, and the connection goes on.
func TestDuplexRefused(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{})
		c := open(n, 0)
		c.say(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`)
		c.fails("7", codeInvalid, "the first message must be an initialize request")
		c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`) // no answer
		c.say(`{"jsonrpc":"2.0","id":8,"result":{}}`)
		c.say(`[{"jsonrpc":"2.0","id":1,"method":"initialize"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`)
		c.fails("1", codeInvalid, "must not be part of a batch")
		c.fails("2", codeInvalid, "must not be part of a batch")
		c.begin("2025-11-25", "")
		c.say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
		c.fails("1", codeInvalid, "initialized already")
		c.say(`{"jsonrpc":"2.0","method":"notifications/initialized","params":1}`) // no answer
		for _, bad := range []string{`{"jsonrpc":"2.0"`, `nonsense`, "{\"a\":\"\xff\"}"} {
			c.say(bad)
			c.fails("", codeParse, "")
		}
		for _, bad := range []string{`{}`, `1`, `[]`, `{"jsonrpc":"2.0","id":null,"method":"ping"}`} {
			c.say(bad)
			c.fails("", codeInvalid, "")
		}
		c.say(`{"jsonrpc":"2.0","id":1,"method":"ping"}}`)
		c.fails("1", codeParse, "")
		c.say(`{"jsonrpc":"1.0","id":1,"method":"ping"}`)
		c.fails("1", codeInvalid, "")
		c.say(`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`)
		c.fails("1", codeInvalid, "has no batches")
		c.fails("2", codeInvalid, "has no batches")
		c.say(callAs("5", "hold", `{}`), callAs("5", "echo", `{}`))
		c.fails("5", codeInvalid, "use an id once")
		c.say(`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"echo","_meta":{"holdfast/idempotencyKey":"a b"}}}`)
		c.fails("6", codeInvalid, "visible ASCII")
		n.release(1)[0].Result(result("held"))
		c.hears(`"id":5`, "held")
	})
}

// TestDuplexBatches sends batches in a revision that has them: light calls are answered together,
// others one by one.
func TestDuplexBatches(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{})
		c := open(n, 0)
		c.begin("2025-03-26", "")
		c.say(`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":2,"method":"tools/list"}]`)
		data := c.hears(`"id":1`, `"id":2`, "safe_steps")
		if msgs, batch, err := jsonrpc.ParseBody(data); err != nil || !batch || len(msgs) != 2 {
			t.Errorf("got %s (%v)", data, err)
		}
		c.say("[" + callAs("3", "steps", `{"n":1}`) + "," + callAs("4", "steps", `{"n":0}`) + "]")
		var ids []string
		for range 3 {
			ids = append(ids, string(c.message().ID))
		}
		slices.Sort(ids)
		if !slices.Equal(ids, []string{"", "3", "4"}) {
			t.Errorf("got answers to %q", ids)
		}
	})
}

// TestDuplexKeyed makes a request again under its idempotency key, on the same connection and on
// another of the same principal: the tool runs once.
func TestDuplexKeyed(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{server: server.Options{Principal: named}})
		const me = "Authorization: Bearer me"
		c := open(n, 0, me)
		c.begin("2025-11-25", "")
		keyed := func(id int, text string) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"steps","arguments":{"key":%q,"n":1},"_meta":{"progressToken":7,"holdfast/idempotencyKey":"key-1"}}}`, id, text)
		}
		for range 2 {
			c.say(keyed(1, "a"))
			c.hears("notifications/progress")
			c.hears(`"id":1`, "done")
		}
		c.say(keyed(1, "b"))
		c.fails("1", codeInvalid, "was used for another request")
		c.cut(rst)
		d := open(n, 0, me)
		d.begin("2025-11-25", "")
		d.say(keyed(1, "a"))
		d.hears("notifications/progress")
		d.hears(`"id":1`, "done")
		if n.runs("a") != 1 || n.runs("b") != 0 {
			t.Errorf("the tool ran %d times, and %d", n.runs("a"), n.runs("b"))
		}
	})
}

// TestDuplexTooLarge is a message over the limit: it ends a WebSocket, and is skipped
// on a pair of pipes.
func TestDuplexTooLarge(t *testing.T) {
	t.Parallel()
	const most = 100_000
	n := newNode(t, config{server: server.Options{MaxBody: most}})
	fits := func(size int) string {
		head := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"`
		return head + strings.Repeat("x", size-len(head)-3) + `"}}`
	}
	c := openSocket(n, 0)
	c.begin("2025-11-25", "")
	c.say(fits(most))
	c.hears(`"id":1`)
	_ = c.send(fits(most + 1))
	c.ended(websocket.StatusMessageTooBig, "")

	for _, size := range []int{most + 1, 10 * most} {
		in, out := memoryPipes()
		c = n.talkOver(0, in, out)
		c.begin("2025-11-25", "")
		c.say(fits(most), fits(most)+"\r")
		c.hears(`"id":1`)
		c.hears(`"id":1`)
		c.say(fits(size))
		c.fails("", codeInvalid, "larger than 100000 bytes")
		c.say("", "  \r", fits(100))
		c.hears(`"id":1`)
	}
}

// TestDuplexEnds is a client that closes its pipe to the server: its requests in flight are still
// answered, and its session stays.
func TestDuplexEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	in, out := pipes(t)
	c := n.talkOver(0, in, out)
	c.begin("2025-11-25", "")
	c.say(callAs("1", "hold", `{}`))
	held := n.release(1)
	// The last line need not end in a line break.
	if _, err := io.WriteString(in.w, `{"jsonrpc":"2.0","id":2,"method":"ping"}`); err != nil {
		t.Fatal(err)
	}
	_ = in.w.Close()
	c.hears(`"id":2`)
	select {
	case <-c.over:
		t.Fatal("it is over with a call in flight")
	default:
	}
	held[0].Result(result("late"))
	c.hears(`"id":1`, "late")
	<-c.over
	if c.err != nil || n.sessions.Sessions() != 1 {
		t.Errorf("%v, %d sessions", c.err, n.sessions.Sessions())
	}
	// A client that sends no message leaves no session.
	in, out = memoryPipes()
	c = n.talkOver(0, in, out)
	_ = in.w.Close()
	<-c.over
	if c.err != nil || n.sessions.Sessions() != 1 {
		t.Errorf("%v, %d sessions", c.err, n.sessions.Sessions())
	}
}

// TestServeConnContext ends ServeConn by its context, while it waits for a read or a write.
func TestServeConnContext(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	for name, open := range map[string]func() (ends, ends){
		"os.Pipe": func() (ends, ends) { return pipes(t) },
		"io.Pipe": memoryPipes,
	} {
		for _, writing := range []bool{false, true} {
			in, out := open()
			ctx, stop := context.WithCancel(context.Background())
			over := outcome(func() error { return n.ServeConn(ctx, in.r, out.w) })
			c := &talker{t: t, send: func(text string) error { _, err := io.WriteString(in.w, text+"\n"); return err }}
			if writing { // no reader takes the answer
				c.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`,
					callAs("1", "echo", `{"text":"`+strings.Repeat("x", 200_000)+`"}`))
				mcptest.Eventually(t, "the call to be answered", time.Minute, func() bool { return n.sessions.Calls() == 0 })
			}
			stop()
			if err := <-over; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
			for _, c := range []io.Closer{in.r, in.w, out.r, out.w} {
				_ = c.Close()
			}
		}
	}
}

// outcome runs f on a goroutine, and returns the channel for its error.
func outcome(f func() error) chan error {
	over := make(chan error, 1)
	go func() { over <- f() }()
	return over
}

// TestDuplexSlow is a client that does not read. Its connection is ended, and it can still resume
// the call over HTTP.
func TestDuplexSlow(t *testing.T) {
	testlong.Only(t, "it waits for the time that a client has to read")
	t.Parallel()
	n := newNode(t, config{server: server.Options{WriteTimeout: 8 * time.Second}})
	const steps = 140 // more than the buffers of the system take, and less than a stream keeps
	c := openSocket(n, 0)
	c.begin("2025-11-25", "")
	c.say(callAs(`"c"`, "steps", fmt.Sprintf(`{"key":"slow","n":%d,"size":50000}`, steps)))
	mcptest.Eventually(t, "the client to be given up", time.Minute, func() bool { return n.sessions.Readers() == 0 && n.sessions.Calls() == 0 })
	p := &peer{n: n, id: c.id, version: "2025-11-25"}
	f := &follower{p: p, seen: map[string]bool{}}
	if err := f.rest(f.again()); err != nil {
		t.Fatal(err)
	}
	if err := f.check(steps); err != nil {
		t.Error(err)
	}

	in, out := memoryPipes()
	c = n.talkOver(0, in, out)
	c.begin("2025-11-25", "")
	c.say(callAs("1", "steps", `{"n":3,"size":100}`))
	<-c.over
	if c.err == nil || !strings.Contains(c.err.Error(), "does not read") {
		t.Errorf("it ended with %v", c.err)
	}
}

// TestDuplexDrain drains a node: it ends quiet connections, waits for calls in flight, and
// refuses new calls.
func TestDuplexDrain(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond, UpgradeAfter: time.Hour}})
		quiet, calling, light := open(n, 0), open(n, 0), open(n, 0)
		for _, c := range []*talker{quiet, calling, light} {
			c.begin("2025-11-25", "")
		}
		calling.say(callAs("1", "hold", `{}`))
		held := n.release(1)
		light.say(callAs("1", "echo", `{}`)) // the node lists the tools
		light.hears(`"id":1`)
		light.say(callAs("2", "safe_steps", `{"n":0,"pause":2000}`))
		mcptest.Eventually(t, "the calls to begin", time.Minute, func() bool { return n.sessions.Calls() == 2 })
		drained := make(chan error)
		go func() { drained <- n.Drain(context.Background()) }()
		quiet.ended(websocket.StatusGoingAway, "going away; retry: ")
		if quiet.over != nil && !errors.Is(quiet.err, session.ErrClosing) {
			t.Errorf("the pipes' end: %v", quiet.err)
		}
		calling.say(callAs("8", "echo", `{}`))
		calling.fails("8", jsonrpc.CodeServer, "shutting down")
		light.hears(`"id":2`, "done")
		light.ended(websocket.StatusGoingAway, "")
		select {
		case err := <-drained:
			t.Fatalf("drained (%v) with a call in flight", err)
		default:
		}
		held[0].Result(result("in time"))
		calling.hears(`"id":1`, "in time")
		calling.ended(websocket.StatusGoingAway, "")
		if err := <-drained; err != nil {
			t.Error(err)
		}
	})
}

// TestDuplexSessionEnds deletes the session of a connection: its calls in flight fail, and the
// connection ends.
func TestDuplexSessionEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	c := openSocket(n, 0)
	c.begin("2025-11-25", "")
	c.say(callAs("1", "hold", `{}`))
	n.release(1)
	n.end(&peer{n: n, id: c.id, version: "2025-11-25"})
	c.fails("1", codeUnknown, "outcome unknown")
	c.ended(websocket.StatusNormalClosure, "the session ended")
	if _, res, err := n.dialSocket(0, "Mcp-Session-Id: "+c.id); err == nil || res.StatusCode != http.StatusNotFound {
		t.Errorf("attached to a session that has ended: %v", err)
	}
}

// TestDuplexPanic is a backend that panics: the call fails, and the connection goes on.
func TestDuplexPanic(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{backend: message.New(message.HandlerFunc(func(x *message.Exchange) {
		if x.Method == "panic" {
			panic("as asked")
		}
		(newScript()).Serve(x)
	}))})
	c := openSocket(n, 0)
	c.begin("2025-11-25", "")
	for range 2 {
		c.say(`{"jsonrpc":"2.0","id":1,"method":"panic"}`)
		c.fails("1", jsonrpc.CodeInternal, "the server's handler of panic panicked")
	}
}

// TestDuplexGoroutines counts the goroutines of a quiet connection, two, and of calls: one more
// for each call with a stream, and none for a light call.
func TestDuplexGoroutines(t *testing.T) {
	n := newNode(t, config{server: server.Options{UpgradeAfter: time.Hour, KeepAlive: -1}})
	const many, calls = 20, 5
	var all []*talker
	settled := func(what string, want int) {
		t.Helper()
		got := 0
		defer func() {
			if t.Failed() {
				t.Logf("%s: %d goroutines, want %d", what, got, want)
			}
		}()
		mcptest.Eventually(t, "goroutines to settle", time.Minute, func() bool { got = runtime.NumGoroutine(); return got <= want })
	}
	base := runtime.NumGoroutine()
	for range many {
		c := openSocket(n, 0)
		c.begin("2025-11-25", "")
		all = append(all, c)
	}
	settled("idle", base+2*many)
	for tool, want := range map[string]int{"safe_hold": 2, "hold": 2 + calls} {
		for _, c := range all {
			for i := range calls {
				c.say(callAs(fmt.Sprintf(`"%s%d"`, tool, i), tool, `{}`))
			}
		}
		held := n.release(calls * many)
		settled(tool, base+want*many)
		for _, x := range held {
			x.Result(result("done"))
		}
		for _, c := range all {
			for range calls {
				c.hears("done")
			}
		}
		settled("after "+tool, base+2*many)
	}
}
