package e2e

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

var everyByte = flag.Int("cluster.stride", 29, "TestClusterReplay cuts a call's response after every so many bytes; 1: after each")

// Failure 4: the response to a call and each resumed stream are cut at any byte, by FIN, by RST
// and half-open, also while the call ends. The client resumes at another node each time, and
// receives every message once and in order.
func TestClusterReplay(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{})
		var cuts atomic.Int64
		var places []string
		for _, n := range f.nodes {
			places = append(places, behind(t, n.url(), 0, func(string) Cut {
				i := int(cuts.Add(1))
				if i%3 == 0 {
					return Cut{} // so that the call's end arrives some time
				}
				return Cut{Bytes: 1 + i**everyByte%1400, Body: true, Reset: i%2 == 0, HalfOpen: i%5 == 0}
			}))
		}
		calls := 1400 / *everyByte
		var all sync.WaitGroup
		for k := range 3 { // a session at each node
			s := f.client(fixed(f.nodes[k].url()), nil)
			for i := range calls / 3 {
				r := &specClient{session: s.session, http: s.http}
				r.ids.Store(int64(1000 * i))
				var at atomic.Int64
				r.at = func() string { return places[int(at.Add(1))%3] }
				q := request{tool: "work", key: fmt.Sprintf(`"%d"`, i), args: workArgs{ID: callID(t, k, i), Steps: 8, MS: 40 * (i % 5)}}
				all.Go(func() { f.whole(q, r.call(bounded(t, time.Minute), q)) })
			}
		}
		all.Wait()
		t.Logf("%d connections", cuts.Load())
	})
}

// A node is killed while client libraries wait for retry-safe calls in its sessions: the calls run again, and
// the libraries receive the results.
func TestClusterLibraries(t *testing.T) {
	testlong.Only(t, "its calls take seconds; TestClusterMidCall kills their owner too")
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{})
		begun := make(chan struct{})
		all := f.front.nodes
		f.front.nodes = func() []string {
			select {
			case <-begun:
				return all()
			default:
				return []string{f.nodes[0].address()}
			}
		}
		transports := map[string]func() mcp.Transport{
			"ours":   f.ours,
			"go-sdk": func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: f.front.URL, MaxRetries: 20} },
		}
		var calls sync.WaitGroup
		for name, transport := range transports {
			for i := range 4 {
				v := f.officialClient(transport())
				q := request{tool: "look", args: workArgs{ID: callID(t, name, i), Steps: 20, MS: 2_000}}
				calls.Go(func() {
					<-begun
					v.call(bounded(t, time.Minute), q).want(t, q, false)
				})
			}
		}
		close(begun)
		mcptest.Eventually(t, "the calls run", time.Minute, func() bool {
			for name := range transports {
				for i := range 4 {
					if f.runs(callID(t, name, i)) == 0 {
						return false
					}
				}
			}
			return true
		})
		time.Sleep(500 * time.Millisecond) // so that the calls send some progress
		f.nodes[0].kill()
		calls.Wait()
		for name := range transports {
			again := 0
			for i := range 4 {
				again += f.runs(callID(t, name, i)) - 1
			}
			if again == 0 {
				t.Errorf("%s: no call ran again, as if none was at the node that was killed", name)
			}
		}
	})
}

// A tool asks its client, and the client answers at another node than the owner. If the owner
// is killed before the answer, the call ends, and the answer is not taken for the answer to
// another question.
func TestClusterAsk(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{})
		ask := func(id string) request { return request{tool: "ask", args: workArgs{ID: id}} }
		v := f.officialClient(f.ours()) // each of its requests goes to the next node
		for i := range 4 {
			go func() { <-v.answers }()
			if s := v.call(bounded(t, time.Minute), ask(callID(t, i))); s.err != nil || s.last() != "result Ada" {
				t.Errorf("call %d: %v, received %q", i, s.err, s.received)
			}
		}
		q := ask(callID(t, "lost"))
		ctx := bounded(t, time.Minute)
		answered := start(ctx, v, q)
		f.running(q)
		// Kill the nodes one after the other, so that the owner is killed too.
		for _, n := range f.nodes[:2] {
			n.kill()
			n.restart()
		}
		f.nodes[2].kill()
		// Now the user answers this question and all later ones.
		go func() {
			for {
				select {
				case <-v.answers:
				case <-ctx.Done():
					return
				}
			}
		}()
		if s := <-answered; s.err != nil || !strings.HasPrefix(s.last(), "error outcome unknown") {
			t.Errorf("%v, received %q, want that the outcome is unknown", s.err, s.received)
		}
		q = ask(callID(t, "after"))
		if s := v.call(ctx, q); s.err != nil || s.last() != "result Ada" {
			t.Errorf("the next call: %v, received %q", s.err, s.received)
		}
	})
}

// Nodes are killed one after the other while retry-safe calls of the TypeScript clients run.
func TestClusterTypeScript(t *testing.T) {
	npm(t, sdk1, sdk2)
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		for _, sdk := range []int{1, 2} {
			f := newFleet(t, e, shape{library: true})
			var calls []toolCall
			for i := range 4 {
				calls = append(calls, toolCall{"look", map[string]any{"id": callID(t, sdk, i), "steps": 30, "ms": 5000}})
			}
			var killer sync.WaitGroup
			killer.Go(func() {
				all := func() bool {
					return !slices.ContainsFunc(calls, func(c toolCall) bool { return f.runs(c.Arguments["id"].(string)) == 0 })
				}
				for end := time.Now().Add(20 * time.Second); !all() && time.Now().Before(end); {
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(time.Second) // so that each client has received an event of its calls: without an event id or a key it could not resume
				for _, n := range f.nodes {
					time.Sleep(300 * time.Millisecond)
					n.kill()
					n.restart()
				}
			})
			r := client(t, script{SDK: sdk, URL: f.front.URL, Retries: 100, Calls: calls})
			killer.Wait()
			want := counted(0, 30)
			want[30] = "response"
			for i, call := range r.Calls {
				if call.Error != "" || call.Result == nil || !slices.Equal(call.Heard, want) || call.Result.Content[0].Text != "did "+callID(t, sdk, i) {
					t.Errorf("SDK %d, call %d: %q, got %+v, received %q", sdk, i, call.Error, call.Result, call.Heard)
				}
			}
		}
	})
}
