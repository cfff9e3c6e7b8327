package server_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// able initializes a session of a client that can resume requests (SEP-975).
func (n *node) able(version, who string) *peer {
	n.t.Helper()
	p := &peer{n: n, version: version, header: byName(who)}
	res := p.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{"resumableRequests":{},"roots":{},"sampling":{},"elicitation":{}}}}`, version))
	p.id = res.header.Get("Mcp-Session-Id")
	if res.status != 200 || p.id == "" {
		n.t.Fatalf("initialize: %d %s", res.status, res.body)
	}
	return p
}

// astray returns the same client without its session.
func (p *peer) astray() *peer { return &peer{n: p.n, version: p.version, header: p.header} }

// token reads the resume policy at the beginning of a call's stream, and returns its token.
func (w *wire) token() string {
	w.t.Helper()
	return tokenIn(w.t, w.message().Data)
}

func tokenIn(t testing.TB, data []byte) string {
	t.Helper()
	m, err := jsonrpc.Parse(bytes.Clone(data))
	token := jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken"))
	if err != nil || m.Method != "notifications/requests/resumePolicy" || token == "" {
		t.Fatalf("not a policy: %s", data)
	}
	return token
}

// again returns the body of a requests/resume.
func again(id, token string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"requests/resume","params":{"resumeToken":%q}}`, id, token)
}

