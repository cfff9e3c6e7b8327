package server_test

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
)

// acceptTable lists Accept headers of clients, and whether each allows an answer as JSON, and as events.
var acceptTable = []struct {
	accept       string // the line
	json, events bool
}{
	{"", true, true},
	{"Accept:", true, true},
	{"Accept: ,", true, true},
	{"Accept: */*", true, true},
	{"Accept: application/json, text/event-stream", true, true},
	{"Accept: text/event-stream , Application/JSON", true, true},
	{"Accept: application/json\r\nAccept: text/event-stream", true, true},
	{"Accept: application/*, text/*;q=0.1", true, true},
	{"Accept: */*;q=0, application/json, text/event-stream", true, true},
	{"Accept: text/html, application/json;q=0.9, text/event-stream;charset=utf-8", true, true},
	{"Accept: application/json;q=0.001, text/event-stream;q=0.001, text/plain;q=0.9", true, true},
	{"Accept: application/json", true, false},
	{"Accept: application/json; charset=utf-8", true, false},
	{"Accept: application/*", true, false},
	{"Accept: application/json, text/plain", true, false},
	{"Accept: application/json, text/event-stream;q=0", true, false},
	{"Accept: application/json, text/event-stream; Q=0.000", true, false},
	{"Accept: */*, text/event-stream;q=0", true, false},
	{"Accept: text/event-stream", false, true},
	{"Accept: text/*", false, true},
	{"Accept: application/json; q=0.0, text/event-stream", false, true},
	{"Accept: */*, application/*;q=0", false, true},
	{"Accept: text/html", false, false},
	{"Accept: application/jsonx, text/event-streams", false, false},
	{"Accept: */*;q=0", false, false},
	{"Accept: application/json;q=0, text/event-stream;q=0", false, false},
}

// TestAccept is a client that takes both forms of answers, one, or none. It gets the response in a form that it
// takes, whatever the call does and whatever the server's usual form is; if it takes none, it gets a 406.
func TestAccept(t *testing.T) {
	t.Parallel()
	for what, options := range map[string]server.Options{
		"as usual":       {},
		"stored at once": {UpgradeAfter: time.Nanosecond},
		"JSON":           {Response: server.ResponseJSON},
		"streams":        {Response: server.ResponseSSE},
		"stateless":      {Shared: session.Shared{Stateless: true}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, config{server: options})
			p := &peer{n: n, version: "2025-11-25"}
			if !options.Stateless {
				p = n.connect("2025-11-25", nil)
			}
			for i, c := range acceptTable {
				for _, call := range []string{
					callAs(fmt.Sprint(100*i), "echo", `{"text":"done"}`),
					callAs(fmt.Sprint(100*i+1), "steps", fmt.Sprintf(`{"n":3,"key":"%d"}`, i)),
					callAs(fmt.Sprint(100*i+2), "steps", `{"n":3,"pause":1}`),
					callAs(fmt.Sprint(100*i+3), "safe_steps", `{"n":0,"pause":1}`),
				} {
					r := p.craft(crafted{head: map[string]string{"Accept": c.accept}, body: call}).all()
					if !c.json && !c.events {
						refused(t, c.accept, r, 406, codeInvalid, "Accept must list application/json and text/event-stream, or at least one")
						continue
					}
					answers, others := r.parts()
					if r.status != 200 || len(answers) != 1 || !strings.Contains(answers[0], "done") {
						t.Errorf("%q, %s: %d %s", c.accept, call, r.status, r.body)
						continue
					}
					as := r.header.Get("Content-Type")
					if !c.json && as != "text/event-stream" || !c.events && (as != "application/json" || len(others) > 0) {
						t.Errorf("%q, %s: %s", c.accept, call, as)
					}
				}
				want := 1
				if !c.json && !c.events {
					want = 0
				}
				if got := n.runs(fmt.Sprint(i)); got != want {
					t.Errorf("%q: the tool ran %d times", c.accept, got)
				}
			}
			if options.Stateless {
				return
			}
			for _, c := range acceptTable {
				w := p.craft(crafted{method: "GET", head: map[string]string{"Accept": c.accept}})
				head := w.head()
				if c.events != (head.StatusCode == http.StatusOK && head.Header.Get("Content-Type") == "text/event-stream") {
					t.Errorf("GET with %q: %d", c.accept, head.StatusCode)
				}
				if !c.events {
					refused(t, "GET with "+c.accept, w.all(), 406, codeInvalid, "Accept must list text/event-stream")
				}
				w.c.Close()
			}
			p.works("all forms")
		})
	}
}

