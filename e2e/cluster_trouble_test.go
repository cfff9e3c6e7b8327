package e2e

import (
	"context"
	"flag"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

var engineAway = flag.Duration("cluster.away", 3*time.Second, "how long the engine is away in TestClusterTrouble; FAILURES asks for 10s")

// Failure 13: the engine restarts, or does not answer; nodes are cut off from it, or are
// stopped. Calls wait, or fail with the reason; no call is lost or run twice. (Between nodes
// and engine are TCP proxies that pass no byte when they are cut; nodes are stopped by
// SIGSTOP.)
func TestClusterTrouble(t *testing.T) {
	testlong.Only(t, "it takes half a minute")
	t.Parallel()
	eachEngine(t, true, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{wires: true})
		watched, stopWatching := context.WithCancel(t.Context())
		var watchers sync.WaitGroup
		f.front.watch(watched, &watchers, f.nodes)
		t.Cleanup(func() { stopWatching(); watchers.Wait() })
		sum := &score{}
		calling := f.calling(f.callers(9), sum)
		for _, tr := range []struct {
			name  string
			cause func()
		}{
			{"a server is killed and comes back, with its data", func() {
				restart := e.kill(t)
				time.Sleep(time.Second)
				restart()
			}},
			{"the whole engine is away", func() {
				e.pause()
				time.Sleep(*engineAway)
				e.resume()
			}},
			{"a node is cut off from the engine, not from its clients", func() {
				f.nodes[0].deaden()
				time.Sleep(3 * time.Second)
				f.nodes[0].heal()
			}},
			{"a node is cut off from its clients, not from the engine", func() {
				f.front.shun(f.nodes[1].address())
				time.Sleep(time.Second)
				f.front.shun("")
			}},
			{"a node stands still, and wakes", func() {
				f.nodes[2].signal(syscall.SIGSTOP)
				time.Sleep(4 * time.Second)
				f.nodes[2].signal(syscall.SIGCONT)
			}},
		} {
			began := sum.total()
			tr.cause()
			mcptest.Eventually(t, "calls are made again after "+tr.name, 25*time.Second, func() bool { return sum.total() > began+9 })
			t.Logf("%s: %d calls", tr.name, sum.total()-began)
		}
		calling.end()
		sum.report(t, 0)
	})
}

func (s *score) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// pause stops all servers of the engine with SIGSTOP.
func (e *sharedEngine) pause() {
	if e.redis != nil {
		e.redis.Pause()
		return
	}
	for i := range e.nats.Len() {
		_ = e.nats.Pause(i) // it runs
	}
}

// resume continues the servers that pause has stopped.
func (e *sharedEngine) resume() {
	if e.redis != nil {
		e.redis.Resume()
		return
	}
	for i := range e.nats.Len() {
		_ = e.nats.Resume(i) // it runs
	}
}

// shun has the front pass over the node at addr, as if it could not be reached; "": no node.
func (f *front) shun(addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shunned = addr
}

// An owner that was stopped, or cut off from the engine, cannot write when it is back: its
// calls have ended for their clients, each of which gets one end, at any node.
func TestClusterFenced(t *testing.T) {
	testlong.Only(t, "its nodes are away for 4 s, twice")
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		for name, by := range map[string]struct{ freeze, thaw func(n *node) }{
			"SIGSTOP": {
				func(n *node) { n.signal(syscall.SIGSTOP) },
				func(n *node) { n.signal(syscall.SIGCONT) },
			},
			"cut off": {(*node).deaden, (*node).heal},
		} {
			// One after the other: fleets on one engine are one cluster, and would notice each
			// other's frozen nodes.
			t.Run(name, func(t *testing.T) {
				f := newFleet(t, e, shape{wires: true})
				owner, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
				ctx := bounded(t, 40*time.Second)
				places := []func() string{fixed(owner.url()), fixed(b.url()), fixed(c.url())}
				told := make([]<-chan *callRecord, 6)
				requests := make([]request, len(told))
				for i := range told {
					r := f.client(fixed(owner.url()), places[i%3])
					q := request{tool: "work", args: workArgs{ID: callID(t, i), Steps: 60, MS: 6_000}}
					if i >= 3 {
						q.tool = "look"
						q.args.Steps, q.args.MS = 10, 2_000
					}
					requests[i] = q
					told[i] = start(ctx, r, q)
				}
				f.running(requests...)
				by.freeze(owner)
				began := time.Now()
				time.Sleep(4 * time.Second)
				records := make([]*callRecord, len(told))
				for _, i := range []int{1, 2, 4, 5, 0, 3} {
					if i == 0 { // the clients that are connected to other nodes have their answers
						by.thaw(owner)
					}
					records[i] = <-told[i]
				}
				var took []time.Duration
				for i, s := range records {
					q := requests[i]
					if err := s.check(q); err != nil || !s.over() {
						t.Errorf("%s, call %d at node %s: %v, received %q", q.tool, i, f.nodes[i%3].name, err, s.received)
						continue
					}
					if i%3 != 0 {
						took = append(took, s.ended.Sub(began))
						// The other node has taken the call over, and has ended it or run it again.
						if q.tool == "look" {
							f.wantRuns(q.args.ID, 2, 2)
						}
						if s.unknown() != (q.tool == "work") {
							t.Errorf("%s, call %d at node %s ended with %q", q.tool, i, f.nodes[i%3].name, s.last())
						}
					}
					if q.tool == "work" {
						f.wantRuns(q.args.ID, 1, 1)
					}
				}
				slices.Sort(took)
				t.Logf("ended after %v", took)
				// Clients can begin sessions at each node, also at the node that was away.
				for i, n := range f.nodes {
					r := f.client(fixed(n.url()), f.balanced)
					q := request{tool: "work", args: workArgs{ID: callID(t, "after", i), Steps: 3, MS: 30}}
					r.call(ctx, q).want(t, q, false)
				}
			})
		}
	})
}

// The engine restarts without its data, as some engines are configured: sessions are lost,
// clients get a 404 soon, and can begin new sessions.
func TestClusterDataLost(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		if e.redis == nil {
			t.Skip("JetStream has its data on disk, on three servers")
		}
		f := newFleet(t, e, shape{})
		idle := f.client(fixed(f.nodes[0].url()), fixed(f.nodes[1].url()))
		busy := f.client(fixed(f.nodes[0].url()), fixed(f.nodes[0].url()))
		ctx := bounded(t, 40*time.Second)
		q := request{tool: "work", args: workArgs{ID: callID(t), Steps: 30, MS: 3_000}}
		told := start(ctx, busy, q)
		f.running(q)
		e.redis.MustDo("FLUSHALL")
		e.redis.Kill()
		e.redis.Restart()
		if s := <-told; (s.check(q) != nil || !s.unknown()) && (s.err == nil || !strings.Contains(s.err.Error(), "404")) {
			t.Errorf("who was in a call: %v, received %q", s.err, s.received)
		}
		f.wantRuns(q.args.ID, 1, 1)
		if r := idle.exchange(t, "POST", mcptest.Request(9, "tools/list", "")); r.Status != http.StatusNotFound {
			t.Errorf("who was idle: %d: %s", r.Status, r.Body)
		}
		fresh := f.client(f.balanced, f.balanced)
		q = request{tool: "work", args: workArgs{ID: callID(t, "after"), Steps: 3, MS: 30}}
		fresh.call(ctx, q).want(t, q, false)
	})
}
