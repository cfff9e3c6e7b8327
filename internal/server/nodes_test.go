package server_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
	"holdfast/internal/whereabouts"
)

// TestAnyNode uses a session at its owner and at other nodes: calls, DELETE and made-up ids get the same answers at each.
func TestAnyNode(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	p := f.nodes[0].connect("2025-11-25", nil)
	for i, n := range f.nodes {
		if r := p.at(n).post(callAs(fmt.Sprint(i), "echo", `{"text":"quick"}`)); r.status != 200 || !strings.Contains(string(r.body), "quick") ||
			r.header.Get("Content-Type") != "application/json" {
			t.Errorf("light call at node %d: %d %v %s", i, r.status, r.header, r.body)
		}
		key := fmt.Sprint("k", i)
		fl := &follower{p: p.at(n), seen: map[string]bool{}}
		r := p.at(n).post(callAs(fmt.Sprint(10+i), "steps", fmt.Sprintf(`{"key":%q,"n":3}`, key)))
		if err := fl.take(r); err != nil || fl.check(3) != nil || f.runs(key) != 1 {
			t.Errorf("call at node %d: %v %v, %d runs: %d %s", i, err, fl.check(3), f.runs(key), r.status, r.body)
		}
		for name := range r.header {
			if strings.HasPrefix(name, "Holdfast-") {
				t.Errorf("the client sees %s", name)
			}
		}
	}
	if n := f.nodes[1].sessions.Sessions() + f.nodes[2].sessions.Sessions(); n != 0 {
		t.Errorf("%d sessions moved", n)
	}
	for _, n := range f.nodes {
		bad := *p.at(n)
		bad.id = "made up"
		for method, body := range map[string]string{"POST": call("echo", "{}"), "GET": "", "DELETE": ""} {
			if r := bad.open(method, "/mcp", body).all(); r.status != http.StatusNotFound {
				t.Errorf("%s of a made-up session: %d", method, r.status)
			}
		}
	}
	if r := p.at(f.nodes[2]).open("DELETE", "/mcp", "").all(); r.status != http.StatusNoContent {
		t.Errorf("DELETE: %d %s", r.status, r.body)
	}
	for i, n := range f.nodes {
		if r := p.at(n).post(call("echo", "{}")); r.status != http.StatusNotFound {
			t.Errorf("POST to a deleted session at node %d: %d %s", i, r.status, r.body)
		}
	}
}

// TestRestartIdle is failure 1: the node of an idle session is lost.
func TestRestartIdle(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{})
	p := f.nodes[0].connect("2025-11-25", nil)
	f.nodes[0].kill()
	fl := &follower{p: p.at(f.nodes[1]), seen: map[string]bool{}}
	began := time.Now()
	r := p.at(f.nodes[1]).post(call("steps", `{"key":"k","n":2}`))
	if err := fl.take(r); err != nil || fl.check(2) != nil || f.runs("k") != 1 {
		t.Errorf("%v %v, %d runs: %d %s", err, fl.check(2), f.runs("k"), r.status, r.body)
	}
	t.Log("after", time.Since(began))
}

// TestOwnerLost is failure 2: the node that runs a call is lost, while the client is connected to
// another node. The client gets the call's end on the connection that it has.
func TestOwnerLost(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name, tool, want string
		runs             int
	}{
		{"unsafe", "hold", "outcome unknown", 1},
		{"safe", "safe_hold", "done", 2},
	} {
		for _, version := range []string{"2025-06-18", "2025-11-25"} {
			t.Run(x.name+" "+version, func(t *testing.T) {
				t.Parallel()
				f := newFarm(t, 3, config{server: server.Options{UpgradeAfter: 50 * time.Millisecond}})
				p := f.nodes[0].connect(version, nil)
				p.at(f.nodes[0]).post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
				w := p.at(f.nodes[1]).open("POST", "/mcp", call(x.tool, `{"key":"k"}`))
				fl := &follower{p: p.at(f.nodes[1]), seen: map[string]bool{}}
				if w.head().StatusCode != http.StatusOK {
					t.Fatalf("%d", w.head().StatusCode)
				}
				first := f.nodes[0].release(1)[0]
				for i := range 2 {
					progress(first, i+1, 0)
					w.message()
				}
				f.nodes[0].kill()
				began := time.Now()
				if x.runs > 1 {
					second := f.heldAt(f.nodes[1:])
					for i := range 4 {
						progress(second, i+1, 0)
					}
					second.Result(result("done"))
				}
				if err := fl.rest(w); err != nil {
					t.Fatal(err)
				}
				t.Log("after", time.Since(began))
				end := fl.got[len(fl.got)-1]
				if !strings.Contains(string(end.Raw), x.want) || f.runs("k") != x.runs {
					t.Errorf("ended with %s after %d runs", end.Raw, f.runs("k"))
				}
			})
		}
	}
}