// TestAcceptOpening has clients that take one form of answers begin sessions, and send notifications and batches.
func TestAcceptOpening(t *testing.T) {
	t.Parallel()
	for _, response := range []server.Response{server.ResponseAuto, server.ResponseJSON, server.ResponseSSE} {
		n := newNode(t, config{server: server.Options{Response: response}})
		for accept, as := range map[string]string{"": "", "Accept: application/json": "application/json", "Accept: text/event-stream": "text/event-stream"} {
			p := &peer{n: n, version: "2025-03-26"}
			head := map[string]string{"Accept": accept}
			r := p.craft(crafted{head: head, body: strings.Replace(initialize, "2024-11-05", "2025-03-26", 1)}).all()
			answers, _ := r.parts()
			p.id = r.header.Get("Mcp-Session-Id")
			if r.status != 200 || len(answers) != 1 || p.id == "" || as != "" && r.header.Get("Content-Type") != as || !strings.Contains(answers[0], "2025-03-26") {
				t.Fatalf("%v, %q: %d %v %s", response, accept, r.status, r.header, r.body)
			}
			if r := p.craft(crafted{head: head, body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`}).all(); r.status != 202 || len(r.body) > 0 {
				t.Errorf("%v, %q: %d %s", response, accept, r.status, r.body)
			}
			batch := "[" + callAs("1", "steps", `{"n":2}`) + "," + callAs("2", "echo", `{"text":"two"}`) + "]"
			r = p.craft(crafted{head: head, body: batch}).all()
			if r.status != 200 || as != "" && r.header.Get("Content-Type") != as {
				t.Errorf("%v, %q: %d %s", response, accept, r.status, r.body)
			}
			if as == "application/json" && (r.body[0] != '[' || bytes.Contains(r.body, []byte("progress"))) || !bytes.Contains(r.body, []byte("done")) || !bytes.Contains(r.body, []byte("two")) {
				t.Errorf("%v, %q: a batch: %s", response, accept, r.body)
			}
			// The error for a refused request is always JSON.
			if r := p.craft(crafted{head: head, body: "{"}).all(); r.status != 400 || r.header.Get("Content-Type") != "application/json" {
				t.Errorf("%v, %q: %d %s", response, accept, r.status, r.body)
			}
		}
	}
}

// TestAcceptKeyed makes a call again under its idempotency key, with another form of answer each time. The tool runs once.
func TestAcceptKeyed(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	key := "Idempotency-Key: \"k\""
	for i, accept := range []string{"Accept: application/json", "", "Accept: text/event-stream", "Accept: application/json"} {
		r := p.craft(crafted{head: map[string]string{"Accept": accept, "Idempotency-Key": key}, body: callAs("1", "steps", `{"n":3,"key":"keyed"}`)}).all()
		answers, _ := r.parts()
		if r.status != 200 || len(answers) != 1 || !strings.Contains(answers[0], "done") {
			t.Errorf("%d, %q: %d %s", i, accept, r.status, r.body)
		}
		if accept != "" && r.header.Get("Content-Type") != strings.TrimPrefix(accept, "Accept: ") {
			t.Errorf("%d, %q: %s", i, accept, r.header.Get("Content-Type"))
		}
	}
	if got := n.runs("keyed"); got != 1 {
		t.Errorf("the tool ran %d times", got)
	}
}

// TestAcceptAsked has a server send a request to a client that takes JSON alone, and so can't get it: the server gets
// an error, and the call goes on.
func TestAcceptAsked(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := &peer{n: n, version: "2025-11-25"}
	p.id = p.post(initialize).header.Get("Mcp-Session-Id")
	w := p.craft(crafted{head: map[string]string{"Accept": "Accept: application/json"}, body: callAs("1", "ask", `{}`)})
	mcptest.Eventually(t, "the server to be refused", time.Minute, func() bool {
		n.script.mu.Lock()
		defer n.script.mu.Unlock()
		return n.script.refused == 1
	})
	n.release(1)[0].Result(result("unasked"))
	if r := w.all(); r.status != 200 || r.header.Get("Content-Type") != "application/json" || !bytes.Contains(r.body, []byte("unasked")) {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestAcceptChatty is a call that sends more progress than its stream keeps. A client that takes only JSON gets its response.
func TestAcceptChatty(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{memory: memory.Options{StreamBytes: 64 << 10}})
	p := n.connect("2025-11-25", nil)
	began := time.Now()
	r := p.craft(crafted{head: map[string]string{"Accept": "Accept: application/json"}, body: callAs("1", "steps", `{"n":300,"size":2000,"jitter":1}`)}).all()
	if r.status != 200 || !bytes.Contains(r.body, []byte("done")) || len(r.body) > 1<<10 {
		t.Errorf("after %v: %d %.100s", time.Since(began), r.status, r.body)
	}
	mcptest.Eventually(t, "the call to end", time.Minute, func() bool { return n.sessions.Calls() == 0 })
}

// TestAcceptModern is TestAccept in revision 2026-07-28. A listen by a client that takes JSON alone is refused, too.
func TestAcceptModern(t *testing.T) {
	t.Parallel()
	for _, response := range []server.Response{server.ResponseAuto, server.ResponseSSE} {
		n := newNode(t, config{server: server.Options{Response: response, KeepAlive: time.Millisecond}})
		p := &peer{n: n}
		for _, c := range acceptTable {
			for _, tool := range []string{"echo", "steps"} {
				head := modernHead("tools/call", tool)
				head["Accept"] = c.accept
				body := `{"jsonrpc":"2.0","id":"c1","method":"tools/call","params":{` + metaWhole + `,"name":"` + tool + `","arguments":{"text":"done","n":3,"pause":5}}}`
				r := p.craft(crafted{head: head, body: body}).all()
				if !c.json && !c.events {
					refusedModern(t, c.accept, r, 406, codeInvalid, "")
					continue
				}
				answers, others := r.parts()
				as := r.header.Get("Content-Type")
				if r.status != 200 || len(answers) != 1 || !strings.Contains(answers[0], "done") ||
					!c.json && as != "text/event-stream" || !c.events && (as != "application/json" || len(others) > 0) {
					t.Errorf("%v, %q, %s: %d %s %s", response, c.accept, tool, r.status, as, r.body)
				}
			}
		}
		head := modernHead("subscriptions/listen", "")
		head["Accept"] = "Accept: application/json"
		listen := `{"jsonrpc":"2.0","id":"c1","method":"subscriptions/listen","params":{` + metaWhole + `,"notifications":{"toolsListChanged":true}}}`
		refusedModern(t, "a listen without events", p.craft(crafted{head: head, body: listen}).all(), 406, codeInvalid, `"c1"`)
	}
}

// TestCoding is a compressed body: it is refused, with advice. A body with a Content-Encoding that names no compression is taken.
func TestCoding(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	c := n.pair(nil)
	c.initialize()
	ping := `{"jsonrpc":"2.0","id":"p","method":"ping"}`
	for _, coding := range []string{"gzip", "x-gzip", "br", "zstd", "deflate", "GZIP", "identity, gzip", "gzip\r\nContent-Encoding: identity", "aws-chunked"} {
		for _, target := range []string{"/mcp", c.endpoint} {
			// The body is not JSON: without the header, the error would be another.
			r := p.craft(crafted{target: target, head: map[string]string{"Content-Encoding": "Content-Encoding: " + coding}, body: "\x1f\x8b\x08"}).all()
			refused(t, coding, r, 415, codeInvalid, "without Content-Encoding")
			if got := r.header.Values("Accept-Encoding"); !slices.Equal(got, []string{"identity"}) {
				t.Errorf("%s: Accept-Encoding %v", coding, got)
			}
		}
	}
	for _, coding := range []string{"identity", "Identity", "", " , "} {
		r := p.craft(crafted{head: map[string]string{"Content-Encoding": "Content-Encoding: " + coding}, body: ping}).all()
		if r.status != 200 {
			t.Errorf("%q: %d %s", coding, r.status, r.body)
		}
	}
	p.works("bodies that are compressed")
}

// TestAcceptElsewhere is a client that takes one form of answers from a node that does not own its session. It gets
// that form, also when the owner is lost during a call.
func TestAcceptElsewhere(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	p := f.nodes[0].connect("2025-11-25", nil)
	for i, accept := range []string{"Accept: application/json", "Accept: text/event-stream", ""} {
		r := p.at(f.nodes[1]).craft(crafted{head: map[string]string{"Accept": accept}, body: callAs(fmt.Sprint(i), "steps", fmt.Sprintf(`{"key":"k%d","n":3}`, i))}).all()
		answers, others := r.parts()
		if r.status != 200 || len(answers) != 1 || f.runs(fmt.Sprint("k", i)) != 1 || i == 0 && len(others) > 0 {
			t.Errorf("%q: %d %v %s", accept, r.status, r.header, r.body)
		}
		if as := strings.TrimPrefix(accept, "Accept: "); as != "" && r.header.Get("Content-Type") != as {
			t.Errorf("%q: %v", accept, r.header)
		}
	}
	w := p.at(f.nodes[1]).craft(crafted{head: map[string]string{"Accept": "Accept: application/json"}, body: callAs("9", "hold", `{"key":"lost"}`)})
	f.nodes[0].holds(1)
	f.nodes[0].kill()
	r := w.all()
	if r.header.Get("Content-Type") != "application/json" || !bytes.Contains(r.body, []byte("outcome unknown")) || !bytes.Contains(r.body, []byte(`"id":9`)) {
		t.Errorf("its node was lost: %d %v %s", r.status, r.header, r.body)
	}
}
