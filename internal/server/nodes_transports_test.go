package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// TestPairAnyNode is a conversation over the pair of endpoints of 2024-11-05 at nodes that don't
// own the session. It goes on when the owner is lost.
func TestPairAnyNode(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	c := f.nodes[0].pair(nil)
	c.initialize()
	on := func(n int, text string) {
		t.Helper()
		c.p = c.p.at(f.nodes[n])
		c.send(callAs(fmt.Sprintf("%q", text), "echo", fmt.Sprintf(`{"text":%q}`, text)))
		c.wants(text)
	}
	on(1, "one")
	c.p = c.p.at(f.nodes[2])
	c.w.c.Close()
	c.open()
	on(1, "two")
	f.nodes[0].kill()
	on(1, "three") // the stream, at node 2, goes on
	on(2, "four")
	c.w.c.Close()
	c.open()
	on(1, "five")
}

// TestSocketAnyNode has a WebSocket at a node that does not own its session. When the owner is
// lost, the client gets the outcome of its call, and the connection goes on.
func TestSocketAnyNode(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	p := f.nodes[0].able("2025-11-25", "me")
	c, _, err := f.nodes[1].dialSocket(0, me, "Mcp-Session-Id: "+p.id)
	if err != nil {
		t.Fatal(err)
	}
	c.say(callAs("1", "echo", `{"text":"quick"}`))
	c.hears("quick")
	c.say(call("hold", `{}`))
	token := tokenIn(t, c.message().Raw)
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"big","method":"tools/call","params":{"name":"echo","arguments":{"text":%q}}}`, strings.Repeat("x", 100_000)))
	c.hears("xxx")
	f.nodes[0].kill()
	c.fails(`"c"`, codeUnknown, "outcome unknown")
	c.say(callAs(`"on"`, "echo", `{"text":"still served"}`))
	c.hears("still served")
	c.say(`{"jsonrpc":"2.0","id":"status","method":"requests/getStatus/all"}`)
	c.hears(`"status"`, token)
	if c, _, err = f.nodes[2].dialSocket(0, me, "Mcp-Session-Id: "+p.id); err != nil {
		t.Fatal(err)
	}
	c.say(again(`"c"`, token))
	for {
		if m := c.message(); string(m.ID) == `"c"` {
			if m.Error == nil || !strings.Contains(string(m.Error), "unknown") {
				t.Errorf("got %s", m.Raw)
			}
			break
		}
	}
}

// TestPrincipals is failure 10 on other nodes: Bob gets nothing of Alice's session, before and
// after her node is lost.
func TestPrincipals(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	alice := f.nodes[0].able("2025-11-25", "alice")
	w := alice.at(f.nodes[1]).open("POST", "/mcp", call("hold", `{}`))
	link := "/mcp" + strings.TrimPrefix(strings.SplitN(w.head().Header.Get("Link"), ">", 2)[0], "<")
	first, err := w.next()
	if err != nil {
		t.Fatal(err)
	}
	token := w.token()
	pair := f.nodes[0].pair(alice.header)
	try := func(n *farmNode) {
		t.Helper()
		bob := n.able("2025-11-25", "bob")
		hers := *alice.at(n)
		hers.header = bob.header
		for what, r := range map[string]reply{
			"POST":           hers.post(callAs("9", "echo", `{"text":"x"}`)),
			"GET":            hers.open("GET", "/mcp", "").all(),
			"GET of her id":  hers.open("GET", "/mcp", "", "Last-Event-ID: "+first.ID).all(),
			"DELETE":         hers.open("DELETE", "/mcp", "").all(),
			"her stream URL": bob.open("GET", link, "").all(),
			"no session":     bob.astray().open("GET", link, "").all(),
			"her pair":       bob.astray().open("GET", "/sse", "", "Last-Event-ID: "+pair.last).all(),
			"her endpoint":   bob.astray().open("POST", pair.endpoint, call("echo", "{}")).all(),
		} {
			if r.status != http.StatusNotFound {
				t.Errorf("%s: %d %s", what, r.status, r.body)
			}
		}
		if r := bob.open("GET", "/mcp", "", "Last-Event-ID: "+first.ID).all(); r.status != http.StatusBadRequest {
			t.Errorf("her id in his session: %d %s", r.status, r.body)
		}
		for _, body := range []string{again(`"c"`, token), ask(`"c"`, token)} {
			if r := bob.post(body); !strings.Contains(string(r.body), "no such request") {
				t.Errorf("her token: %d %s", r.status, r.body)
			}
		}
		if r := bob.post(`{"jsonrpc":"2.0","id":"all","method":"requests/getStatus/all"}`); strings.Contains(string(r.body), token) {
			t.Errorf("her token is in his list: %s", r.body)
		}
	}
	try(f.nodes[2])
	f.nodes[0].kill()
	try(f.nodes[2])
	try(f.nodes[1])
}

// TestKeyedOtherNode makes a request again under its idempotency key, in another session at
// another node: it gets the first call's messages, also after the first node is lost.
func TestKeyedOtherNode(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	one, two := f.nodes[0].able("2025-11-25", "me"), f.nodes[1].able("2025-06-18", "me")
	body := call("steps", `{"key":"k","n":2}`)
	want := one.post(body, keyed("a")).texts()
	if len(want) != 3 {
		t.Fatalf("got %q", want)
	}
	if got := two.post(body, keyed("a")); !slices.Equal(got.texts(), want) || f.runs("k") != 1 {
		t.Errorf("elsewhere: %q, %d runs: %d %s", got.texts(), f.runs("k"), got.status, got.body)
	} else if strings.Contains(string(got.body), "data: \n") {
		t.Error("an old client got an event with empty data")
	}
	f.nodes[0].kill()
	if got := two.at(f.nodes[2]).post(body, keyed("a")); !slices.Equal(got.texts(), want) || f.runs("k") != 1 {
		t.Errorf("after the node was lost: %q, %d runs: %d %s", got.texts(), f.runs("k"), got.status, got.body)
	}
}

// TestResumeOtherNode resumes a call by its token at other nodes, in another session or in none,
// and from there answers its question, cancels it and lists it.
func TestResumeOtherNode(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	p, other := f.nodes[0].able("2025-11-25", "me"), f.nodes[1].able("2025-11-25", "me")
	w := p.open("POST", "/mcp", call("hold", `{}`))
	token := w.token()
	held := f.nodes[0].release(1)
	progress(held[0], 1, 0)
	w.message()
	for _, from := range []*peer{other, other.astray(), p.astray().at(f.nodes[2])} {
		w = from.open("POST", "/mcp", again(`"c"`, token))
		if w.token() != token {
			t.Error("another token")
		}
		if ev := w.message(); !strings.Contains(string(ev.Data), `"progress":1`) {
			t.Errorf("got %s", ev.Data)
		}
		if got := other.post(ask(`"c"`, token)).result(t); !strings.Contains(got, `"processing"`) {
			t.Errorf("status: %s", got)
		}
	}
	ask := p.open("POST", "/mcp", callAs(`"a"`, "ask", `{}`))
	ask.token()
	var question struct{ ID json.RawMessage }
	if err := json.Unmarshal(ask.message().Data, &question); err != nil {
		t.Fatal(err)
	}
	mine := other.open("POST", "/mcp", callAs(`"o"`, "hold", `{}`))
	mine.token()
	if r := other.at(f.nodes[2]).astray().post(`{"jsonrpc":"2.0","id":"all","method":"requests/getStatus/all"}`); strings.Count(r.result(t), `"resumeToken"`) != 3 {
		t.Errorf("all: %s", r.body)
	}
	if r := other.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, question.ID)); r.status != http.StatusAccepted {
		t.Errorf("answer: %d %s", r.status, r.body)
	}
	if ev := ask.message(); !strings.Contains(string(ev.Data), "accept") {
		t.Errorf("answered with %s", ev.Data)
	}
	cancel := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c","_meta":{"holdfast/resumeToken":%q}}}`, token)
	if r := other.post(cancel); r.status != http.StatusAccepted {
		t.Errorf("cancel: %d %s", r.status, r.body)
	}
	if ev := w.message(); !strings.Contains(string(ev.Data), "cancelled") {
		t.Errorf("cancelled with %s", ev.Data)
	}
}

