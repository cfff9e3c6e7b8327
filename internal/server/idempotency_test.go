package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// keyed returns the header that gives a request an idempotency key.
func keyed(key string) string { return fmt.Sprintf("Idempotency-Key: %q", key) }

// whole checks that a request under a key was answered with all messages of the call, and that
// the tool ran once.
func (p *peer) whole(r reply, key string, steps int) error {
	f := &follower{p: p, seen: map[string]bool{}}
	if r.status != http.StatusOK || !r.whole {
		return fmt.Errorf("%d %s", r.status, r.body)
	}
	if err := f.take(r); err != nil {
		return err
	}
	if !f.done { // the first connection was served after this one, and superseded it
		if err := f.rest(f.again()); err != nil {
			return err
		}
	}
	if err := f.check(steps); err != nil {
		return err
	}
	if got := p.n.runs(key); got != 1 {
		return fmt.Errorf("the tool ran %d times", got)
	}
	return nil
}

// eachCut calls try for every stride-th byte from 0 to n, many at a time.
func eachCut(n, stride int, try func(at int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 20)
	for at := 0; at <= n; at += stride {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			try(at)
		})
	}
	wg.Wait()
}

// TestKeyedRequestCut cuts a POST after each byte of the request, and makes it again under the
// same key: the tool runs once, and the answer is whole.
func TestKeyedRequestCut(t *testing.T) {
	t.Parallel()
	for _, how := range []cut{fin, rst} {
		t.Run(how.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
			p := n.connect("2025-11-25", nil)
			text := func(at int) (body, whole string) {
				body = callAs(fmt.Sprintf("%q", fmt.Sprint("id", 1000+at)), "steps", fmt.Sprintf(`{"key":"k%d","n":2}`, 1000+at))
				return body, p.request("POST", "/mcp", body, keyed(fmt.Sprint("k", 1000+at)))
			}
			_, whole := text(0)
			eachCut(len(whole), 1, func(at int) {
				body, whole := text(at)
				p.send(whole[:at]).cut(how)
				key := fmt.Sprint("k", 1000+at)
				if err := p.whole(p.post(body, keyed(key)), key, 2); err != nil {
					t.Errorf("cut at %d: %v", at, err)
				}
			})
			p.works("cut requests")
		})
	}
}

// TestKeyedResponseCut cuts a POST after each byte of its response (in most cases after each 14th).
// The repeated request is answered from the beginning, or after the event that the client names.
func TestKeyedResponseCut(t *testing.T) {
	t.Parallel()
	for _, how := range []cut{fin, rst, ghost} {
		for _, pause := range []int{0, 1} {
			t.Run(fmt.Sprintf("%v/pause%d", how, pause), func(t *testing.T) {
				t.Parallel()
				n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
				p := n.connect("2025-11-25", nil)
				ask := func(at int, extra ...string) (*wire, string) {
					key := fmt.Sprint("k", 1000+at)
					body := callAs(fmt.Sprintf("%q", fmt.Sprint("id", 1000+at)), "steps", fmt.Sprintf(`{"key":%q,"n":2,"pause":%d}`, key, pause))
					return p.open("POST", "/mcp", body, append(extra, keyed(key))...), key
				}
				const longest = 1400 // longer than the response, in bytes
				stride := 1
				if how != fin || pause > 0 || !testlong.Wanted() {
					stride = 14
				}
				eachCut(longest, stride, func(at int) {
					w, key := ask(at)
					f := &follower{p: p, seen: map[string]bool{}}
					if err := f.take(w.atMost(at, how)); err != nil {
						t.Errorf("cut at %d: %v", at, err)
						return
					}
					if at == longest && !f.done {
						t.Error("the cuts did not reach the end")
					}
					w, _ = ask(at)
					if err := p.whole(w.all(), key, 2); err != nil {
						t.Errorf("cut at %d: %v", at, err)
					}
					if f.last == "" || f.done {
						return
					}
					w, _ = ask(at, "Last-Event-ID: "+f.last)
					if err := f.take(w.all()); err != nil {
						t.Errorf("cut at %d: %v", at, err)
						return
					}
					if err := f.check(2); err != nil {
						t.Errorf("cut at %d, after %s: %v", at, f.last, err)
					}
				})
			})
		}
	}
}

