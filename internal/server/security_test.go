package server_test

import (
	"bytes"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// bearer returns the principal of a request in these tests.
func bearer(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// TestPrincipal is failure 10 on one node: bob, validly authenticated, uses alice's session, URLs
// and event ids. He learns nothing of hers, not even that they exist, and she notices nothing.
func TestPrincipal(t *testing.T) {
	t.Parallel()
	const secret = "alices-own"
	n := newNode(t, config{server: server.Options{Principal: bearer, InputGrace: time.Hour}})
	as := func(who string) http.Header {
		if who == "" {
			return nil
		}
		return http.Header{"Authorization": {"Bearer " + who}}
	}
	alice := n.connect("2025-11-25", as("alice"))
	alice.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"` + secret + `"}}`)
	get := alice.open("GET", "/mcp", "")
	listened := get.message().ID
	w := alice.open("POST", "/mcp", call("ask", `{}`))
	f := &follower{p: alice, seen: map[string]bool{}}
	if err := f.take(reply{header: w.head().Header}); err != nil {
		t.Fatal(err)
	}
	asking := w.message()
	asked, err := jsonrpc.Parse(asking.Data)
	if err != nil {
		t.Fatal(err)
	}
	finished := &follower{p: alice, seen: map[string]bool{}}
	if err := finished.take(alice.post(callAs("2", "steps", `{"n":1}`))); err != nil {
		t.Fatal(err)
	}
	old := n.pair(as("alice"))
	old.initialize()
	oldID := old.last

	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"from":"thief"}}`, asked.ID)
	cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}`
	for _, who := range []string{"bob", "Alice", "alicex", ""} {
		own := n.connect("2025-11-25", as(who))
		hers := &peer{n: n, id: alice.id, version: alice.version, header: as(who)}
		none := &peer{n: n, version: alice.version, header: as(who)}
		nobody := (&peer{n: n, id: "AAAAAAAAAAAAAAAAAAAAAAAAAA", header: as(who)}).post(call("echo", `{}`))
		for what, r := range map[string]reply{
			"POST":                     hers.post(callAs("3", "steps", `{"key":"thief"}`)),
			"POST of an answer":        hers.post(answer),
			"POST of a cancellation":   hers.post(cancel),
			"GET":                      hers.open("GET", "/mcp", "").all(),
			"GET with an id":           hers.open("GET", "/mcp", "", "Last-Event-ID: "+asking.ID).all(),
			"GET with a standalone id": hers.open("GET", "/mcp", "", "Last-Event-ID: "+listened).all(),
			"GET of the URL":           none.open("GET", f.link, "").all(),
			"GET of the URL, with id":  none.open("GET", f.link, "", "Last-Event-ID: "+asking.ID).all(),
			"GET of the URL, as hers":  hers.open("GET", f.link, "").all(),
			"GET of the URL, as his":   own.open("GET", f.link, "").all(),
			"GET of a finished URL":    none.open("GET", finished.link, "").all(),
			"POST to the URL":          none.open("POST", f.link, "["+answer+"]").all(),
			"POST to the URL, as his":  own.open("POST", f.link, answer).all(),
			"DELETE":                   hers.open("DELETE", "/mcp", "").all(),
			"GET of 2024-11-05":        none.open("GET", "/sse", "", "Last-Event-ID: "+oldID).all(),
			"POST of 2024-11-05":       none.open("POST", old.endpoint, cancel).all(),
		} {
			if r.status != 404 || !bytes.Equal(r.body, nobody.body) {
				t.Errorf("%q: %s: %d %s; for what is not there: %s", who, what, r.status, r.body, nobody.body)
			}
		}
		// In a session of his own, her event ids are invalid.
		for _, id := range []string{asking.ID, listened, finished.last, oldID} {
			r := own.open("GET", "/mcp", "", "Last-Event-ID: "+id).all()
			refused(t, who+" with an event id of alice's", r, 400, codeParams, "resume with an id that was received in this session")
		}
		own.works("reaching for another's")
		n.end(own)
	}
	if n.runs("thief") > 0 {
		t.Error("a call ran in alice's session that was not hers")
	}
	mcptest.Eventually(t, "only alice to read her streams", time.Minute, func() bool { return n.sessions.Readers() == 3 })
	if r := alice.open("GET", finished.link, "").all(); r.status != 200 || !strings.Contains(string(r.body), "done") {
		t.Errorf("her own URL: %d %s", r.status, r.body)
	}
	if r := alice.post(strings.Replace(answer, "thief", "alice", 1)); r.status != 202 {
		t.Errorf("her answer: %d", r.status)
	}
	if ev := w.message(); !strings.Contains(string(ev.Data), `\"from\":\"alice\"`) {
		t.Errorf("got %s", ev.Data)
	}
	alice.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"more"}}`)
	if ev := get.message(); !strings.Contains(string(ev.Data), "more") {
		t.Errorf("got %s", ev.Data)
	}
	old.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	if ev := old.next(); !strings.Contains(string(ev.Data), `"id":1`) {
		t.Errorf("got %s", ev.Data)
	}
}

// TestIDs checks that session ids and event ids are visible ASCII and random, and that event ids
// and stream URLs do not show the session id.
func TestIDs(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{session: session.Options{}})
	const many = 64
	visible := func(what, s string) {
		t.Helper()
		for _, c := range []byte(s) {
			if c < 0x21 || c > 0x7e {
				t.Fatalf("%s %q has the byte %#x", what, s, c)
			}
		}
	}
	ids, marks := map[string]bool{}, map[string]bool{}
	var places [26]map[byte]bool
	for i := range many {
		var id string
		if i%2 == 0 {
			p := n.connect("2025-11-25", nil)
			id = p.id
			w := p.open("POST", "/mcp", call("steps", `{"n":1}`))
			link := w.head().Header.Get("Link")
			event := w.message().ID
			visible("event id", event)
			mark, _, _ := strings.Cut(event, ".")
			if len(mark) < 17 || marks[mark] {
				t.Fatalf("event id %s", event)
			}
			marks[mark] = true
			if strings.Contains(link+event, id) || !strings.Contains(link, mark) {
				t.Errorf("the URL %s, the event id %s of session %s", link, event, id)
			}
			w.c.Close()
		} else {
			pair := n.pair(nil)
			_, id, _ = strings.Cut(pair.endpoint, "sessionId=")
			visible("event id", pair.last)
			if strings.Contains(pair.last, id) {
				t.Errorf("event id %s shows the session id", pair.last)
			}
			pair.w.c.Close()
		}
		visible("session id", id)
		if len(id) < len(places) || ids[id] {
			t.Fatalf("session id %s", id)
		}
		ids[id] = true
		for j := range places {
			if places[j] == nil {
				places[j] = map[byte]bool{}
			}
			places[j][id[j]] = true
		}
	}
	for j, seen := range places { // of 32 letters, 64 drawn at random leave few out
		if len(seen) < 16 {
			t.Errorf("place %d of %d session ids has only %d letters", j, many, len(seen))
		}
	}
}

// TestLogs logs a conversation with many events at level Debug: no token, session id or event id is in the log.
func TestLogs(t *testing.T) {
	testlong.Only(t, "it waits for a session to expire: 10 s")
	t.Parallel()
	const token = "token-of-alice"
	var out mcptest.Log
	n := newNode(t, config{
		server: server.Options{
			Principal: bearer, Retry: 5 * time.Millisecond, InputGrace: time.Millisecond,
			Shared: session.Shared{Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}))},
		},
		session: session.Options{TTL: 10 * time.Second, SessionMax: 2},
		http:    func(s *http.Server) { s.ErrorLog = log.New(&out, "", 0) },
	})
	secrets := map[string]bool{token: true}
	p := n.connect("2025-11-25", http.Header{"Authorization": {"Bearer " + token}})
	note := func(events ...string) {
		for _, id := range events {
			mark, _, _ := strings.Cut(strings.TrimPrefix(id, "?stream="), "~")
			for part := range strings.SplitSeq(mark, ".") {
				if len(part) > 16 { // the name of the session, which is public, is shorter
					secrets[part] = true
				}
			}
		}
	}
	secrets[p.id] = true
	f := &follower{p: p, seen: map[string]bool{}}
	w := p.open("POST", "/mcp", call("hold", `{}`))
	ev, err := w.next()
	if err != nil || ev.ID == "" {
		t.Fatalf("%+v, %v", ev, err)
	}
	if err := f.take(reply{header: w.head().Header}); err != nil {
		t.Fatal(err)
	}
	f.last = ev.ID
	_ = w.c.SetLinger(0)
	w.c.Close()
	note(f.last)
	n.sessionsQuiet()
	get := p.open("GET", "/mcp", "", "Last-Event-ID: "+f.last)
	get.head()
	held := n.release(1)
	p.post(call("echo", `{}`)) // the id is in flight
	p.post(callAs("1", "ask", `{}`))
	p.post("{")
	p.post(callAs("3", "hold", `{}`)) // over the limit of two calls
	p.open("GET", "/mcp", "", "Last-Event-ID: x"+f.last).all()
	p.open("GET", "/mcp", "", "Last-Event-ID: "+f.last[:20]).all()
	p.open("GET", f.link, "", "Last-Event-ID: "+f.last).head()
	p.open("POST", f.link, `{"jsonrpc":"2.0","id":99,"result":{}}`).atMost(0, rst)
	(&peer{n: n, id: p.id}).post(call("echo", `{}`)) // without a principal
	progress(held[0], 1, 1)
	old := n.pair(p.header)
	_, id, _ := strings.Cut(old.endpoint, "sessionId=")
	secrets[id] = true
	note(old.last)
	old.initialize()
	note(old.last)
	old.w.c.Close()
	n.sessionsQuiet()
	old.open()
	p.open("POST", old.endpoint, "{").all()
	old.w.c.Close()
	held[0].Sink.Closed(fmt.Errorf("the backend broke"), true) // the end is logged, with its calls
	n.end(p)
	p.post(call("echo", `{}`))
	mcptest.Eventually(t, "the session to expire", time.Minute, func() bool { return n.sessions.Sessions() == 0 })
	text := out.String()
	for _, want := range []string{"session expired", "backend ended", "level=DEBUG"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q in %s", want, text)
		}
	}
	for s := range secrets {
		if len(s) < 10 {
			t.Errorf("%q is no secret", s)
		}
		if strings.Contains(text, s) {
			t.Errorf("%s is in the log: %s", s, text)
		}
	}
	if len(secrets) < 5 {
		t.Errorf("only %d secrets", len(secrets))
	}
}