// TestOwnerLeftGhost moves the session of a call to another node while the client's connection is dead,
// which the client's node does not know: it continues the stream by itself. The client then comes back with
// its session id alone, and gets the messages that were written to the dead connection, too.
func TestOwnerLeftGhost(t *testing.T) {
	t.Parallel()
	for name, heir := range map[string]int{"to another node": 2, "to the client's node": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, 3, config{server: server.Options{Principal: named, Retry: 20 * time.Millisecond}})
			p := f.nodes[0].connect("2025-11-25", http.Header{"Authorization": {"Bearer me"}}).at(f.nodes[1])
			w := p.open("POST", "/mcp", call("safe_hold", `{}`))
			first := f.nodes[0].release(1)[0]
			first.Notify("notifications/progress", []byte(`{"progressToken":7,"progress":1}`))
			for !strings.Contains(string(w.message().Data), `"progress":1`) { // until the message was written
			}
			key := string(whereabouts.KeyOf(p.id))
			f.take(f.nodes[0], f.nodes[heir], key)
			f.nodes[heir].release(1)
			mcptest.Eventually(t, "the client's node to go on", time.Minute, func() bool { return f.nodes[heir].sessions.Readers() > 0 })
			w.atMost(0, rst)
			mcptest.Eventually(t, "the connection to end", time.Minute, func() bool { return f.nodes[heir].sessions.Readers() == 0 })
			if ev := p.open("GET", "/mcp", "").message(); !strings.Contains(string(ev.Data), `"progress":1`) {
				t.Errorf("got %s", ev.Data)
			}
		})
	}
}

// TestOwnerLostListening kills the node of a session with a standalone stream. Later messages
// arrive on the same connection of the client.
func TestOwnerLostListening(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, 3, config{})
			p := f.nodes[0].connect(version, nil)
			w := p.at(f.nodes[1]).open("GET", "/mcp", "")
			if w.head().StatusCode != http.StatusOK {
				t.Fatalf("%d", w.head().StatusCode)
			}
			say := func(n *farmNode, text string) {
				if r := p.at(n).post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":%q}}`, text)); r.status != 202 {
					t.Fatalf("%d %s", r.status, r.body)
				}
				if ev := w.message(); !strings.Contains(string(ev.Data), text) {
					t.Errorf("got %s, want %s", ev.Data, text)
				}
			}
			say(f.nodes[2], "one")
			f.nodes[0].kill()
			say(f.nodes[2], "two")
			say(f.nodes[1], "three")
		})
	}
}

// TestClientCutAnyNode cuts a streamed call's answer after each 41st byte (each 11th with -long),
// for clients at a node that does not own their session.
func TestClientCutAnyNode(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		for _, how := range []cut{fin, rst, ghost} {
			t.Run(fmt.Sprintf("%s/%v", version, how), func(t *testing.T) {
				t.Parallel()
				f := newFarm(t, 2, config{server: server.Options{Retry: 20 * time.Millisecond}})
				connect := func() (*peer, error) {
					p, err := f.nodes[0].begin(version, nil)
					if err != nil {
						return nil, err
					}
					return p.at(f.nodes[1]), nil
				}
				cutEverywhere(f.nodes[1].node, connect, f.runs, how, 1, testlong.Either(41, 11))
			})
		}
	}
}

// A forgetfulBus loses each notice that a client has left when it is sent first.
type forgetfulBus struct {
	cluster.Bus
	mu   sync.Mutex
	seen map[string]bool
}

func (b *forgetfulBus) Send(node string, message []byte) error {
	if bytes.Contains(message, []byte(`"left":`)) {
		b.mu.Lock()
		seen := b.seen[string(message)]
		b.seen[string(message)] = true
		b.mu.Unlock()
		if !seen {
			return nil
		}
	}
	return b.Bus.Send(node, message)
}

