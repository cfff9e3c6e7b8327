package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/server"
	"holdfast/internal/sse"
)

// TestResponseForms lists which requests are answered with JSON and which with a stream.
func TestResponseForms(t *testing.T) {
	t.Parallel()
	const soon = 20 * time.Millisecond
	for _, tc := range []struct {
		mode    server.Response
		upgrade time.Duration // 0: not while this test runs
		name    string
		args    string
		want    string
	}{
		{server.ResponseAuto, 0, "echo", `{"text":"a"}`, "application/json"}, // readOnlyHint
		{server.ResponseAuto, 0, "safe_steps", `{"n":0}`, "application/json"},
		{server.ResponseAuto, 0, "steps", `{"n":0}`, "text/event-stream"}, // not retry-safe
		{server.ResponseAuto, 0, "safe_steps", `{"n":1}`, "text/event-stream"},
		{server.ResponseAuto, soon, "safe_steps", `{"n":0,"pause":500}`, "text/event-stream"},
		{server.ResponseJSON, 0, "steps", `{"n":0}`, "application/json"},
		{server.ResponseJSON, soon, "steps", `{"n":0,"pause":500}`, "application/json"},
		{server.ResponseJSON, 0, "steps", `{"n":1}`, "text/event-stream"},
		{server.ResponseSSE, 0, "echo", `{"text":"a"}`, "text/event-stream"},
	} {
		t.Run(fmt.Sprintf("%d/%s/%s", tc.mode, tc.name, tc.args), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, config{server: server.Options{Response: tc.mode, UpgradeAfter: tc.upgrade}})
			p := n.connect("2025-11-25", nil)
			r := p.post(call(tc.name, tc.args))
			if got := r.header.Get("Content-Type"); r.status != 200 || got != tc.want {
				t.Fatalf("got %d %s, want %s", r.status, got, tc.want)
			}
			f := &follower{p: p, seen: map[string]bool{}}
			if err := f.take(r); err != nil || !f.done {
				t.Errorf("no answer in %s (%v)", r.body, err)
			}
		})
	}
}

// TestModernStreams is a handler that answers requests of revision 2026-07-28 with streams,
// except errors with a status of their own.
func TestModernStreams(t *testing.T) {
	t.Parallel()
	c := tasksConfig()
	c.server.Response = server.ResponseSSE
	n := newNode(t, c)
	p := &peer{n: n}
	made := p.task("hold", `{}`)
	for _, m := range []struct {
		method, name, params string
		status               int
		want                 string
	}{
		{"tools/list", "", `{}`, 200, "text/event-stream"},
		{"tools/call", "steps", `{"name":"steps","arguments":{"key":"k","n":2}}`, 200, "text/event-stream"},
		{"tasks/get", made.TaskID, fmt.Sprintf(`{"taskId":%q}`, made.TaskID), 200, "text/event-stream"},
		{"ping", "", `{}`, 404, "application/json"},
	} {
		r := p.modern(m.method, m.name, m.params, aware)
		if got := r.header.Get("Content-Type"); r.status != m.status || got != m.want || told(t, r).ID != "c1" {
			t.Errorf("%s: %d %s: %s", m.method, r.status, got, r.body)
		}
	}
}