// ask returns the body of a requests/getStatus.
func ask(id, token string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"status","method":"requests/getStatus","params":{"requestId":%s,"resumeToken":%q}}`, id, token)
}

// result returns the result of a request that was answered with JSON.
func (r reply) result(t testing.TB) string {
	t.Helper()
	m, err := jsonrpc.Parse(bytes.Clone(r.body))
	if err != nil || r.status != 200 || r.header.Get("Content-Type") != "application/json" || m.Result == nil {
		t.Fatalf("%d %s: %v", r.status, r.body, err)
	}
	return string(m.Result)
}

// texts returns the messages of an answer without the resume policy.
func (r reply) texts() (all []string) {
	for _, ev := range r.events() {
		if len(ev.Data) > 0 && !strings.Contains(string(ev.Data), "resumePolicy") {
			all = append(all, string(ev.Data))
		}
	}
	return all
}

// TestResume cuts a call's connection in the middle, and resumes the call by its token, in the
// same session, in another, or in none.
func TestResume(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Principal: bearer}})
	for _, who := range []string{"", "alice"} {
		p, other, old := n.able("2025-11-25", who), n.able("2025-11-25", who), n.connect("2025-06-18", byName(who))
		for what, from := range map[string]*peer{"its session": p, "another session": other, "an older client": old, "no session": p.astray()} {
			for _, with := range []string{"nothing", "a header", "a member"} {
				what := fmt.Sprintf("%q, from %s, with %s", who, what, with)
				w := p.open("POST", "/mcp", call("hold", `{}`))
				token := w.token()
				held := n.release(1)
				progress(held[0], 1, 0)
				last := w.message()
				w.atMost(0, rst)
				body, extra := again(`"c"`, token), "X: y"
				switch with {
				case "a header":
					extra = "Last-Event-ID: " + last.ID
				case "a member":
					body = strings.Replace(body, `"}}`, fmt.Sprintf(`","_meta":{"holdfast/lastEventId":%q}}}`, last.ID), 1)
				}
				w = from.open("POST", "/mcp", body, extra)
				if head := w.head(); head.StatusCode != http.StatusOK || head.Header.Get("Content-Type") != "text/event-stream" || head.Header.Get("Link") == "" {
					t.Fatalf("%s: %d %v", what, head.StatusCode, head.Header)
				}
				message := func() sse.Event {
					for {
						ev, err := w.next()
						if err != nil || ev.HasData && len(ev.Data) == 0 && from == old {
							t.Fatalf("%s: %q, %v", what, ev.Data, err) // old clients know no empty data
						}
						if len(ev.Data) > 0 {
							return ev
						}
					}
				}
				if with == "nothing" {
					if again := tokenIn(t, message().Data); again != token {
						t.Errorf("%s: another token: %s", what, again)
					}
					if ev := message(); !bytes.Equal(ev.Data, last.Data) || ev.ID != last.ID {
						t.Errorf("%s: %s came as %s", what, last.Data, ev.Data)
					}
				}
				progress(held[0], 2, 0)
				held[0].Result(result("late"))
				for _, want := range []string{`"progress":2`, "late"} {
					if ev := message(); !strings.Contains(string(ev.Data), want) || ev.ID == "" {
						t.Errorf("%s: got %s, want %s", what, ev.Data, want)
					}
				}
				if ev, err := w.next(); !errors.Is(err, io.EOF) {
					t.Errorf("%s: after the response: %s, %v", what, ev.Data, err)
				}
			}
		}
		// The stream URL is good in another session, too.
		w := p.open("POST", "/mcp", call("hold", `{}`))
		f := &follower{p: other, seen: map[string]bool{}}
		if err := f.take(reply{header: w.head().Header}); err != nil {
			t.Fatal(err)
		}
		held := n.release(1)
		w = other.open("GET", f.link, "")
		held[0].Result(result("at the URL"))
		w.token()
		if ev := w.message(); !strings.Contains(string(ev.Data), "at the URL") {
			t.Errorf("got %s", ev.Data)
		}
	}
}

// byName returns the header that names a principal.
func byName(who string) http.Header {
	if who == "" {
		return nil
	}
	return http.Header{"Authorization": {"Bearer " + who}}
}

// TestPolicyFirst checks that the resume policy is the first message of a call, also of one that
// would be answered with JSON without its progress.
func TestPolicyFirst(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{session: session.Options{MinWait: 250 * time.Millisecond, MaxWait: 90 * time.Second}})
	p := n.able("2025-11-25", "")
	for _, body := range []string{call("steps", `{"n":1}`), call("safe_steps", `{"n":1}`)} {
		all := p.post(body).events()
		var said []string
		for _, ev := range all {
			if len(ev.Data) > 0 {
				said = append(said, string(ev.Data))
			}
		}
		if len(said) != 3 {
			t.Fatalf("got %q", said)
		}
		token := tokenIn(t, []byte(said[0]))
		if want := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":"c","resumeToken":%q,"minWait":0.25,"maxWait":90}}`, token); said[0] != want {
			t.Errorf("got %s, want %s", said[0], want)
		}
	}
	if r := p.post(call("echo", `{"text":"x"}`)); r.header.Get("Content-Type") != "application/json" {
		t.Errorf("a light call: %v", r.header)
	}
	if r := n.connect("2025-11-25", nil).post(call("steps", `{}`)); bytes.Contains(r.body, []byte("resumePolicy")) {
		t.Errorf("without the capability: %s", r.body)
	}
	// Under a key, a repeated request gets the same policy.
	one, two := p.post(callAs("7", "steps", `{}`), keyed("k")), p.post(callAs("7", "steps", `{}`), keyed("k"))
	if a, b := tokenIn(t, one.events()[1].Data), tokenIn(t, two.events()[1].Data); a != b {
		t.Errorf("tokens %s and %s", a, b)
	}
	batch := n.able("2025-03-26", "").post("[" + callAs("1", "steps", `{}`) + "," + callAs("2", "steps", `{}`) + "]")
	events := batch.events()
	if a, b := tokenIn(t, events[0].Data), tokenIn(t, events[1].Data); a == b || len(batch.texts()) != 2 {
		t.Errorf("a batch: %s", batch.body)
	}
}

