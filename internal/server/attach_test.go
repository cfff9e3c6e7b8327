package server_test

import (
	"net/http"
	"strings"
	"testing"
)

// A client that repeats a request unchanged, because its connection has broken, gets the result of the first request, and the
// tool runs once. A repeated id is refused if the request differs, or while the first request's client is connected.
func TestAttached(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"hold", "safe_hold"} {
		for _, how := range []cut{fin, rst} {
			t.Run(tool+" "+how.String(), func(t *testing.T) {
				t.Parallel()
				n := newNode(t, config{})
				p := n.connect("2025-11-25", nil)
				body := callAs(`"c"`, tool, `{"key":"k"}`)
				w := p.open("POST", "/mcp", body)
				n.holds(1)
				refused(t, "while its client is connected", p.post(body), 400, codeInvalid, "use an id once")
				w.atMost(0, how)
				again := p.open("POST", "/mcp", body)
				if status := again.head().StatusCode; status != http.StatusOK { // the request is attached
					t.Fatal(status)
				}
				refused(t, "with other arguments", p.post(callAs(`"c"`, tool, `{"key":"l"}`)), 400, codeInvalid, "use an id once")
				held := n.release(1)
				progress(held[0], 1, 1)
				held[0].Result(result("done"))
				r := again.all()
				if r.status != http.StatusOK || strings.Count(string(r.body), "done") != 1 || !strings.Contains(string(r.body), "progress") {
					t.Errorf("%d %s", r.status, r.body)
				}
				if n.runs("k") != 1 || n.runs("l") != 0 {
					t.Errorf("it ran %d times", n.runs("k"))
				}
			})
		}
	}
}

// TestAttached at a node that does not own the session, where the cut connection ended.
func TestAttachedElsewhere(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{})
	p := f.nodes[0].connect("2025-11-25", nil)
	body := callAs(`7`, "hold", `{"key":"k"}`)
	w := p.at(f.nodes[1]).open("POST", "/mcp", body)
	held := f.heldAt(f.nodes[:1])
	w.atMost(0, rst)
	again := p.at(f.nodes[1]).open("POST", "/mcp", body)
	again.head()
	held.Result(result("done"))
	if r := again.all(); r.status != http.StatusOK || strings.Count(string(r.body), "done") != 1 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if n := f.nodes[0].runs("k"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}
