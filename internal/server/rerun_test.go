package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
)

// A twiceCase is a POST to a node that does not own its session, with the answers to its requests
// if the owner is lost meanwhile.
type twiceCase struct {
	name, version, body string
	holds               int      // number of calls that do not end by themselves
	keys                []string // keys of the calls that must run once
	lost                map[string]string
}

const nobodyKnows = `"code":-32010,"message":"outcome unknown`

var twiceCases = []twiceCase{
	{name: "single", version: "2025-11-25", body: callAs("1", "hold", `{"key":"single"}`), holds: 1,
		keys: []string{"single"}, lost: map[string]string{"1": nobodyKnows}},
	{name: "old single", version: "2025-03-26", body: callAs(`"a"`, "hold", `{"key":"old"}`), holds: 1,
		keys: []string{"old"}, lost: map[string]string{`"a"`: nobodyKnows}},
	{name: "vendor", version: "2025-11-25", body: vendorCall("1", "vendor"), holds: 1,
		keys: []string{"vendor"}, lost: map[string]string{"1": nobodyKnows}},
	{name: "batch", version: "2025-03-26", holds: 2, keys: []string{"b1", "b2"},
		body: "[" + callAs("1", "hold", `{"key":"b1"}`) + "," + callAs("2", "hold", `{"key":"b2"}`) + "]",
		lost: map[string]string{"1": nobodyKnows, "2": nobodyKnows}},
	// The first call's answer is stored before the node is lost.
	{name: "half a batch", version: "2025-03-26", holds: 1, keys: []string{"h1", "h2"},
		body: "[" + callAs("1", "steps", `{"key":"h1"}`) + "," + vendorCall("2", "h2") + "]",
		lost: map[string]string{"1": "done", "2": nobodyKnows}},
	{name: "safe", version: "2025-11-25", body: callAs("1", "safe_hold", `{"key":"safe"}`), holds: 1,
		lost: map[string]string{"1": "done"}},
}

// TestTwice kills, or cuts off, the node that runs calls while their clients are connected to
// another. Calls that are not retry-safe run once, and each request has one answer, as JSON.
func TestTwice(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"killed", "cut off", "killed after the answers"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, 2, config{server: server.Options{Response: server.ResponseJSON}})
			a, b := f.nodes[0], f.nodes[1]
			holds := 0
			replies := make([]reply, len(twiceCases))
			var all sync.WaitGroup
			for i, x := range twiceCases {
				holds += x.holds
				p := a.connect(x.version, nil).at(b)
				all.Go(func() { replies[i] = p.post(x.body) })
			}
			held := a.release(holds)
			mcptest.Eventually(t, "the call that ends to run", time.Minute, func() bool { return f.runs("h1") == 1 })
			end := func(held []*message.Exchange) {
				for _, x := range held {
					x.Result(result("done"))
				}
			}
			switch how {
			case "cut off":
				a.handle.Cut(true)
			case "killed after the answers": // the answers are stored, and get lost on their way
				b.handle.Cut(true)
				end(held)
				mcptest.Eventually(t, "the calls to end", time.Minute, func() bool { return a.sessions.Calls()+a.sessions.Readers() == 0 })
				a.kill()
				b.handle.Cut(false)
			default:
				a.kill()
			}
			end(b.release(1)) // the retry-safe call
			all.Wait()
			if how == "cut off" { // the first node ends its calls, too, without effect
				a.handle.Cut(false)
				end(held)
			}
			for i, x := range twiceCases {
				want := maps.Clone(x.lost)
				for id := range want {
					if how == "killed after the answers" {
						want[id] = "done"
					}
				}
				x.check(t, f, replies[i], want)
			}
		})
	}
}

// check checks the answer to a case.
func (x *twiceCase) check(t *testing.T, f *farm, r reply, want map[string]string) {
	t.Helper()
	for _, key := range x.keys {
		if n := f.runs(key); n != 1 {
			t.Errorf("%s: %s ran %d times", x.name, key, n)
		}
	}
	if r.header.Get("Content-Type") != "application/json" || !r.whole {
		t.Errorf("%s: %d %v %s", x.name, r.status, r.header, r.body)
		return
	}
	body := r.body
	if body[0] != '[' {
		body = fmt.Appendf(nil, "[%s]", body)
	}
	var got []struct {
		ID            json.RawMessage
		Result, Error json.RawMessage
	}
	if err := json.Unmarshal(body, &got); err != nil {
		t.Errorf("%s: %v in %s", x.name, err, r.body)
	}
	if len(got) != len(want) {
		t.Errorf("%s: %s", x.name, r.body)
	}
	for _, m := range got {
		if said := string(m.Result) + string(m.Error); want[string(m.ID)] == "" || !strings.Contains(said, want[string(m.ID)]) {
			t.Errorf("%s: %s is answered %s, want %s", x.name, m.ID, said, want[string(m.ID)])
		}
	}
}

// TestVendorOnce kills the node that runs a method which is not in the specification, while the
// client is connected to another. The method does not run again.
func TestVendorOnce(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]server.Response{"auto": server.ResponseAuto, "sse": server.ResponseSSE} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, 2, config{server: server.Options{Response: mode}})
			p := f.nodes[0].connect("2025-11-25", nil)
			w := p.at(f.nodes[1]).open("POST", "/mcp", vendorCall("1", "k"))
			f.nodes[0].release(1)
			f.nodes[0].kill()
			r := w.all()
			if said := r.texts(); len(said) != 1 || !strings.Contains(said[0], nobodyKnows) || f.runs("k") != 1 {
				t.Errorf("%d runs; answered %d %s", f.runs("k"), r.status, r.body)
			}
		})
	}
}

// vendorCall returns a request of a vendor's method that does not end by itself.
func vendorCall(id, key string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"vendor/call","params":{"name":"hold","arguments":{"key":%q}}}`, id, key)
}

// TestRerunUnknown kills the node that runs a light call, which is not stored. The node that
// makes it again would store it, as it does not know that the tool is retry-safe, and can't start
// its backend. The call has run: the client gets "outcome unknown".
func TestRerunUnknown(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 1, config{})
	f.start(config{server: server.Options{Response: server.ResponseSSE}, backend: &counted{err: errors.New("no server today")}})
	a, b := f.nodes[0], f.nodes[1]
	a.meets(1)
	b.meets(1)
	w := a.connect("2025-11-25", nil).at(b).open("POST", "/mcp", call("safe_hold", `{"key":"k"}`))
	a.release(1)
	a.kill()
	r := w.all()
	if said := r.texts(); len(said) != 1 || !strings.Contains(said[0], nobodyKnows) {
		t.Errorf("answered %d %s", r.status, r.body)
	}
}
