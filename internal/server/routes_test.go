package server_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// TestConcurrentCalls has four calls of one session that send progress at the same time: each
// stream carries its own messages alone.
func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	const steps = 50
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"steps","arguments":{"n":%d,"pause":1},"_meta":{"progressToken":"t%d"}}}`, i, steps, i)
			f := &follower{p: p, seen: map[string]bool{}}
			if err := f.take(p.post(body)); err != nil {
				t.Errorf("call %d: %v", i, err)
				return
			}
			if err := f.check(steps); err != nil {
				t.Errorf("call %d: %v", i, err)
				return
			}
			for _, m := range f.got[:steps] {
				if token := string(jsonrpc.Field(m.Params, "progressToken")); token != fmt.Sprintf(`"t%d"`, i) {
					t.Errorf("call %d got progress of %s", i, token)
				}
			}
			if id := string(f.got[steps].ID); id != fmt.Sprint(i) {
				t.Errorf("call %d got the response to %s", i, id)
			}
		}()
	}
	wg.Wait()
}

// TestSameIDs is failure 9: two clients use the same request id, and each gets its own response.
func TestSameIDs(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	alice, bob := n.connect("2025-11-25", nil), n.connect("2025-11-25", nil)
	a := alice.open("POST", "/mcp", callAs("0", "hold", `{}`))
	held := n.release(1)
	b := bob.open("POST", "/mcp", callAs("0", "hold", `{}`))
	held = append(held, n.release(1)...)
	held[1].Result(result("bob"))
	held[0].Result(result("alice"))
	if ev := a.message(); !strings.Contains(string(ev.Data), "alice") {
		t.Errorf("alice got %s", ev.Data)
	}
	if ev := b.message(); !strings.Contains(string(ev.Data), "bob") {
		t.Errorf("bob got %s", ev.Data)
	}
}

// TestStandalone has messages that belong to no call: they are kept while no client listens,
// delivered once, and can be resumed.
func TestStandalone(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		n := newNode(t, config{})
		p := n.connect(version, nil)
		say := func(text string) {
			if r := p.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":%q}}`, text)); r.status != 202 {
				t.Fatalf("%s: %d", version, r.status)
			}
		}
		say("one") // no client listens
		say("two")
		w := p.open("GET", "/mcp", "")
		want := func(text string) string {
			t.Helper()
			ev := w.message()
			if !strings.Contains(string(ev.Data), text) {
				t.Fatalf("%s: got %s, want %s", version, ev.Data, text)
			}
			return ev.ID
		}
		want("one")
		two := want("two")
		say("three")
		three := want("three")
		w.c.Close()
		n.sessionsQuiet()
		say("four")
		w = p.open("GET", "/mcp", "") // a client without event ids gets only new messages
		want("four")
		w = p.open("GET", "/mcp", "", "Last-Event-ID: "+two) // a client with an event id gets all later messages
		if id := want("three"); id != three {
			t.Errorf("%s: the id of a replayed message was %s, is %s", version, three, id)
		}
		want("four")
		// None of these messages is in a call's stream.
		r := p.post(call("steps", `{"n":0}`))
		if strings.Contains(string(r.body), "notifications/message") {
			t.Errorf("%s: a call's stream has %s", version, r.body)
		}
		say("five")
		want("five")
	}
}

// TestAsk is a request of the server on a call's stream, and its answer by POST. An answer from
// another session, and a second answer, have no effect.
func TestAsk(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	w := p.open("POST", "/mcp", call("ask", `{}`))
	asked, err := jsonrpc.Parse(w.message().Data)
	if err != nil || asked.Method != "elicitation/create" {
		t.Fatal(asked, err)
	}
	stranger := n.connect("2025-11-25", nil)
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"from":"stranger"}}`, asked.ID)
	if r := stranger.post(answer); r.status != 202 {
		t.Errorf("an answer to nothing: %d", r.status)
	}
	if r := p.post(strings.Replace(answer, "stranger", "me", 1)); r.status != 202 || len(r.body) > 0 {
		t.Errorf("the answer: %d %s", r.status, r.body)
	}
	if ev := w.message(); !strings.Contains(string(ev.Data), `\"from\":\"me\"`) {
		t.Errorf("got %s", ev.Data)
	}
	if r := p.post(answer); r.status != 202 { // a second answer is dropped
		t.Errorf("an answer again: %d", r.status)
	}
}

