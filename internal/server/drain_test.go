package server_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/jsonrpc"
)

// drain drains the node within d, as its process would before it ends.
func (n *farmNode) drain(d time.Duration) error {
	ctx, stop := context.WithTimeout(context.Background(), d)
	defer stop()
	return n.Drain(ctx)
}

// almost is a context with a Deadline that is always 200 ms ahead. It ends only when it is
// canceled: a drain then does its last steps, but cuts no call.
type almost struct{ context.Context }

func (almost) Deadline() (time.Time, bool) { return time.Now().Add(200 * time.Millisecond), true }

// TestDrainHandsOver is failure 8 on one of three nodes: a client that listens is disconnected,
// with a time after which to come back; idle sessions go to other nodes at once; and a call in
// flight ends at the node.
func TestDrainHandsOver(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{server: server.Options{Retry: 10 * time.Millisecond, DrainSpread: 500 * time.Millisecond}})
	idle := f.nodes[0].connect("2025-11-25", nil)
	listener := f.nodes[0].connect("2025-11-25", nil)
	ears := listener.open("GET", "/mcp", "")
	ears.head()
	far := f.nodes[1].connect("2025-11-25", nil)
	through := far.at(f.nodes[0]).open("GET", "/mcp", "")
	through.head()
	busy := f.nodes[0].connect("2025-11-25", nil)
	call1 := busy.open("POST", "/mcp", call("hold", `{}`))
	call1.head()
	held := f.nodes[0].release(1)[0]
	var drained sync.WaitGroup
	drained.Go(func() {
		if err := f.nodes[0].drain(time.Minute); err != nil {
			t.Errorf("drain: %v", err)
		}
	})
	for what, w := range map[string]*wire{"listening": ears, "listening through it": through} {
		told := 0 // counts retry fields: at the beginning, at the end, and where a stream is continued between two nodes
		for {
			ev, err := w.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
				break
			}
			if ev.Retry >= 0 {
				told++
			}
		}
		if told < 2 || what == "listening" && told > 2 {
			t.Errorf("%s: told %d times when to come back", what, told)
		}
	}
	// The draining node's sessions can be used through it and through the other nodes.
	for i, n := range f.nodes {
		if r := idle.at(n).post(callAs(fmt.Sprint(i), "echo", `{"text":"quick"}`)); r.status != 200 || !strings.Contains(string(r.body), "quick") {
			t.Errorf("idle session at node %d: %d %s", i, r.status, r.body)
		}
	}
	if p := f.nodes[0].connect("2025-11-25", nil); p.at(f.nodes[2]).post(call("echo", `{"text":"x"}`)).status != 200 {
		t.Error("a new session of a draining node can't be used")
	}
	if n := f.nodes[0].sessions.Sessions(); n > 1 {
		t.Errorf("%d sessions are still here", n)
	}
	progress(held, 1, 0)
	held.Result(result("done"))
	fl := &follower{p: busy, seen: map[string]bool{}}
	if err := fl.rest(call1); err != nil || len(fl.got) != 2 {
		t.Errorf("call in flight: %v, %d messages", err, len(fl.got))
	}
	drained.Wait()
	if n := f.nodes[0].sessions.Sessions(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	f.nodes[0].close()
	for _, p := range []*peer{idle, listener, busy, far} {
		if r := p.at(f.nodes[2]).post(callAs(`"z"`, "echo", `{"text":"quick"}`)); r.status != 200 {
			t.Errorf("after it has ended: %d %s", r.status, r.body)
		}
	}
}