// TestKeyedTwins sends the same request several times at once, in two sessions of a principal: the tool runs once.
func TestKeyedTwins(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond, Principal: bearer}})
	alice := http.Header{"Authorization": {"Bearer alice"}}
	peers := []*peer{n.connect("2025-11-25", alice), n.connect("2025-06-18", alice)}
	for round := range 10 {
		key := fmt.Sprint("twins", round)
		body := call("steps", fmt.Sprintf(`{"key":%q,"n":2,"pause":2}`, key))
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				p := peers[i%2]
				r := p.post(body, keyed(key))
				if r.status != http.StatusOK || r.header.Get("Link") == "" {
					t.Errorf("%d %s", r.status, r.body)
				}
			})
		}
		wg.Wait()
		for _, p := range peers {
			if err := p.whole(p.post(body, keyed(key)), key, 2); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// TestKeyRefused uses a key for another request, and sends bad keys: both are refused. A key of another
// principal is another key, and that of a notification is ignored.
func TestKeyRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Principal: bearer}})
	as := func(who string) http.Header { return http.Header{"Authorization": {"Bearer " + who}} }
	alice, alice2, bob, nobody, nobody2 := n.connect("2025-11-25", as("alice")), n.connect("2025-11-25", as("alice")),
		n.connect("2025-11-25", as("bob")), n.connect("2025-11-25", nil), n.connect("2025-11-25", nil)
	body := call("echo", `{"text":"a"}`)
	r := alice.post(body, keyed("k"))
	if r.status != 200 || !strings.Contains(string(r.body), "id: ") || r.header.Get("Link") == "" {
		t.Errorf("a keyed call is light: %v %s", r.header, r.body)
	}
	const newKey = "use a new key for a new request"
	refused(t, "another body", alice.post(call("echo", `{"text":"b"}`), keyed("k")), 422, codeInvalid, newKey)
	refused(t, "another body in another session", alice2.post(call("echo", `{"text":"b"}`), keyed("k")), 422, codeInvalid, newKey)
	for _, p := range []*peer{bob, nobody, nobody2} {
		if r := p.post(call("echo", `{"text":"b"}`), keyed("k")); r.status != 200 || !strings.Contains(string(r.body), `"b"`) {
			t.Errorf("another's key: %d %s", r.status, r.body)
		}
	}
	for _, bad := range []string{"Idempotency-Key:", `Idempotency-Key: "a`, "Idempotency-Key: a b", "Idempotency-Key: " + strings.Repeat("k", 256),
		"Idempotency-Key: a\r\nIdempotency-Key: a"} {
		refused(t, bad, alice.post(body, bad), 400, codeInvalid, "dempotency")
	}

	held := alice.open("POST", "/mcp", call("hold", `{}`), keyed("held"))
	held.head()
	refused(t, "an id in flight", alice.post(call("hold", `{}`), keyed("other")), 400, codeInvalid, "use an id once")
	refused(t, "the key of a call in flight", alice.post(call("hold", `{"x":1}`), keyed("held")), 422, codeInvalid, newKey)
	if r := alice.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"x"}}`, keyed("held")); r.status != 202 {
		t.Errorf("a notification with a key: %d", r.status)
	}
	n.release(1)[0].Result(result("free"))
	if err := alice.whole(held.all(), "", 0); err != nil && !strings.Contains(err.Error(), "ran 0 times") {
		t.Error(err)
	}
	if r := alice.post(call("echo", `{"text":"c"}`), keyed("other")); !strings.Contains(string(r.body), `"c"`) {
		t.Errorf("a key whose call was refused: %d %s", r.status, r.body)
	}
	alice.works("keys")
}

// TestKeyInMessage has keys in _meta, for transports without headers. A key in the header has precedence.
func TestKeyInMessage(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	with := func(name, key, text string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"steps","arguments":{"key":%q},"_meta":{%q:%s}}}`, text, name, key)
	}
	const meta = "holdfast/idempotencyKey"
	body := with(meta, `"k"`, "one")
	for range 2 {
		if err := p.whole(p.post(body), "one", 0); err != nil {
			t.Error(err)
		}
	}
	// Some encoders escape a slash in this way.
	escaped := strings.Replace(body, meta, `holdfast\/idempotencyKey`, 1)
	refused(t, "another body", p.post(escaped), 422, codeInvalid, "new key")
	if err := p.whole(p.post(with(meta, `"k"`, "two"), keyed("header")), "two", 0); err != nil {
		t.Errorf("the header wins: %v", err)
	}
	for _, bad := range []string{`""`, `7`, `"a b"`, `null`} {
		refused(t, bad, p.post(with(meta, bad, "bad")), 400, codeInvalid, "1 to 255")
	}
	for range 2 {
		p.post(with("idempotencyKey", `"k"`, "other"))
	}
	if got := n.runs("other"); got != 2 {
		t.Errorf("another name is a key: ran %d times", got)
	}
}