// TestResumeRefused resumes with wrong tokens, ids and principals: all get the same error.
func TestResumeRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Principal: bearer}})
	alice, bob := n.able("2025-11-25", "alice"), n.able("2025-11-25", "bob")
	w := alice.open("POST", "/mcp", call("hold", `{}`))
	token := w.token()
	held := n.release(1)
	gone := n.able("2025-11-25", "alice")
	w2 := gone.open("POST", "/mcp", call("hold", `{}`))
	lost := w2.token()
	n.release(1)
	n.end(gone)
	plain := n.connect("2025-11-25", byName("alice"))

	refusal := bob.post(again(`"c"`, "nothing")).body
	const want = `{"jsonrpc":"2.0","id":"c","error":{"code":-32602,`
	if !strings.HasPrefix(string(refusal), want) {
		t.Fatalf("got %s", refusal)
	}
	name, rest, _ := strings.Cut(token, ".")
	for what, r := range map[string]reply{
		"bob's":             bob.post(again(`"c"`, token)),
		"nobody's":          (&peer{n: n, version: "2025-11-25"}).post(again(`"c"`, token)),
		"bob's, in hers":    (&peer{n: n, id: alice.id, version: "2025-11-25", header: bob.header}).post(again(`"c"`, token)),
		"a wrong one":       alice.post(again(`"c"`, name+"."+strings.ToUpper(rest))),
		"another id's":      alice.post(again(`"d"`, token)),
		"of an ended one":   alice.post(again(`"c"`, lost)),
		"from a plain one":  plain.post(again(`"c"`, lost)),
		"empty":             alice.post(again(`"c"`, "")),
		"no token":          alice.post(`{"jsonrpc":"2.0","id":"c","method":"requests/resume"}`),
		"no string":         alice.post(`{"jsonrpc":"2.0","id":"c","method":"requests/resume","params":{"resumeToken":7}}`),
		"bob's status":      bob.post(strings.Replace(ask(`"c"`, token), `"status"`, `"c"`, 1)),
		"status of another": alice.post(strings.Replace(ask(`"d"`, token), `"status"`, `"c"`, 1)),
		"status of ended":   alice.post(strings.Replace(ask(`"c"`, lost), `"status"`, `"c"`, 1)),
		"status of nothing": alice.post(`{"jsonrpc":"2.0","id":"c","method":"requests/getStatus","params":{}}`),
	} {
		body := bytes.Replace(r.body, []byte(`"id":"d"`), []byte(`"id":"c"`), 1)
		if r.status != 200 || r.header.Get("Content-Type") != "application/json" || !bytes.Equal(body, refusal) {
			t.Errorf("%s: %d %s, want %s", what, r.status, r.body, refusal)
		}
	}
	// A bad event id gets another error.
	refused(t, "a bad event id", alice.post(again(`"c"`, token), "Last-Event-ID: x"), 400, codeParams, "resume with")
	ping := alice.post(callAs("1", "steps", `{}`)).events()[0].ID
	refused(t, "another stream's event id", alice.post(again(`"c"`, token), "Last-Event-ID: "+ping), 400, codeParams, "resume with")
	held[0].Result(result("there"))
	if ev := w.message(); !strings.Contains(string(ev.Data), "there") {
		t.Errorf("the good reader got %s", ev.Data)
	} else if r := alice.post(again(`"c"`, token), "Last-Event-ID: "+ev.ID); r.status != 204 {
		t.Errorf("after the last: %d %s", r.status, r.body)
	}
	alice.works("bad tokens")

	n = newNode(t, config{server: server.Options{Shared: session.Shared{Stateless: true}}})
	refused2 := (&peer{n: n, version: "2025-11-25"}).post(again("1", "x"))
	if !bytes.Contains(refused2.body, []byte("-32601")) {
		t.Errorf("a stateless server: %s", refused2.body)
	}
}

// TestResumeKept is a call with messages that are no longer kept: an event id before them is refused, and a resume without one gets the rest.
func TestResumeKept(t *testing.T) {
	t.Parallel()
	for keep := time.Second; !resumedWithin(t, keep); keep *= 4 { // a busy machine took longer than the ended call is kept
	}
}

// resumedWithin is TestResumeKept with calls that are kept for a time after their end. It is false if that time may have been over before the resume.
func resumedWithin(t *testing.T, keep time.Duration) bool {
	t.Helper()
	n := newNode(t, config{memory: memory.Options{StreamBytes: 8 << 10, Keep: keep}})
	p := n.able("2025-11-25", "")
	w := p.open("POST", "/mcp", call("hold", `{}`))
	token := w.token()
	first := w.message
	held := n.release(1)
	progress(held[0], 1, 0)
	last := first().ID
	w.atMost(0, fin)
	n.sessionsQuiet()
	for i := 2; i < 50; i++ {
		progress(held[0], i, 500)
	}
	refused(t, "a gap", p.post(again(`"c"`, token), "Last-Event-ID: "+last), 410, codeUnknown, "no longer kept")
	ended := time.Now()
	held[0].Result(result("the end"))
	r := p.post(again(`"c"`, token))
	if time.Since(ended) > keep/2 {
		return false
	}
	texts := r.texts()
	if len(texts) < 5 || len(texts) > 20 || !strings.Contains(texts[len(texts)-1], "the end") || !strings.Contains(texts[len(texts)-2], `"progress":49`) {
		t.Errorf("got %d messages", len(texts))
	}
	mcptest.Eventually(t, "the call to be dropped", time.Minute, func() bool {
		return bytes.Contains(p.post(again(`"c"`, token)).body, []byte("-32602"))
	})
	return true
}