// TestStreamURLAnyNode resumes at a stream's URL, through nodes that don't own the session.
func TestStreamURLAnyNode(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	p := f.nodes[0].connect("2025-06-18", nil)
	w := p.at(f.nodes[1]).open("POST", "/mcp", call("ask", `{}`))
	link := "/mcp" + strings.TrimPrefix(strings.SplitN(w.head().Header.Get("Link"), ">", 2)[0], "<")
	var question struct{ ID json.RawMessage }
	if err := json.Unmarshal(w.message().Data, &question); err != nil {
		t.Fatal(err)
	}
	w.atMost(0, rst)
	none := p.astray()
	w = none.at(f.nodes[2]).open("POST", link, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, question.ID))
	for {
		ev, err := w.next()
		if errors.Is(err, io.EOF) {
			t.Fatal("no answer")
		}
		if strings.Contains(string(ev.Data), "accept") {
			break
		}
	}
	if r := none.at(f.nodes[1]).open("GET", link+"x", "").all(); r.status != http.StatusNotFound {
		t.Errorf("a made-up URL: %d %s", r.status, r.body)
	}
}

// TestNoName asks for streams of a session without a name: the answer is a 404 at once, without a
// search on other nodes.
func TestNoName(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	p := &peer{n: f.nodes[0].node}
	for _, x := range []struct{ method, path, last, body string }{
		{"GET", "/mcp?stream=.0", "", ""},
		{"GET", "/mcp?stream=..", "", ""},
		{"POST", "/mcp?stream=.0", "", `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{"GET", "/sse", ".", ""},
		{"GET", "/sse", ".0", ""},
	} {
		q := *p
		if x.last != "" {
			q.header = http.Header{"Last-Event-Id": {x.last}}
		}
		began := time.Now()
		if r := q.open(x.method, x.path, x.body).all(); r.status != http.StatusNotFound || time.Since(began) > 5*time.Second {
			t.Errorf("%s %s %s: %d after %v: %s", x.method, x.path, x.last, r.status, time.Since(began), r.body)
		}
	}
}

// TestPrincipalBytes has principals that are not UTF-8: each node tells them apart.
func TestPrincipalBytes(t *testing.T) {
	t.Parallel()
	names := map[string]string{"one": "al\xffice", "two": "al\xfeice", "three": "al\ufffdice"}
	c := config{}
	c.server.Principal = func(r *http.Request) string { return names[r.Header.Get("X-Who")] }
	f := newFarm(t, 2, c)
	own := f.nodes[0].connect("2025-11-25", http.Header{"X-Who": {"one"}})
	for who := range names {
		for i, n := range f.nodes {
			p := *own.at(n)
			p.header = http.Header{"X-Who": {who}}
			want := http.StatusNotFound
			if who == "one" {
				want = http.StatusOK
			}
			if r := p.post(callAs("7", "echo", `{"text":"x"}`)); r.status != want {
				t.Errorf("as %q at node %d: %d %s", who, i, r.status, r.body)
			}
		}
	}
}

// TestUnknownByID kills the node to which a request was forwarded, and cuts off the engine. The
// client gets "outcome unknown" with the id of its request.
func TestUnknownByID(t *testing.T) {
	testlong.Only(t, "it waits for an engine that is away to be given up: 10 s")
	t.Parallel()
	c := config{patience: time.Second}
	c.server.Response = server.ResponseJSON
	f := newFarm(t, 2, c)
	p := f.nodes[0].connect("2025-11-25", nil)
	w := p.at(f.nodes[1]).open("POST", "/mcp", callAs(`"mine"`, "steps", `{"key":"k","n":1,"pause":20000}`))
	mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return f.runs("k") > 0 })
	f.nodes[1].handle.Cut(true)
	f.nodes[0].kill()
	r := w.all()
	if r.status != http.StatusBadGateway || !strings.Contains(string(r.body), `"id":"mine"`) || !strings.Contains(string(r.body), "outcome unknown") {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestSocketMakesAgain hands over the session of a WebSocket with a retry-safe light call in
// flight. The connection ends without a response to that call: the client makes it again at the
// session's new node. The engine is away, so that the session leaves some time after the call was
// released.
func TestSocketMakesAgain(t *testing.T) {
	t.Parallel()
	c := config{patience: time.Second}
	c.server.UpgradeAfter = time.Minute
	f := newFarm(t, 1, c)
	p := f.nodes[0].connect("2025-11-25", nil)
	p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
	s, _, err := f.nodes[0].dialSocket(0, "Mcp-Session-Id: "+p.id)
	if err != nil {
		t.Fatal(err)
	}
	p.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"to be put on record"}}`)
	s.hears("to be put on record")
	s.say(callAs("1", "safe_steps", `{"key":"k","n":0,"pause":20000}`))
	mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return f.runs("k") > 0 })
	f.nodes[0].handle.Cut(true)
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	_ = f.nodes[0].sessions.Departure.HandOver(ctx)
	for {
		m, err := s.next()
		if err != nil {
			break
		}
		if m.Kind == jsonrpc.Response {
			t.Errorf("the client hears %s", m.Raw)
		}
	}
}