// TestDrainCuts ends a drain while calls still run. Another node makes those again that may run
// twice; the others end with "outcome unknown".
func TestDrainCuts(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{server: server.Options{UpgradeAfter: 50 * time.Millisecond}})
	p := f.nodes[0].connect("2025-11-25", nil)
	p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
	at := p.at(f.nodes[1])
	lost := at.open("POST", "/mcp", callAs("1", "hold", `{}`))
	lost.head()
	safe := at.open("POST", "/mcp", callAs("2", "safe_steps", `{"key":"k","n":8,"pause":250}`))
	safe.message()
	if err := f.nodes[0].drain(300 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drain: %v", err)
	}
	f.nodes[0].close()
	fl := &follower{p: at, seen: map[string]bool{}}
	if err := fl.rest(lost); err != nil || !strings.Contains(string(fl.got[len(fl.got)-1].Error), "unknown") {
		t.Errorf("unsafe: %v, %v", err, fl.got)
	}
	fl = &follower{p: at, seen: map[string]bool{}}
	if err := fl.rest(safe); err != nil || !strings.Contains(string(fl.got[len(fl.got)-1].Result), "done") || f.runs("k") != 2 {
		t.Errorf("safe: %v, %d runs, %v", err, f.runs("k"), fl.got)
	}
}

// TestDrainLate sends requests for another node's session to a node as its drain ends. The node
// waits for a request that it has forwarded, and refuses a later one at once. Neither ends with
// "outcome unknown".
func TestDrainLate(t *testing.T) {
	t.Parallel()
	c := config{}
	c.server.Response = server.ResponseJSON // so that no answer begins before the call's end
	f := newFarm(t, 2, c)
	p := f.nodes[1].connect("2025-11-25", nil).at(f.nodes[0])
	early := p.open("POST", "/mcp", callAs("1", "steps", `{"key":"early","n":0,"pause":600}`))
	mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return f.runs("early") == 1 })
	drained := make(chan error, 1)
	go func() { drained <- f.nodes[0].drain(300 * time.Millisecond) }()
	<-f.nodes[0].Leaving()
	late := p.post(callAs("2", "steps", `{"key":"late"}`))
	if late.status != http.StatusServiceUnavailable || late.header.Get("Retry-After") == "" || strings.Contains(string(late.body), "unknown") || f.runs("late") != 0 {
		t.Errorf("late: %d %s, %d runs", late.status, late.body, f.runs("late"))
	}
	if r := early.all(); r.status != http.StatusOK || !strings.Contains(string(r.body), "done") || f.runs("early") != 1 {
		t.Errorf("sent on: %d %s, %d runs", r.status, r.body, f.runs("early"))
	}
	if err := <-drained; !errors.Is(err, context.DeadlineExceeded) && err != nil {
		t.Errorf("drain: %v", err)
	}
	if r := p.at(f.nodes[1]).post(callAs("2", "steps", `{"key":"late"}`)); r.status != http.StatusOK || f.runs("late") != 1 {
		t.Errorf("at the other node: %d %s, %d runs", r.status, r.body, f.runs("late"))
	}
}

// TestDrainAlone drains the only node. It answers later requests with 503 and Retry-After, and
// the next node continues the session. A client that comes back to listen gets a closed
// connection, and not a 503, which ends a session for some clients.
func TestDrainAlone(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 1, config{})
	p := f.nodes[0].connect("2025-11-25", nil)
	first := p.post(call("steps", `{"key":"k","n":2}`)).events()
	if err := f.nodes[0].drain(15 * time.Second); err != nil {
		t.Fatal(err)
	}
	for what, body := range map[string]string{"session": call("echo", `{}`), "new": `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`} {
		q := *p
		if what == "new" {
			q.id = ""
		}
		if r := q.post(body); r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", what, r.status, r.body)
		}
	}
	for _, extra := range [][]string{nil, {"Last-Event-ID: " + first[0].ID}} {
		w := p.open("GET", "/mcp", "", extra...)
		_ = w.c.SetReadDeadline(time.Now().Add(time.Minute))
		if said, err := io.ReadAll(w.c); len(said) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("who listens, with %q: %v, %q", extra, err, said)
		}
	}
	f.nodes[0].close()
	n := f.start(config{})
	w := p.at(n).open("GET", "/mcp", "", "Last-Event-ID: "+first[0].ID)
	for _, want := range first[1:] {
		if ev := w.message(); ev.ID != want.ID || !bytes.Equal(ev.Data, want.Data) {
			t.Errorf("got %s %s, want %s %s", ev.ID, ev.Data, want.ID, want.Data)
		}
	}
	if r := p.at(n).post(call("echo", `{"text":"quick"}`)); r.status != http.StatusOK {
		t.Errorf("after the restart: %d %s", r.status, r.body)
	}
}