// TestPriming checks the first event of a stream in each revision (2025-11-25, Transports,
// "Sending Messages to the Server").
func TestPriming(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Retry: 1234 * time.Millisecond}})
	for version, primed := range map[string]bool{"2025-03-26": false, "2025-06-18": false, "2025-11-25": true} {
		p := n.connect(version, nil)
		w := p.open("POST", "/mcp", call("hold", `{}`))
		if l := w.head().Header.Get("Link"); !strings.HasPrefix(l, "<?stream=") || !strings.HasSuffix(l, `>; rel="stream"`) {
			t.Errorf("%s: Link is %q", version, l)
		}
		held := n.release(1)
		if !primed {
			held[0].Result(result("x"))
		}
		ev, err := w.next()
		if err != nil || ev.ID == "" || (len(ev.Data) == 0) != primed || primed && (!ev.HasData || ev.Retry != 1234*time.Millisecond) {
			t.Fatalf("%s: the first event is %+v (%v)", version, ev, err)
		}
		ids := map[string]bool{ev.ID: true}
		last := ev.ID
		for range 3 { // the same position, with a new id each time
			if !primed {
				break
			}
			w.c.Close()
			w = p.open("GET", "/mcp", "", "Last-Event-ID: "+last)
			ev, err = w.next()
			if err != nil || ids[ev.ID] || len(ev.Data) > 0 {
				t.Fatalf("%s: a resumed stream starts with %+v (%v)", version, ev, err)
			}
			last = ev.ID
			ids[last] = true
		}
		if primed {
			held[0].Result(result("x"))
			if ev = w.message(); ids[ev.ID] || !strings.Contains(string(ev.Data), `"x"`) {
				t.Errorf("%s: %+v", version, ev)
			}
		}
		if _, err := w.next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the response: %v", version, err)
		}
		// After the last event, a client that comes back gets a 204.
		if r := p.open("GET", "/mcp", "", "Last-Event-ID: "+ev.ID).all(); r.status != 204 {
			t.Errorf("%s: after the end: %d", version, r.status)
		}
	}
}

// TestStreamURL resumes by the Link header before the first event (SEP-1335).
func TestStreamURL(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-06-18", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	f := &follower{p: p, seen: map[string]bool{}}
	if err := f.take(reply{header: w.head().Header}); err != nil || f.link == "" {
		t.Fatal(f.link, err)
	}
	w.c.Close()
	n.release(1)[0].Result(result("late"))
	p.id = "" // the URL is enough
	if err := f.rest(f.again()); err != nil {
		t.Fatal(err)
	}
	if err := f.check(0); err != nil {
		t.Error(err)
	}
}

// TestMultiTurn is SEP-1335's conversation in turns: the server asks and ends the connection, and
// the client posts its answers to the stream URL.
func TestMultiTurn(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{InputGrace: 20 * time.Millisecond}})
	p := n.connect("2025-11-25", nil)
	f := &follower{p: p, seen: map[string]bool{}}
	first := p.post(call("ask", `{}`))
	if err := f.take(first); err != nil || len(f.got) != 1 || f.got[0].Method != "elicitation/create" {
		t.Fatalf("%v in %s", err, first.body)
	}
	events := first.events()
	if end := events[len(events)-1]; len(end.Data) > 0 || end.Retry == 0 {
		t.Errorf("the connection ended with %+v, not with a retry", end)
	}
	link := f.link
	if r := p.open("GET", link, "", "Last-Event-ID: "+f.last).all(); r.status != 204 || len(r.body) > 0 {
		t.Fatalf("GET while the server waits: %d", r.status)
	}
	if r := p.open("GET", link, "").all(); r.status != 204 {
		t.Fatalf("GET of the first Link while the server waits: %d", r.status)
	}
	answer := fmt.Sprintf(`[{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}]`, f.got[0].ID)
	w := p.open("POST", link, answer, "Last-Event-ID: "+f.last)
	if err := f.rest(w); err != nil {
		t.Fatal(err)
	}
	if f.link == link {
		t.Error("the new stream has the old Link")
	}
	if last := string(f.got[len(f.got)-1].Raw); len(f.got) != 2 || !strings.Contains(last, "accept") {
		t.Errorf("got %d messages, the last is %s", len(f.got), last)
	}
	// Only answers can be posted there.
	if r := p.open("POST", link, call("echo", `{}`)).all(); r.status != 400 {
		t.Errorf("a request posted to the stream URL: %d", r.status)
	}
}

