package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// panicFile is a file in the directory of traces. While it exists, the function that returns
// the server of a library node panics.
const panicFile = "panic"

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
		var requests []request
		told := make([]<-chan *callRecord, 4)
		for i := range told {
			at := []*node{b, c}[i%2]
			r := f.client(fixed(a.url()), fixed(at.url()))
			r.listTools(t)
			q := request{tool: "look", args: workArgs{ID: callID(t, i), Steps: 0, MS: 60_000}}
			requests = append(requests, q)
			told[i] = start(ctx, r, q)
		}
		whole := start(ctx, here, long)
		f.running(append(requests, long)...)
		trap := filepath.Join(f.traces, panicFile)
		mcptest.Check(t, os.WriteFile(trap, nil, 0o600))
		a.kill()
		for i, q := range requests {
			s := <-told[i]
			if s.want(t, q, true); !strings.Contains(s.last(), "opening the server panicked") {
				t.Errorf("call %d: received %q", i, s.received)
			}
			f.wantRuns(q.args.ID, 1, 1)
		}
		f.whole(long, <-whole)
		mcptest.Check(t, os.Remove(trap))
		for i, r := range []*specClient{idle, here, f.client(fixed(c.url()), fixed(c.url()))} {
			q := request{tool: "work", args: workArgs{ID: callID(t, "after", i), Steps: 1, MS: 1}}
			r.call(ctx, q).want(t, q, false)
		}
		for _, n := range []*node{b, c} {
			if !n.alive() {
				t.Errorf("node %s has ended", n.name)
			}
		}
	})
}