// TestDrainAloneServes drains the only node while a call is in flight. Meanwhile it refuses calls
// of tools, but serves listening clients, whose streams stay open, and requests without effects, such as lists: 503 is the
// end of a session for some clients.
func TestDrainAloneServes(t *testing.T) {
	t.Parallel()
	const often = 10 * time.Millisecond
	f := newFarm(t, 1, config{server: server.Options{Retry: often, KeepAlive: often, DrainSpread: time.Millisecond}})
	n := f.nodes[0]
	busy, idle := n.connect("2025-11-25", nil), n.connect("2025-11-25", nil)
	began := time.Now()
	ears := bufio.NewReader(n.connect("2025-11-25", nil).open("GET", "/mcp", "").head().Body)
	w := busy.open("POST", "/mcp", call("hold", `{}`))
	w.head()
	mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return n.sessions.Calls() == 1 })
	drained := make(chan error, 1)
	go func() { drained <- n.drain(time.Minute) }()
	mcptest.Eventually(t, "tools to be called no more", time.Minute, func() bool {
		r := idle.post(call("echo", `{"text":"x"}`))
		if r.status == http.StatusOK {
			return false
		}
		if r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
			t.Fatalf("refused with %d %s", r.status, r.body)
		}
		return true
	})
	for what, p := range map[string]*peer{"busy": busy, "idle": idle} {
		if r := p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`); r.status != http.StatusOK {
			t.Errorf("%s: a list: %d %s", what, r.status, r.body)
		}
		if r := p.post(callAs("7", "echo", `{}`)); r.status != http.StatusServiceUnavailable {
			t.Errorf("%s: a call: %d %s", what, r.status, r.body)
		}
		if r := p.open("GET", "/mcp", "").head(); r.StatusCode != http.StatusOK {
			t.Errorf("%s: who listens gets %d", what, r.StatusCode)
		}
	}
	for most := 10 + int(time.Since(began)/often); most > 0; { // more comments than were written before it was drained
		line, err := ears.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream of who listened before: %v", err)
		}
		if strings.HasPrefix(line, ":") {
			most--
		}
	}
	select {
	case <-n.Leaving():
		t.Error("it leaves")
	default:
	}
	for _, x := range n.release(1) {
		x.Result(result("done"))
	}
	if err := <-drained; err != nil {
		t.Errorf("drain: %v", err)
	}
	<-n.Leaving()
	if m := w.message(); !strings.Contains(string(m.Data), `"result"`) {
		t.Errorf("the call ended with %s", m.Data)
	}
}

// TestPipesAfterRestart is SEP-975 over stdio: the process with a call is killed, and the client
// resumes the call at the next process.
func TestPipesAfterRestart(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 1, config{})
	c := openPipes(f.nodes[0].node, 0, me)
	c.begin("2025-11-25", resumes)
	c.say(call("steps", `{"key":"k","n":2}`))
	token := tokenIn(t, c.message().Raw)
	var said []string
	for len(said) < 3 {
		said = append(said, string(c.message().Raw))
	}
	c.say(callAs(`"lost"`, "hold", `{}`))
	lost := tokenIn(t, c.message().Raw)
	f.nodes[0].kill()
	n := f.start(config{})
	c = openPipes(n.node, 0, me)
	c.begin("2025-11-25", resumes)
	c.say(again(`"c"`, token))
	if tokenIn(t, c.message().Raw) != token {
		t.Error("another token")
	}
	for _, want := range said {
		if got := string(c.message().Raw); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	c.say(again(`"lost"`, lost))
	c.message()
	if m := c.message(); !strings.Contains(string(m.Error), "unknown") {
		t.Errorf("got %s", m.Raw)
	}
}

// TestDrainSocket has a WebSocket at a node as its drain ends: a late call gets an error, the
// call that runs gets "outcome unknown", and the close frame says that the session continues at
// another node.
func TestDrainSocket(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{})
	p := f.nodes[0].connect("2025-11-25", nil)
	c, _, err := f.nodes[0].dialSocket(0, "Mcp-Session-Id: "+p.id)
	if err != nil {
		t.Fatal(err)
	}
	c.say(strings.Replace(callAs("1", "hold", `{}`), "tools/call", "vendor/call", 1)) // not retry-safe, whatever is known of the tools
	f.nodes[0].release(1)
	f.nodes[0].sessions.Departure.RefuseUnsafe()
	c.say(callAs("2", "steps", `{"key":"late"}`))
	if late := c.hears("shutting down"); string(jsonrpc.Field(late, "id")) != "2" || f.runs("late") != 0 {
		t.Errorf("late: %s, %d runs", late, f.runs("late"))
	}
	if err := f.nodes[0].drain(10 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drain: %v", err)
	}
	if end := c.hears("unknown"); string(jsonrpc.Field(end, "id")) != "1" {
		t.Errorf("told %s", end)
	}
	c.ended(websocket.StatusGoingAway, "retry")
	if r := p.at(f.nodes[1]).post(callAs("3", "echo", `{"text":"quick"}`)); r.status != http.StatusOK {
		t.Errorf("the session is over: %d %s", r.status, r.body)
	}
}

// TestDrainSocketKeyed makes a call too late on a WebSocket, with an idempotency key. It gets no
// answer, which would end it, and the connection ends. The client then makes it at the next node.
func TestDrainSocketKeyed(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{})
	p := f.nodes[0].able("2025-11-25", "")
	id := "Mcp-Session-Id: " + p.id
	c, _, err := f.nodes[0].dialSocket(0, id)
	if err != nil {
		t.Fatal(err)
	}
	c.say(callAs("1", "hold", `{}`))
	held := f.nodes[0].release(1)[0]
	drained := make(chan error, 1)
	go func() { drained <- f.nodes[0].Drain(almost{t.Context()}) }()
	<-f.nodes[0].Leaving()
	late := strings.Replace(callAs("2", "steps", `{"key":"late"}`), `"_meta":{`, `"_meta":{"holdfast/idempotencyKey":"a",`, 1)
	c.say(late)
	c.say(`{"jsonrpc":"2.0","id":"p","method":"ping"}`) // answered after the late call would be
	for pinged := false; ; {
		m, err := c.next()
		if err != nil {
			break
		}
		switch string(m.ID) {
		case `"p"`:
			pinged = true
			held.Result(result("early"))
		case "1":
			if !pinged {
				t.Error("ended before it was let")
			}
		case "2":
			t.Errorf("answered %s", m.Raw)
		}
	}
	if err := <-drained; err != nil {
		t.Errorf("drain: %v", err)
	}
	if c, _, err = f.nodes[1].dialSocket(0, id); err != nil {
		t.Fatal(err)
	}
	c.say(late)
	c.policy("2")
	c.hears(`"id":2`, "done")
	if n := f.runs("late"); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// TestDrainSocketAlone makes such a call where no other node can get the session: it is refused
// with an error, as there is no next connection.
func TestDrainSocketAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.able("2025-11-25", "")
	c, _, err := n.dialSocket(0, "Mcp-Session-Id: "+p.id)
	if err != nil {
		t.Fatal(err)
	}
	n.sessions.Departure.Stop()
	c.say(strings.Replace(callAs("2", "echo", `{"text":"late"}`), `"_meta":{`, `"_meta":{"holdfast/idempotencyKey":"a",`, 1))
	if late := c.hears("shutting down"); string(jsonrpc.Field(late, "id")) != "2" {
		t.Errorf("late: %s", late)
	}
}