func TestKeyedBatch(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-03-26", nil)
	body := "[" + callAs("1", "steps", `{"key":"b"}`) + ",\n" + callAs("2", "steps", `{"key":"b"}`) +
		`,{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"x"}}]`
	for range 2 {
		if r := p.post(body, keyed("k")); len(r.events()) < 2 || n.runs("b") != 2 {
			t.Errorf("%s: ran %d times", r.body, n.runs("b"))
		}
	}
	refused(t, "a batch with less", p.post("["+callAs("1", "steps", `{"key":"b"}`)+"]", keyed("k")), 422, codeInvalid, "new key")
}

// TestKeyedElsewhere continues a call from another session of its principal.
func TestKeyedElsewhere(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Principal: bearer}})
	as := func(who string) http.Header { return http.Header{"Authorization": {"Bearer " + who}} }
	first, second, bob := n.connect("2025-11-25", as("alice")), n.connect("2025-06-18", as("alice")), n.connect("2025-11-25", as("bob"))
	body := call("hold", `{}`)
	first.open("POST", "/mcp", body, keyed("k")).head()
	held := n.release(1)
	f := &follower{p: second, seen: map[string]bool{}}
	w := second.open("POST", "/mcp", body, keyed("k"))
	if err := f.take(reply{header: w.head().Header}); err != nil {
		t.Fatal(err)
	}
	w.atMost(0, fin)
	refused(t, "bob at her URL", bob.open("GET", f.link, "").all(), 404, codeServer, "initialize")
	nowhere := &peer{n: n, id: "AAAAAAAAAAAAAAAAAAAAAAAAAA", version: "2025-11-25", header: as("alice")}
	refused(t, "with a session that is not there", nowhere.open("GET", f.link, "").all(), 404, codeServer, "initialize")
	w = second.open("GET", f.link, "")
	held[0].Result(result("there"))
	if ev := w.message(); !strings.Contains(string(ev.Data), "there") {
		t.Errorf("got %s", ev.Data)
	}
	n.end(first)
	refused(t, "when its session has ended", second.post(body, keyed("k")), 410, codeUnknown, "outcome unknown: ")
	if len(n.letGo()) != 0 {
		t.Error("it ran again")
	}
}

func TestKeyedDropped(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{memory: memory.Options{Keep: 50 * time.Millisecond}})
	p := n.connect("2025-11-25", nil)
	body := call("steps", `{"key":"d"}`)
	if r := p.post(body, keyed("k")); r.status != 200 {
		t.Fatal(r.status)
	}
	mcptest.Eventually(t, "the call to be dropped", time.Minute, func() bool { return p.post(body, keyed("k")).status != 200 })
	refused(t, "a dropped call", p.post(body, keyed("k")), 410, codeUnknown, "outcome unknown: ")
	if got := n.runs("d"); got != 1 {
		t.Errorf("it ran %d times", got)
	}
}

// TestKeyIgnored has keys at a stateless server, and on initialize requests: they are ignored.
func TestKeyIgnored(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Shared: session.Shared{Stateless: true}}})
	p := &peer{n: n, version: "2025-11-25"}
	for range 2 {
		if r := p.post(call("steps", `{"key":"s"}`), keyed("k")); r.status != 200 {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	if got := n.runs("s"); got != 2 {
		t.Errorf("it ran %d times", got)
	}
	r := p.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`, keyed("k"))
	if m, err := jsonrpc.Parse(r.body); err != nil || jsonrpc.Field(m.Result, "capabilities", "experimental") != nil {
		t.Errorf("a stateless server advertises keys: %s, %v", r.body, err)
	}

	n = newNode(t, config{})
	p = &peer{n: n, version: "2025-11-25"}
	init := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`
	one, two := p.post(init, keyed("k")), p.post(init, keyed("k"))
	if a, b := one.header.Get("Mcp-Session-Id"), two.header.Get("Mcp-Session-Id"); a == "" || b == "" || a == b {
		t.Errorf("initialize under a key: %q, %q", a, b)
	}
	m, err := jsonrpc.Parse(one.body)
	if err != nil || string(jsonrpc.Field(m.Result, "capabilities")) !=
		`{"tools":{},"experimental":{"holdfast/idempotencyKey":{"header":"Idempotency-Key"}}}` {
		t.Errorf("initialize: %s", one.body)
	}
}
