package server_test

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
)

// comesBackFor resumes a call as the official TypeScript client does: with its last event id, until it has a response, or an
// answer other than 200. It returns the number of requests, and the last answer.
func (p *peer) comesBackFor(event string) (times int, last reply) {
	p.n.t.Helper()
	for times < 10 {
		times++
		last = p.open("GET", "/mcp", "", "Last-Event-ID: "+event).all()
		if last.status != http.StatusOK {
			break
		}
		if last.response() != "" {
			break
		}
		for _, ev := range last.events() {
			event = cmp.Or(ev.ID, event)
		}
	}
	return times, last
}

// TestEndedAnyNode is a client that resumes a call that ended without a response, or with an error that says why it has no result.
// Each node of a cluster says so, and the client does not come back more than twice.
func TestEndedAnyNode(t *testing.T) {
	t.Parallel()
	const cancelled = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}`
	type scene struct {
		f    *farm
		p    *peer // at a node that does not own the session
		wire *wire
	}
	cancel := func(s *scene) {
		if r := s.p.post(cancelled); r.status != http.StatusAccepted {
			s.f.t.Errorf("cancelled: %d %s", r.status, r.body)
		}
		_ = s.wire.all() // read to the end
	}
	owner := func(s *scene) *session.Session {
		at, err := s.f.nodes[0].sessions.FindName(string(whereabouts.KeyOf(s.p.id)), caller.Principal{})
		if err != nil {
			s.f.t.Fatal(err)
		}
		return at
	}
	for what, test := range map[string]struct {
		end  func(s *scene)
		want string // in the response; "": the answer is 204
		lost bool   // the session's node is lost
		key  bool   // the call has an idempotency key
		able bool   // the client resumes by tokens
	}{
		"cancelled": {end: cancel},
		"cancelled, and its node lost": {end: func(s *scene) {
			cancel(s)
			s.f.nodes[0].kill()
		}, lost: true},
		"cancelled, and its node drained": {end: func(s *scene) {
			cancel(s)
			if err := s.f.nodes[0].drain(time.Minute); err != nil {
				s.f.t.Error(err)
			}
		}, lost: true},
		"cancelled after the connection broke": {end: func(s *scene) {
			s.wire.atMost(0, rst)
			if r := s.p.post(cancelled); r.status != http.StatusAccepted {
				s.f.t.Errorf("cancelled: %d %s", r.status, r.body)
			}
		}},
		"cancelled with an idempotency key": {end: cancel, key: true},
		"cancelled by an able client":       {end: cancel, able: true, want: "cancelled by its client"},
		"cancelled by an operator": {end: func(s *scene) {
			if !owner(s).CancelByOperator(`"c"`) {
				s.f.t.Error("not cancelled")
			}
		}, want: "cancelled by an operator"},
		"its node lost": {end: func(s *scene) { s.f.nodes[0].kill() }, want: "outcome unknown", lost: true},
	} {
		for _, version := range []string{"2025-03-26", "2025-11-25"} {
			t.Run(what+"/"+version, func(t *testing.T) {
				t.Parallel()
				f := newFarm(t, 3, config{})
				s := &scene{f: f}
				if test.able {
					s.p = f.nodes[0].able(version, "").at(f.nodes[1])
				} else {
					s.p = f.nodes[0].connect(version, nil).at(f.nodes[1])
				}
				var extra []string
				if test.key {
					extra = []string{`Idempotency-Key: "k"`}
				}
				s.wire = s.p.open("POST", "/mcp", callAs(`"c"`, "hold", `{}`), extra...)
				held := f.nodes[0].release(1)
				if test.able {
					s.wire.token()
				}
				var first, last string
				for i := range 2 {
					progress(held[0], i, 1)
					last = s.wire.message().ID
					if first == "" {
						first = last
					}
				}
				test.end(s)
				for i, n := range f.nodes {
					if i == 0 && test.lost {
						continue
					}
					for _, event := range []string{first, last} {
						times, got := s.p.at(n).comesBackFor(event)
						if times > 2 {
							t.Errorf("node %d: it comes back %d times", i, times)
						}
						if test.want == "" && got.status != http.StatusNoContent || test.want != "" && !strings.Contains(string(got.body), test.want) {
							t.Errorf("node %d: %d %s", i, got.status, got.body)
						}
					}
				}
			})
		}
	}
}

// TestEndedAnyNode for other ways to resume: a token of revision 2026-07-28, a batch, and the pair of endpoints.
func TestEndedOtherWays(t *testing.T) {
	t.Parallel()
	t.Run("2026-07-28", func(t *testing.T) {
		t.Parallel()
		f := newFarm(t, 2, config{})
		p := &peer{n: f.nodes[0].node}
		w, token := p.begun("hold", `{}`)
		f.nodes[0].release(1)
		_ = w.c.Close()
		body := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c1","_meta":{"holdfast/resumeToken":%q}}}`, token)
		if r := p.open("POST", "/mcp", body, "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: notifications/cancelled").all(); r.status != http.StatusAccepted {
			t.Fatalf("cancelled: %d %s", r.status, r.body)
		}
		for i, n := range f.nodes {
			if r := (&peer{n: n.node}).comes(token, comesBack).all(); !strings.Contains(string(r.body), "cancelled") || !strings.Contains(string(r.body), `"id":"c1"`) {
				t.Errorf("node %d: %d %s", i, r.status, r.body)
			}
		}
	})
	t.Run("batch", func(t *testing.T) {
		t.Parallel()
		n := newNode(t, config{})
		p := n.connect("2025-03-26", nil)
		w := p.open("POST", "/mcp", "["+callAs(`"a"`, "hold", `{}`)+","+callAs(`"b"`, "hold", `{}`)+"]")
		held := n.release(2)
		progress(held[0], 1, 1)
		first := w.message().ID
		w.atMost(0, rst)
		cancel := func(id string) {
			if r := p.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"` + id + `"}}`); r.status != http.StatusAccepted {
				t.Errorf("cancelled: %d %s", r.status, r.body)
			}
		}
		cancel("a")
		held[1].Result(result("b is done"))
		if times, r := p.comesBackFor(first); times != 1 || !strings.Contains(string(r.body), "b is done") {
			t.Errorf("one of it cancelled: %d times, %d %s", times, r.status, r.body)
		}
		w = p.open("POST", "/mcp", "["+callAs(`"a"`, "hold", `{}`)+","+callAs(`"b"`, "hold", `{}`)+"]")
		progress(n.release(2)[0], 1, 1)
		first = w.message().ID
		w.atMost(0, rst)
		cancel("a")
		cancel("b")
		if times, r := p.comesBackFor(first); times != 1 || r.status != http.StatusNoContent {
			t.Errorf("all of it cancelled: %d times, %d %s", times, r.status, r.body)
		}
	})
	t.Run("2024-11-05", func(t *testing.T) {
		t.Parallel()
		n := newNode(t, config{})
		c := n.pair(nil)
		c.initialize()
		c.send(callAs(`"c"`, "hold", `{}`))
		progress(n.release(1)[0], 1, 1)
		c.wants(`"progress":1`)
		c.w.atMost(0, rst)
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}`)
		c.open()
		c.send(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
		c.wants(`"id":2`) // no message of the call came before
	})
	t.Run("its session ended", func(t *testing.T) {
		t.Parallel()
		n := newNode(t, config{})
		p := n.connect("2025-11-25", nil)
		w := p.open("POST", "/mcp", callAs(`"c"`, "hold", `{}`))
		progress(n.release(1)[0], 1, 1)
		first := w.message().ID
		n.end(p)
		if times, r := p.comesBackFor(first); times != 1 || r.status != http.StatusNotFound {
			t.Errorf("%d times, %d %s", times, r.status, r.body)
		}
	})
}
