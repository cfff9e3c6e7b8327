package e2e

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// Failure 1: a node with idle sessions is killed. The sessions go on at the other nodes. Any
// request in a session that never was is answered with 404.
func TestClusterIdle(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{})
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		idle := f.client(fixed(a.url()), fixed(b.url()))
		used := f.client(fixed(a.url()), f.balanced)
		q := request{tool: "work", args: workArgs{ID: callID(t, "before"), Steps: 2, MS: 20}}
		used.call(bounded(t, time.Minute), q).want(t, q, false)
		a.kill()
		for i, r := range []*specClient{idle, used, idle, used} {
			q := request{tool: "work", args: workArgs{ID: callID(t, i), Steps: 2, MS: 20}}
			f.whole(q, r.call(bounded(t, time.Minute), q))
		}
		for _, n := range []*node{b, c} {
			for _, method := range []string{"POST", "GET", "DELETE"} {
				stranger := &specClient{at: fixed(n.url()), session: strings.Repeat("x", len(idle.session)), http: idle.http}
				body := ""
				if method == "POST" {
					body = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
				}
				if r := stranger.exchange(t, method, body); r.Status != http.StatusNotFound {
					t.Errorf("%s of a session that never was: %d: %s", method, r.Status, r.Body)
				}
			}
		}
		// DELETE at any node ends a session, wherever its owner is.
		if r := used.exchange(t, "DELETE", ""); r.Status/100 != 2 {
			t.Errorf("DELETE: %d: %s", r.Status, r.Body)
		}
		for _, n := range []*node{b, c} {
			used.at = fixed(n.url())
			if r := used.exchange(t, "GET", ""); r.Status != http.StatusNotFound {
				t.Errorf("GET of a session that was deleted: %d: %s", r.Status, r.Body)
			}
		}
	})
}

// bounded returns the test's context with a timeout.
func bounded(t *testing.T, after time.Duration) context.Context {
	ctx, stop := context.WithTimeout(t.Context(), after)
	t.Cleanup(stop)
	return ctx
}

// Failure 2: a node is killed in the middle of calls. Their clients, connected to it or to
// another node, soon get exactly one end of each: the result, if the tool is retry-safe, else
// the error "outcome unknown".
func TestClusterMidCall(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{})
		var took []time.Duration
		const kills, clients = 2, 8
		for k := range kills {
			owner, others := f.nodes[k], []*node{f.nodes[(k+1)%3], f.nodes[(k+2)%3]}
			took = append(took, f.killInCalls(owner, others, clients)...)
			owner.restart()
		}
		wantSoon(t, "from SIGKILL to a call's end", took)
	})
}

// killInCalls has clients make calls at a node, some of them through the others, and kills it.
// For the calls that were not run again it returns the times from the kill to the error.
func (f *fleet) killInCalls(owner *node, others []*node, clients int) []time.Duration {
	t := f.t
	t.Helper()
	ctx := bounded(t, time.Minute)
	told := make([]<-chan *callRecord, clients)
	begun := time.Now()
	requests := make([]request, clients)
	for i := range clients {
		at := prefer(slices.Concat([]*node{owner}, others)...)
		if i%4 >= 2 {
			at = fixed(others[i%2].url()) // this client keeps its connection
		}
		r := f.client(fixed(owner.url()), at)
		if f.remote {
			r.listTools(t)
		}
		q := request{tool: "work", args: workArgs{ID: callID(t, owner.name, i), Steps: 100, MS: 20_000}}
		if i%2 == 1 {
			q.tool, q.args.Steps, q.args.MS = "look", 20, 2_000
		}
		requests[i] = q
		told[i] = start(ctx, r, q)
	}
	f.running(requests...)
	time.Sleep(300 * time.Millisecond) // so that the calls send some progress
	killed := time.Now()
	owner.kill()
	var took []time.Duration
	for i, q := range requests {
		s := <-told[i]
		s.want(t, q, q.tool == "work")
		if q.tool == "look" { // it is run again, as it is safe
			if killed.Sub(begun) < 2*time.Second { // else the machine is slow, and the call may have ended before the kill
				f.wantRuns(q.args.ID, 2, 2)
			}
			continue
		}
		f.wantRuns(q.args.ID, 1, 1)
		took = append(took, s.ended.Sub(killed))
	}
	return took
}