// TestDisconnect is SEP-1699: the server ends the connection, by age and by the
// tool, and the client polls.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	t.Run("age", func(t *testing.T) {
		n := newNode(t, config{server: server.Options{DisconnectAfter: 50 * time.Millisecond, Retry: 5 * time.Millisecond}})
		p := n.connect("2025-11-25", nil)
		f := &follower{p: p, seen: map[string]bool{}}
		w := p.open("POST", "/mcp", call("steps", `{"n":10,"pause":50}`))
		turns := 0
		for ; !f.done; turns++ {
			r := w.all()
			if err := f.take(r); err != nil || !r.whole {
				t.Fatal(err)
			}
			if events := r.events(); !f.done && events[len(events)-1].Retry == 0 {
				t.Errorf("the connection ended without retry: %s", r.body)
			}
			if !f.done {
				w = f.again()
			}
		}
		if err := f.check(10); err != nil || turns < 3 {
			t.Errorf("%d connections: %v", turns, err)
		}
	})
	t.Run("by the tool", func(t *testing.T) {
		n := newNode(t, config{})
		p := n.connect("2025-11-25", nil)
		f := &follower{p: p, seen: map[string]bool{}}
		w := p.open("POST", "/mcp", call("hold", `{}`))
		held := n.release(1)
		held[0].Call.Disconnect(42 * time.Millisecond)
		r := w.all()
		events := r.events()
		if err := f.take(r); err != nil || !r.whole || events[len(events)-1].Retry != 42*time.Millisecond {
			t.Fatalf("%v, whole %v: %s", err, r.whole, r.body)
		}
		held[0].Result(result("x"))
		if err := f.rest(f.again()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("before an id", func(t *testing.T) { // a client of 2025-06-18 could not resume then
		n := newNode(t, config{server: server.Options{DisconnectAfter: time.Millisecond}})
		p := n.connect("2025-06-18", nil)
		w := p.open("POST", "/mcp", call("steps", `{"n":0,"pause":50}`))
		f := &follower{p: p, seen: map[string]bool{}}
		if err := f.rest(w); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBatch is JSON-RPC batches, which among the revisions of Streamable HTTP only 2025-03-26
// has.
func TestBatch(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-03-26", nil)
	batch := `[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`
	r := p.post(batch)
	var got []struct{ ID int }
	if err := json.Unmarshal(r.body, &got); err != nil || len(got) != 2 || got[0].ID != 1 || got[1].ID != 2 {
		t.Errorf("got %d %s", r.status, r.body)
	}
	// A batch that is answered with a stream is cut, and resumed.
	w := p.open("POST", "/mcp", "["+callAs("3", "steps", `{"n":1}`)+","+callAs("4", "hold", `{}`)+"]")
	seen := ""
	for range 2 {
		ev := w.message()
		seen = ev.ID
	}
	_ = w.c.SetLinger(0)
	w.c.Close()
	n.release(1)[0].Result(result("x"))
	w = p.open("GET", "/mcp", "", "Last-Event-ID: "+seen)
	if ev := w.message(); !strings.Contains(string(ev.Data), `"id":4`) {
		t.Errorf("got %s", ev.Data)
	}
	if _, err := w.next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last response: %v", err)
	}
	if r := n.connect("2025-06-18", nil).post(batch); r.status != 400 {
		t.Errorf("a batch in 2025-06-18: %d", r.status)
	}
}

// TestKeepAlive is failure 6: a silent call's stream and a quiet GET stream get comments, and
// outlive the shorter timeouts of the http.Server.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{
		server: server.Options{KeepAlive: 120 * time.Millisecond},
		http: func(s *http.Server) { // shorter than the reads below take
			s.WriteTimeout = 3 * time.Second
			s.ReadTimeout = 3 * time.Second
		},
	})
	p := n.connect("2025-06-18", nil)
	get := p.open("GET", "/mcp", "")
	get.head()
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.head()
	held := n.release(1)
	for _, w := range []*wire{get, w} {
		quiet := make([]byte, 400)
		if _, err := io.ReadFull(w.res.Body, quiet); err != nil || strings.Count(string(quiet), ": keep-alive") < 20 {
			t.Fatalf("got %q, %v", quiet, err)
		}
	}
	held[0].Result(result("late"))
	// The bytes read end within the comments, so that a reader may start here.
	w.rd = sse.NewReader(io.MultiReader(strings.NewReader("\n\n"), w.res.Body), 1<<20)
	if ev := w.message(); !strings.Contains(string(ev.Data), "late") {
		t.Errorf("got %s", ev.Data)
	}
}