// TestStatus is requests/getStatus over HTTP, in the call's session and in none.
func TestStatus(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Principal: bearer}})
	p := n.able("2025-11-25", "alice")
	state := func(token, want string) {
		t.Helper()
		for _, from := range []*peer{p, p.astray()} {
			if got := from.post(ask(`"c"`, token)).result(t); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
	}
	said := func(status string, pending, input bool) string {
		return fmt.Sprintf(`{"requestId":"c","status":%q,"hasPendingMessage":%v,"hasInputRequest":%v}`, status, pending, input)
	}
	w := p.open("POST", "/mcp", call("ask", `{}`))
	token := w.token()
	asked, err := jsonrpc.Parse(w.message().Data)
	if err != nil {
		t.Fatal(err)
	}
	mcptest.Eventually(t, "what was said to be read", time.Minute, func() bool {
		return strings.Contains(p.post(ask(`"c"`, token)).result(t), `"hasPendingMessage":false`)
	})
	state(token, said("processing", false, true))
	w.atMost(0, rst)
	n.sessionsQuiet()
	elsewhere := n.able("2025-11-25", "alice")
	reply := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"yes":true}}`, asked.ID)
	for _, who := range []string{"bob", ""} {
		if r := (&peer{n: n, version: "2025-11-25", header: byName(who)}).post(reply); r.status != 400 {
			t.Errorf("%q answers without a session: %d %s", who, r.status, r.body)
		}
		if r := n.able("2025-11-25", who).post(reply); r.status != 202 {
			t.Errorf("%q answers in a session: %d %s", who, r.status, r.body)
		}
	}
	state(token, said("processing", false, true))
	if r := elsewhere.post(reply); r.status != 202 || len(r.body) > 0 {
		t.Errorf("an answer in another session: %d %s", r.status, r.body)
	}
	state(token, said("completed", true, false))
	if texts := elsewhere.post(again(`"c"`, token)).texts(); len(texts) != 2 || !strings.Contains(texts[1], `yes`) {
		t.Errorf("got %q", texts)
	}
	state(token, said("completed", false, false))

	w = p.open("POST", "/mcp", call("hold", `{}`))
	token = w.token()
	n.release(1)[0].Error(jsonrpc.Errorf(1, "no"))
	w.message()
	state(token, said("failed", false, false))

	// An answer without a session reaches the call, too.
	w = p.open("POST", "/mcp", call("ask", `{}`))
	token = w.token()
	asked, err = jsonrpc.Parse(w.message().Data)
	if err != nil {
		t.Fatal(err)
	}
	reply = fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"again":true}}`, asked.ID)
	if r := p.astray().post(reply); r.status != 202 {
		t.Errorf("an answer without a session: %d %s", r.status, r.body)
	}
	if ev := w.message(); !strings.Contains(string(ev.Data), "again") {
		t.Errorf("got %s", ev.Data)
	}
}

// TestStatusAll lists all requests of a principal, or of a session without a principal.
func TestStatusAll(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Principal: bearer}})
	one, two, bob := n.able("2025-11-25", "alice"), n.able("2025-11-25", "alice"), n.able("2025-11-25", "bob")
	anyone, anyone2 := n.able("2025-11-25", ""), n.able("2025-11-25", "")
	for i, p := range []*peer{one, two, bob, anyone} {
		p.open("POST", "/mcp", callAs("5", "hold", `{}`)).token()
		n.holds(i + 1)
	}
	one.post(callAs("6", "steps", `{}`))
	held := n.release(4)
	all := func(p *peer) []map[string]any {
		var result struct{ Requests []map[string]any }
		text := p.post(`{"jsonrpc":"2.0","id":1,"method":"requests/getStatus/all"}`).result(t)
		if err := json.Unmarshal([]byte(text), &result); err != nil || result.Requests == nil {
			t.Fatalf("%s: %v", text, err)
		}
		return result.Requests
	}
	for _, h := range held {
		h.Result(result("mine"))
	}
	for _, test := range []struct {
		p    *peer
		want int
	}{{one, 3}, {two, 3}, {one.astray(), 3}, {bob, 1}, {anyone, 1}, {anyone2, 0}, {anyone.astray(), 0}} {
		got := all(test.p)
		if len(got) != test.want {
			t.Errorf("%v has %d: %v", test.p.header, len(got), got)
		}
		for _, q := range got {
			id, token := fmt.Sprint(q["requestId"]), fmt.Sprint(q["resumeToken"])
			if len(q) != 6 || q["method"] != "tools/call" || q["status"] != "completed" {
				t.Errorf("got %v", q)
			}
			if texts := test.p.post(again(id, token)).texts(); len(texts) != 1 {
				t.Errorf("resumed: %q", texts)
			}
		}
	}
}

