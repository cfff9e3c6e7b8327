package e2e

import (
	"context"
	"flag"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// The size of TestClusterDeploy. FAILURES asks for
//
//	go test ./e2e -run TestClusterDeploy -long -cluster.deploy 1000 -cluster.drain 30s -cluster.library
var (
	deployClients = flag.Int("cluster.deploy", 24, "how many clients TestClusterDeploy has")
	deployDrain   = flag.Duration("cluster.drain", 20*time.Second, "its --drain")
	deployCall    = flag.Duration("cluster.deploycall", 1500*time.Millisecond, "its clients make calls of up to that long, and rest for up to as long")
	deployLibrary = flag.Bool("cluster.library", false, "its nodes have the server in them: no process for each session")
	deployBlind   = flag.Bool("cluster.blind", false, "its front does not ask whether nodes are ready")
)

// leaveBound is how much longer than its --drain a node may take to end, by the guide for
// operators.
const leaveBound = 10 * time.Second

// Failure 8: each node in turn is told to stop and is replaced, while clients have calls and
// open streams. The front asks whether nodes are ready, as load balancers do. No call is lost,
// cut short or run twice, and the nodes exit with 0. Some clients come back for ever, and some
// give up after two tries.
func TestClusterDeploy(t *testing.T) {
	testlong.Only(t, "it takes half a minute")
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{library: *deployLibrary, flags: []string{"--drain", deployDrain.String()}})
		watched, stopWatching := context.WithCancel(t.Context())
		var all sync.WaitGroup
		if !*deployBlind {
			f.front.watch(watched, &all, f.nodes)
		}
		sum := &score{}
		ctx, stop := context.WithCancel(t.Context())
		var idle atomic.Int64
		var callers []caller
		for i := range *deployClients {
			r := f.client(f.balanced, f.balanced)
			if i%3 == 0 {
				all.Go(func() { f.listen(ctx, r, &idle) })
				continue
			}
			if i%3 == 1 {
				r.tries = 2
			}
			callers = append(callers, r)
		}
		calling := f.calling(callers, sum, tempo{call: *deployCall, step: *deployCall / 5, rest: *deployCall})
		for _, n := range f.nodes {
			time.Sleep(500 * time.Millisecond) // calls go on
			began := time.Now()
			if err := n.terminate(*deployDrain + leaveBound); err != nil {
				t.Errorf("node %s: %v", n.name, err)
			}
			t.Logf("node %s took %v to end", n.name, time.Since(began).Round(time.Millisecond))
			n.restart()
			mcptest.Eventually(t, "the new node is ready", 30*time.Second, func() bool { return n.ready() == http.StatusOK })
		}
		calling.end()
		stop()
		stopWatching()
		all.Wait()
		sum.report(t, 0)
		if sum.unknown+sum.unsure+sum.again > 0 {
			t.Errorf("%d calls were told that nobody knows, %d were cut off before they could know, %d ran again: want 0",
				sum.unknown, sum.unsure, sum.again)
		}
		t.Logf("%d times who listens came back", idle.Load())
	})
}

// listen keeps a standalone stream open, as an idle client does.
func (f *fleet) listen(ctx context.Context, r *specClient, again *atomic.Int64) {
	s := newRecord()
	for ctx.Err() == nil {
		if resp, err := r.now().Send(ctx, "GET", "", "Last-Event-ID", s.lastID); err == nil {
			_ = s.take(0, resp) // a lost connection is no error of a stream
			if s.err != nil {
				f.t.Errorf("who listens: %v", s.err)
				return
			}
			again.Add(1)
		}
		select {
		case <-time.After(s.retry):
		case <-ctx.Done():
		}
	}
}

// watch has the front pass over nodes that are not ready, until ctx is done. If no node is
// ready, the front uses all, as load balancers do: it may itself have stalled while it waited
// for their answers.
func (f *front) watch(ctx context.Context, all *sync.WaitGroup, nodes []*node) {
	var mu sync.Mutex
	out := make(map[*node]bool)
	for _, n := range nodes {
		all.Go(func() {
			for tick := time.NewTicker(50 * time.Millisecond); ctx.Err() == nil; <-tick.C {
				status := n.ready()
				mu.Lock()
				out[n] = status != http.StatusOK
				mu.Unlock()
			}
		})
	}
	f.nodes = func() (addrs []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range nodes {
			if !out[n] {
				addrs = append(addrs, n.address())
			}
		}
		if len(addrs) > 0 {
			return addrs
		}
		for _, n := range nodes {
			addrs = append(addrs, n.address())
		}
		return addrs
	}
}