// wantSoon logs how long take-overs took. The target is a median of 1 s and 3 s at the most on
// an idle machine, which bench measures. Here it checks only that no client waits for its own
// timeout, or for ever.
func wantSoon(t *testing.T, what string, took []time.Duration) {
	t.Helper()
	if len(took) == 0 {
		t.Errorf("%s: nothing was measured", what)
		return
	}
	slices.Sort(took)
	median, worst := took[len(took)/2], took[len(took)-1]
	t.Logf("%s: median %v, worst %v of %d", what, median.Round(time.Millisecond), worst.Round(time.Millisecond), len(took))
	if worst > 30*time.Second {
		t.Errorf("%s: %v", what, worst)
	}
}

// Failure 5: a connection to one node is half-open when its client comes back at another node.
// The newest reader gets the call.
func TestClusterGhost(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{})
		ctx := bounded(t, time.Minute)
		var calls []request
		var told []<-chan *callRecord
		began := time.Now()
		for i, at := range f.nodes {
			via, n := behind(t, at.url(), 1, func(string) Cut { return Cut{Bytes: 700, HalfOpen: true} }), 0
			r := f.client(fixed(f.nodes[0].url()), nil)
			r.at = func() string {
				if n++; n == 1 {
					return via
				}
				return f.nodes[(i+1)%3].url()
			}
			q := request{tool: "work", args: workArgs{ID: callID(t, i), Steps: 20, MS: 1_000}}
			calls, told = append(calls, q), append(told, start(ctx, r, q))
		}
		for i, q := range calls {
			s := <-told[i]
			f.whole(q, s)
			t.Logf("call %d of 1 s took %v", i, s.ended.Sub(began))
		}
		// A client reads a call at one node while it has an older connection for the call at another node: that is closed.
		r := f.client(fixed(f.nodes[1].url()), fixed(f.nodes[0].url()))
		q := request{tool: "work", key: `"twice"`, args: workArgs{ID: callID(t, "twice"), Steps: 30, MS: testlong.Either(3_000, 6_000)}}
		closed := make(chan time.Time, 1)
		old := &specClient{at: r.at, session: r.session, http: r.http}
		go func() {
			if r, err := old.now().Exchange(ctx, "POST", q.body(5), "Idempotency-Key", q.key); r.Status == 0 { // else err is a cut
				t.Error(err)
			}
			closed <- time.Now()
		}()
		f.running(q)
		r.at = fixed(f.nodes[2].url())
		s := r.ask(ctx, 5, q, "")
		select {
		case at := <-closed:
			if at.After(s.ended) {
				t.Error("the older connection was closed when the call ended")
			}
		case <-time.After(time.Minute):
			t.Error("the older connection is still open")
		}
		f.whole(q, s)
	})
}

// Failure 7: the response to a call is lost, and its client sends the call again at another
// node, with the same idempotency key: while the owner lives, and after it was killed. The tool
// runs once.
func TestClusterAskedAgain(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{})
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		r := f.client(fixed(a.url()), fixed(a.url()))
		ask := func(at *node, q request) *callRecord {
			r.at = fixed(at.url())
			return r.ask(bounded(t, time.Minute), 77, q, "")
		}
		done := request{tool: "work", key: `"done"`, args: workArgs{ID: callID(t, "done"), Steps: 2, MS: 20}}
		for _, at := range []*node{a, b, c, b} {
			f.whole(done, ask(at, done))
		}
		if r := r.exchange(t, "POST", mcptest.Call(78, "work", `{}`), "Idempotency-Key", done.key); r.Status != http.StatusUnprocessableEntity {
			t.Errorf("another request under the key: %d: %s", r.Status, r.Body)
		}

		// The client loses its connection in the middle of a call.
		cut := request{tool: "work", key: `"cut"`, args: workArgs{ID: callID(t, "cut"), Steps: 100, MS: 20_000}}
		r.at = fixed(a.url())
		ctx, stop := context.WithCancel(t.Context())
		resp, err := r.now().Send(ctx, "POST", cut.body(77), "Idempotency-Key", cut.key)
		mcptest.Check(t, err)
		f.running(cut)
		stop()
		resp.Body.Close()
		a.kill()
		for _, at := range []*node{b, c} {
			ask(at, cut).want(t, cut, true)
		}
		f.wantRuns(cut.args.ID, 1, 1)
		f.whole(done, ask(c, done))
	})
}