// TestCancelAway cancels a call by its token, without a session. A wrong token and another principal do not.
func TestCancelAway(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Principal: bearer}})
	p := n.able("2025-11-25", "alice")
	w := p.open("POST", "/mcp", call("hold", `{}`))
	token := w.token()
	w.atMost(0, fin)
	cancel := func(token string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c","_meta":{"holdfast/resumeToken":%q}}}`, token)
	}
	bob := &peer{n: n, version: "2025-11-25", header: byName("bob")}
	for _, r := range []reply{bob.post(cancel(token)), p.astray().post(cancel(token + "x"))} {
		if r.status != 202 || n.sessions.Calls() != 1 {
			t.Errorf("%d, and %d calls are in flight", r.status, n.sessions.Calls())
		}
	}
	if r := p.astray().post(cancel(token)); r.status != 202 || n.sessions.Calls() != 0 {
		t.Errorf("%d, and %d calls are in flight", r.status, n.sessions.Calls())
	}
	texts := p.post(again(`"c"`, token)).texts()
	if len(texts) != 1 || !strings.Contains(texts[0], `"code":-32000,"message":"cancelled`) {
		t.Errorf("got %q", texts)
	}
}

// TestAway is a client that does not come back within MaxWait: its call is cancelled, and the response says why.
func TestAway(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{session: session.Options{MaxWait: 500 * time.Millisecond}})
	p := n.able("2025-11-25", "")
	w := p.open("POST", "/mcp", call("hold", `{}`))
	token := w.token()
	pass(t, time.Second)
	if n.sessions.Calls() != 1 {
		t.Fatal("cancelled while its client was there")
	}
	w.atMost(0, rst)
	mcptest.Eventually(t, "the call to be cancelled", time.Minute, func() bool { return n.sessions.Calls() == 0 })
	texts := p.post(again(`"c"`, token)).texts()
	if len(texts) != 1 || !strings.Contains(texts[0], "cancelled: its client was away for longer than maxWait (500ms)") {
		t.Errorf("got %q", texts)
	}
}

// TestResumeCut cuts the answer to requests/resume after each number of bytes (in most cases
// after each 13th), again and again, until the response has arrived.
func TestResumeCut(t *testing.T) {
	t.Parallel()
	for _, how := range []cut{fin, rst, ghost} {
		t.Run(how.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
			p := n.able("2025-11-25", "")
			stride := 1
			if how != fin || !testlong.Wanted() {
				stride = 13
			}
			eachCut(1300, stride, func(at int) {
				id, key := fmt.Sprintf(`"id%d"`, at), fmt.Sprint("k", at)
				w := p.open("POST", "/mcp", callAs(id, "steps", fmt.Sprintf(`{"key":%q,"n":2,"pause":1}`, key)))
				token := w.token()
				w.atMost(0, how)
				f := &follower{p: p, seen: map[string]bool{}}
				for try := 0; !f.done; try++ {
					extra := "X: y"
					if f.last != "" {
						extra = "Last-Event-ID: " + f.last
					}
					most := at
					if try > 2 {
						most = 1 << 20
					}
					r := p.astray().open("POST", "/mcp", again(id, token), extra).atMost(most, how)
					if err := f.take(r); err != nil || try > 20 {
						t.Errorf("cut at %d: %v", at, err)
						return
					}
				}
				if !bytes.Contains(f.got[0].Raw, []byte("resumePolicy")) {
					t.Errorf("cut at %d: first came %s", at, f.got[0].Raw)
				}
				f.got = f.got[1:]
				if err := f.check(2); err != nil {
					t.Errorf("cut at %d: %v", at, err)
				}
				if got := n.runs(key); got != 1 {
					t.Errorf("cut at %d: the tool ran %d times", at, got)
				}
			})
		})
	}
}