// TestLeftUnheard loses the first notices that a client has left one node with its answer unread. The client comes back with
// its session id alone, and still gets its answer.
func TestLeftUnheard(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{
		server: server.Options{Retry: 20 * time.Millisecond},
		bus:    func(b cluster.Bus) cluster.Bus { return &forgetfulBus{Bus: b, seen: make(map[string]bool)} },
	})
	p := f.nodes[0].connect("2025-06-18", nil).at(f.nodes[1])
	w := p.open("POST", "/mcp", call("hold", `{}`))
	held := f.nodes[0].release(1)
	progress(held[0], 1, 1)
	if ev := w.message(); !strings.Contains(string(ev.Data), `"progress":1`) {
		t.Fatalf("got %s", ev.Data)
	}
	held[0].Result(result("done"))
	f.nodes[0].sessionsQuiet() // the whole answer was written
	w.atMost(0, rst)
	listens := p.open("GET", "/mcp", "")
	for {
		if ev := listens.message(); strings.Contains(string(ev.Data), "done") {
			break
		}
	}
}

// TestEngineAway is failure 13 for clients: light calls don't need the engine, and other calls
// wait for it, and are refused if it is away for too long.
func TestEngineAway(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 1, config{patience: time.Second})
	n := f.nodes[0]
	p := n.connect("2025-11-25", nil)
	light := p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
	n.handle.Cut(true)
	if r := p.post(callAs("1", "echo", `{"text":"quick"}`)); r.status != http.StatusOK || light.status != http.StatusOK {
		t.Errorf("light call: %d %s", r.status, r.body)
	}
	time.AfterFunc(100*time.Millisecond, func() { n.handle.Cut(false) })
	if r := p.post(callAs("2", "steps", `{"key":"k","n":1}`)); r.status != http.StatusOK || len(r.texts()) != 2 || f.runs("k") != 1 {
		t.Errorf("stored call: %d %s, %d runs", r.status, r.body, f.runs("k"))
	}
	n.handle.Cut(true)
	// The requests wait for the engine beside each other.
	never := p.open("POST", "/mcp", callAs("3", "steps", `{"key":"never","n":1}`))
	ofNone := make(map[string]*wire)
	for method, body := range map[string]string{"POST": callAs("4", "echo", "{}"), "GET": "", "DELETE": ""} {
		q := *p
		q.id = "made up"
		ofNone[method] = q.open(method, "/mcp", body)
	}
	r := never.all()
	if r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" || f.runs("never") != 0 ||
		!strings.Contains(string(r.body), `"the store does not answer: try again later"`) {
		t.Errorf("stored call, for too long: %d %s, %d runs", r.status, r.body, f.runs("never"))
	}
	for method, w := range ofNone {
		if r := w.all(); r.status != http.StatusServiceUnavailable ||
			!strings.Contains(string(r.body), `"the store does not answer: try again later"`) {
			t.Errorf("%s of what nobody can know: %d %s", method, r.status, r.body)
		}
	}
	n.handle.Cut(false)
	mcptest.Eventually(t, "the session to go on", time.Minute, func() bool {
		r := p.post(callAs("5", "steps", `{"key":"again","n":1}`))
		return r.status == http.StatusOK && len(r.texts()) == 2
	})
	if f.runs("again") != 1 {
		t.Errorf("%d runs", f.runs("again"))
	}
}

// TestUpgradeEngineAway has a light call that is promoted while the engine is away or full. The
// client gets an error, and the session goes on.
func TestUpgradeEngineAway(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"away", "full"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, 1, config{server: server.Options{UpgradeAfter: 50 * time.Millisecond}, patience: time.Second})
			n := f.nodes[0]
			p := n.connect("2025-11-25", nil)
			p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
			set := func(on bool) {
				if how == "full" {
					f.engine.SetFull(on)
				} else {
					n.handle.Cut(on)
				}
			}
			set(true)
			r := p.post(callAs("1", "safe_steps", `{"key":"k","n":2,"pause":500}`))
			if !strings.Contains(string(r.body), "outcome unknown") && r.status == http.StatusOK || strings.Contains(string(r.body), "done") {
				t.Errorf("%d %s", r.status, r.body)
			}
			set(false)
			mcptest.Eventually(t, "the session to go on", time.Minute, func() bool {
				r := p.post(callAs("2", "steps", `{"key":"again","n":1}`))
				return r.status == http.StatusOK && len(r.texts()) == 2
			})
		})
	}
}
