package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// panicFile is a file in the directory of traces. While it exists, the function that returns
// the server of a library node panics.
const panicFile = "panic"

func brittleServer(traces string, work *mcp.Server) func(*http.Request) *mcp.Server {
	return func(*http.Request) *mcp.Server {
		if _, err := os.Stat(filepath.Join(traces, panicFile)); err == nil {
			panic("hunter2")
		}
		return work
	}
}

// Failure 17: a node is killed in the middle of retry-safe calls, and the user's function that
// returns a server panics at the node which takes them over. The outcome of these calls is
// unknown; no other node is lost, and all other clients are served.
func TestClusterPanics(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		if e.redis == nil {
			testlong.Only(t, "it takes half a minute")
		}
		f := newFleet(t, e, shape{library: true})
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		ctx := bounded(t, 2*time.Minute)
		idle := f.client(fixed(a.url()), prefer(b, c))
		here := f.client(fixed(b.url()), fixed(b.url()))
		long := request{tool: "look", args: workArgs{ID: callID(t, "here"), Steps: 0, MS: 3_000}}
		var all sync.WaitGroup
		var requests []request
		records := make([]*callRecord, 4)
		for i := range records {
			at := []*node{b, c}[i%2]
			r := f.client(fixed(a.url()), fixed(at.url()))
			if code, said := status(t, r, "POST", nil, `{"jsonrpc":"2.0","id":"tools","method":"tools/list"}`); code != http.StatusOK {
				t.Fatalf("tools/list: %d %s", code, said) // else a node on a slow machine may not yet know that the tool is retry-safe
			}
			q := request{tool: "look", args: workArgs{ID: callID(t, i), Steps: 0, MS: 60_000}}
			requests = append(requests, q)
			all.Go(func() { records[i] = r.call(ctx, q) })
		}
		var whole *callRecord
		all.Go(func() { whole = here.call(ctx, long) })
		for _, q := range append(requests, long) {
			mcptest.Eventually(t, "the calls run", time.Minute, func() bool { return f.runs(q.args.ID) == 1 })
		}
		trap := filepath.Join(f.traces, panicFile)
		mcptest.Check(t, os.WriteFile(trap, nil, 0o600))
		a.kill()
		all.Wait()
		for i, s := range records {
			if err := s.check(requests[i]); err != nil || !s.over() || !s.unknown() || !strings.Contains(s.last(), "opening the server panicked") {
				t.Errorf("call %d: %v, received %q", i, err, s.received)
			}
			f.wantRuns(requests[i].args.ID, 1, 1)
		}
		if err := whole.check(long); err != nil || !whole.over() || whole.unknown() {
			t.Errorf("a call at another node: %v, received %q", err, whole.received)
		}
		mcptest.Check(t, os.Remove(trap))
		for i, r := range []*specClient{idle, here, f.client(fixed(c.url()), fixed(c.url()))} {
			q := request{tool: "work", args: workArgs{ID: callID(t, "after", i), Steps: 1, MS: 1}}
			if s := r.call(ctx, q); s.check(q) != nil || !s.over() || s.unknown() {
				t.Errorf("afterwards, %d: %v, received %q", i, s.check(q), s.received)
			}
		}
		for _, n := range []*node{b, c} {
			if !n.alive() {
				t.Errorf("node %s has ended", n.name)
			}
		}
	})
}
