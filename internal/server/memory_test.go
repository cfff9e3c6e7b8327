package server_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/ticket"
	"holdfast/stream"
)

// line is a connection on which a client makes one request after the other.
type line struct {
	*peer
	*wire
}

func (p *peer) line() *line { return &line{p, p.send("")} }

// ask makes a request and reads its answer.
func (l *line) ask(body string, header ...string) reply {
	l.t.Helper()
	if _, err := io.WriteString(l.c, l.request("POST", "/mcp", body, header...)); err != nil {
		l.t.Fatal(err)
	}
	l.res = nil
	res := l.head()
	text := mcptest.Must(io.ReadAll(res.Body))(l.t)
	return reply{status: res.StatusCode, header: res.Header, body: text, whole: true}
}

// calls returns a stored call with n steps of progress of that size.
func calls(id, n, size int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"steps","arguments":{"n":%d,"size":%d},"_meta":{"progressToken":%d}}}`, id, n, size, id)
}

// resumed returns the status of a GET that resumes a call after an event.
func (p *peer) resumed(first string) int {
	return p.open("GET", "/mcp", "", "Last-Event-ID: "+first).all().status
}

// kept reports whether the store has the stream of an event.
func (p *peer) kept(event string) bool {
	p.n.t.Helper()
	s := mcptest.Must(p.n.sessions.Find(p.id, caller.Principal{}))(p.n.t)
	at, err := ticket.ParseEvent(s.ID(), event)
	if err != nil {
		p.n.t.Fatal(err)
	}
	_, _, err = p.n.store.Bounds(p.n.t.Context(), stream.ID{Session: stream.SessionKey(s.Name()), Number: at.Number})
	return err == nil
}

// A call is dropped soon after its client has shown that it has read all: by another request on
// the same connection, or by a GET with the id of the last event. A call that its client may
// still ask for is kept.
func TestAcknowledged(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{memory: memory.Options{Acknowledged: 50 * time.Millisecond}})
	p := n.connect("2025-11-25", nil)
	for what, next := range map[string]func(l *line){
		"a call":         func(l *line) { l.ask(calls(100, 1, 1)) },
		"a ping":         func(l *line) { l.ask(`{"jsonrpc":"2.0","id":101,"method":"ping"}`) },
		"a notification": func(l *line) { l.ask(`{"jsonrpc":"2.0","method":"notifications/initialized"}`) },
	} {
		l := p.line()
		first := l.ask(calls(1, 3, 10)).events()[0].ID
		next(l)
		mcptest.Eventually(t, "the call to be dropped after "+what, time.Minute, func() bool { return !p.kept(first) })
	}

	// A client with the id of the last event has the whole call.
	events := p.post(calls(1, 3, 10)).events()
	if status := p.resumed(events[len(events)-1].ID); status != 204 {
		t.Errorf("at its end: %d", status)
	}
	mcptest.Eventually(t, "the call to be dropped that was asked for at its end", time.Minute, func() bool { return !p.kept(events[0].ID) })

	l := p.line()
	keyed := l.ask(calls(2, 3, 10), "Idempotency-Key: k")
	kept := keyed.events()[0].ID
	other := p.line() // no later request comes on this call's connection
	silent := other.ask(calls(3, 3, 10)).events()[0].ID
	for id := 4; id < 8; id++ { // the ping acknowledges each call
		first := l.ask(calls(id, 3, 10)).events()[0].ID
		l.ask(`{"jsonrpc":"2.0","id":101,"method":"ping"}`)
		mcptest.Eventually(t, "the call to be dropped", time.Minute, func() bool { return !p.kept(first) })
	}
	if status := p.resumed(kept); status != 200 {
		t.Errorf("a call under an idempotency key: %d", status)
	}
	if again := p.post(calls(2, 3, 10), "Idempotency-Key: k"); again.status != 200 || len(again.events()) != len(keyed.events()) {
		t.Errorf("the same call under its key: %d with %d events", again.status, len(again.events()))
	}
	if status := p.resumed(silent); status != 200 {
		t.Errorf("a call whose client has not been heard since: %d", status)
	}
}

// However many results one client leaves unread, another client's unread result is kept. A client
// that fills its share of the store loses messages of its own calls, and not of others.
func TestOneClientLeavesRoom(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{
		memory: memory.Options{StreamBytes: 256 << 10, SessionBytes: 512 << 10, TotalBytes: 4 << 20},
		server: server.Options{Principal: func(r *http.Request) string { return r.Header.Get("User") }},
	})
	modest := n.connect("2025-11-25", http.Header{"User": {"modest"}})
	w := modest.open("POST", "/mcp", calls(1, 10, 1000))
	ev, err := w.next()
	if err != nil {
		t.Fatal(err)
	}
	w.c.Close()
	greedy := http.Header{"User": {"greedy"}}
	for range 10 {
		g := n.connect("2025-11-25", greedy)
		for id := range 20 {
			if r := g.post(calls(id, 10, 10_000)); r.status != 200 {
				t.Fatalf("call %d: %d %.200s", id, r.status, r.body)
			}
		}
	}
	if r := modest.open("GET", "/mcp", "", "Last-Event-ID: "+ev.ID).all(); r.status != 200 || !strings.Contains(string(r.body), "done") {
		t.Errorf("the call of another client: %d %.200s", r.status, r.body)
	}

	// The same with calls that have not ended: their messages over the share are refused.
	full := false
	for i := range 12 {
		g := n.connect("2025-11-25", greedy)
		for id := range 2 {
			w := g.open("POST", "/mcp", strings.Replace(calls(id, 1, 1), `"steps","arguments":{"n":1,"size":1}`,
				fmt.Sprintf(`"hold","arguments":{"text":"%d"}`, i), 1))
			if _, err := w.next(); err != nil {
				t.Fatal(err)
			}
			for _, x := range n.release(1) {
				for step := range 20 {
					progress(x, step, 10_000)
				}
			}
			defer w.c.Close()
		}
		kept := n.store.Bytes()
		full = full || kept >= 2900<<10
		if kept > 3200<<10 {
			t.Fatalf("one client fills the store: %d bytes", kept)
		}
	}
	if !full {
		t.Fatalf("%d bytes are kept, which proves nothing", n.store.Bytes())
	}
	if r := modest.post(calls(2, 10, 10_000)); r.status != 200 || !strings.Contains(string(r.body), "done") {
		t.Errorf("a call of another client: %d %.200s", r.status, r.body)
	}
}