// TestCancel is notifications/cancelled: the stream ends without a response, and the server's
// later response is dropped. A cut is no cancellation.
func TestCancel(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.head()
	held := n.release(1)
	if r := p.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}`); r.status != 202 {
		t.Fatal(r.status)
	}
	for err := error(nil); !errors.Is(err, io.EOF); {
		ev, e := w.next()
		if err = e; e == nil && len(ev.Data) > 0 || e != nil && !errors.Is(e, io.EOF) {
			t.Fatalf("after the cancellation: %s, %v", ev.Data, e)
		}
	}
	held[0].Result(result("too late"))
	// The id is free again.
	r := p.post(call("steps", `{"n":0}`))
	if strings.Contains(string(r.body), "too late") || !strings.Contains(string(r.body), "done") {
		t.Errorf("got %s", r.body)
	}
	// A call goes on after its connection was cut, and can be resumed. (Its arguments differ from those above: a
	// request is dropped if its client leaves before it begins and it equals another request.)
	cut := p.open("POST", "/mcp", call("hold", `{"key":"cut"}`))
	ev, err := cut.next()
	if err != nil {
		t.Fatal(err)
	}
	cut.c.Close()
	held = n.release(1)
	n.sessionsQuiet()
	held[0].Result(result("kept"))
	if ev := p.open("GET", "/mcp", "", "Last-Event-ID: "+ev.ID).message(); !strings.Contains(string(ev.Data), "kept") {
		t.Errorf("a cut call was given up: %s", ev.Data)
	}
}

// TestDuplicateID makes a request with an id that is in flight: it is refused, and the first call
// goes on.
func TestDuplicateID(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.head()
	held := n.release(1)
	r := p.post(call("echo", `{"text":"second"}`))
	if r.status != 400 || !strings.Contains(string(r.body), "-32600") || strings.Contains(string(r.body), "second") {
		t.Errorf("got %d %s", r.status, r.body)
	}
	held[0].Result(result("first"))
	if ev := w.message(); !strings.Contains(string(ev.Data), "first") {
		t.Errorf("got %s", ev.Data)
	}
	if r := p.post(call("echo", `{"text":"third"}`)); !strings.Contains(string(r.body), "third") {
		t.Errorf("got %d %s", r.status, r.body)
	}
}

// TestAdmission is the limits of sessions and calls: requests over them get a 429, and later ones
// are served again.
func TestAdmission(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{session: session.Options{MaxSessions: 2, MaxCalls: 3, SessionMax: 2}})
	p, q := n.connect("2025-11-25", nil), n.connect("2025-11-25", nil)
	if r := (&peer{n: n}).post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`); r.status != 429 {
		t.Errorf("a third session: %d %s", r.status, r.body)
	}
	var open []*wire
	for i := range 2 {
		open = append(open, p.open("POST", "/mcp", callAs(fmt.Sprint(i), "hold", `{}`)))
		open[i].head()
	}
	if r := p.post(callAs("2", "hold", `{}`)); r.status != 429 || r.header.Get("Retry-After") == "" {
		t.Errorf("a third call of a session: %d %s", r.status, r.body)
	}
	open = append(open, q.open("POST", "/mcp", callAs("0", "hold", `{}`)))
	open[2].head()
	if r := q.post(callAs("1", "hold", `{}`)); r.status != 429 {
		t.Errorf("a fourth call: %d %s", r.status, r.body)
	}
	for _, x := range n.release(3) {
		x.Result(result("x"))
	}
	for _, w := range open {
		w.message()
	}
	mcptest.Eventually(t, "calls to end", time.Minute, func() bool { return n.sessions.Calls() == 0 })
	if r := q.post(callAs("1", "echo", `{"text":"a"}`)); r.status != 200 {
		t.Errorf("after that: %d %s", r.status, r.body)
	}
}

// TestLostResponse is failure 7 on one node: Holdfast never runs a tool again that is not
// retry-safe, and a client that comes back gets the result each time.
func TestLostResponse(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{}})
	p := n.connect("2025-11-25", nil)
	w := p.open("POST", "/mcp", call("steps", `{"key":"counter","n":0,"pause":20}`))
	ev, err := w.next()
	if err != nil {
		t.Fatal(err)
	}
	_ = w.c.SetLinger(0)
	w.c.Close()
	for range 3 {
		w = p.open("GET", "/mcp", "", "Last-Event-ID: "+ev.ID)
		if ev := w.message(); !strings.Contains(string(ev.Data), "done") {
			t.Errorf("got %s", ev.Data)
		}
	}
	if runs := n.runs("counter"); runs != 1 {
		t.Errorf("it ran %d times", runs)
	}
}
