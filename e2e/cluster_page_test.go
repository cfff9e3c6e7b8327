package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A pageView has the members that the tests read of a view that is sent to a live page.
type pageView struct {
	At       int64      `json:"at"`
	Node     string     `json:"node"`
	Nodes    []pageNode `json:"nodes"`
	Calls    []pageCall `json:"calls"`
	Sessions []struct {
		Name, Node, State string
	} `json:"sessions"`
	Life *struct {
		pageCall
		Ticks []struct {
			Seq  uint64 `json:"seq"`
			Kind string `json:"kind"`
		} `json:"ticks"`
		Bars  []struct{ Why string } `json:"bars"`
		Moves []struct {
			From, To string
			First    uint64
			Unknown  bool
		} `json:"moves"`
	} `json:"life"`
}

type pageNode struct {
	Name  string `json:"name"`
	Role  string `json:"role"`
	State string `json:"state"`
}

type pageCall struct {
	UID   string `json:"uid"`
	Key   string `json:"key"`
	Tool  string `json:"tool"`
	Node  string `json:"node"`
	State string `json:"state"`
	From  string `json:"from"`
	Heard int64  `json:"heard"`
	Ended int64  `json:"ended"`
}

// ofTool returns the call of a tool. There is at most one.
func (v *pageView) ofTool(tool string) (c pageCall) {
	for _, one := range v.Calls {
		if one.Tool == tool {
			c = one
		}
	}
	return c
}

// A livePage is a page that is open, possibly with the life of one call.
type livePage struct {
	t *testing.T

	mu     sync.Mutex
	last   pageView
	steps  map[string][]string // by a call's key, the states in which it was shown, each with the node
	tools  map[string]string   // the tool, by a call's key
	killed string              // the node that was killed
	when   int64               // the time of the kill
	all    int                 // number of views
}

// openPage opens the page of a node. The page checks each view.
func openPage(t *testing.T, n *node, chosen string) *livePage {
	t.Helper()
	p := &livePage{t: t, steps: make(map[string][]string), tools: make(map[string]string)}
	events := (&mcptest.Client{URL: "http://" + n.now().admin + "/live/events?call=" + url.QueryEscape(chosen)}).Stream(t, http.MethodGet, "")
	done := make(chan struct{})
	t.Cleanup(func() { events.Close(); <-done })
	go func() {
		defer close(done)
		for ev, err := events.Next(); err == nil; ev, err = events.Next() {
			if len(ev.Data) > 0 {
				p.take(ev.Data)
			}
		}
	}()
	return p
}

// take checks one view: it must be true at any time.
func (p *livePage) take(data []byte) {
	var v pageView
	if err := json.Unmarshal(data, &v); err != nil {
		p.t.Errorf("%v: %s", err, data)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = v
	p.all++
	seen := map[string]bool{}
	for _, c := range v.Calls {
		if seen[c.Key] {
			p.t.Errorf("a call is shown twice: %s", data)
		}
		seen[c.Key] = true
		p.tools[c.Key] = c.Tool
		is := cmp.Or(c.State, "runs") + " at " + c.Node
		steps := p.steps[c.Key]
		if len(steps) == 0 || steps[len(steps)-1] != is {
			if n := len(steps); n > 0 && isOutcome(steps[n-1]) {
				p.t.Errorf("a call that had ended is shown again: %q, then %s", steps, is)
			}
			p.steps[c.Key] = append(steps, is)
		}
		if c.State == "" && v.At-c.Heard > 2_500 {
			p.t.Errorf("shown as running, known %d ms ago: %+v", v.At-c.Heard, c)
		}
		// The last messages of the killed node may still arrive for a moment.
		if c.State == "" && c.Node == p.killed && (c.Heard > p.when+2_000 || v.At > p.when+6_000) {
			p.t.Errorf("%d ms after it was killed a node is shown as if it ran a call: %+v", v.At-p.when, c)
		}
	}
}

func isOutcome(step string) bool {
	return strings.HasPrefix(step, "result") || strings.HasPrefix(step, "error") || strings.HasPrefix(step, "outcome") || strings.HasPrefix(step, "tool") || strings.HasPrefix(step, "cancelled")
}

// until waits for a view that is ok, and returns it.
func (p *livePage) until(what string, ok func(v *pageView) bool) pageView {
	p.t.Helper()
	var v pageView
	mcptest.Eventually(p.t, what, time.Minute, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		v = p.last
		return ok(&v)
	})
	return v
}

// stepsOf returns the states in which the call of a tool was shown, without node_silent: whether that state is shown depends on the time.
func (p *livePage) stepsOf(tool string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, steps := range p.steps {
		if p.tools[key] == tool {
			return slices.DeleteFunc(slices.Clone(steps), func(s string) bool { return strings.HasPrefix(s, "node_silent") })
		}
	}
	return nil
}

// TestPageChaos has a page open at a door while the worker that runs two calls is killed: each view of
// the page is true. One call is retry-safe, and runs again at the other worker; the outcome of the other
// is unknown.
func TestPageChaos(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		if e.name != "redis" {
			testlong.Only(t, "one engine shows it")
		}
		f := newFleet(t, e, shape{nodes: 3, doors: 1, flags: []string{"--drain", "2h", "--admin-token", "secret"}})
		page := openPage(t, f.nodes[0], "")
		page.until("all nodes tell what they have", func(v *pageView) bool {
			n := 0
			for _, one := range v.Nodes {
				if one.State == "ok" && (one.Role == "worker") == (one.Name != v.Node) {
					n++
				}
			}
			return n == 3
		})
		names := map[string]*node{}
		for _, n := range f.nodes[1:] {
			names[openPage(t, n, "").until("a page of its own", func(v *pageView) bool { return v.Node != "" }).Node] = n
		}

		c := f.client(fixed(f.nodes[0].url()), fixed(f.nodes[0].url()))
		look := request{tool: "look", args: workArgs{ID: callID(t, "look"), Steps: 20, MS: 5_000}}
		work := request{tool: "work", args: workArgs{ID: callID(t, "work"), Steps: 20, MS: 30_000}}
		looked, worked := start(bounded(t, time.Minute), c, look), start(bounded(t, time.Minute), c, work)
		running := page.until("both calls run", func(v *pageView) bool { return v.ofTool("look").UID != "" && v.ofTool("work").UID != "" })
		is := running.ofTool("look")
		owner, life := is.Node, openPage(t, f.nodes[0], is.UID)
		life.until("the life of one is shown", func(v *pageView) bool { return v.Life != nil && len(v.Life.Ticks) > 1 && len(v.Life.Bars) == 1 })

		for _, p := range []*livePage{page, life} {
			p.mu.Lock()
			p.killed, p.when = owner, time.Now().UnixMilli()
			p.mu.Unlock()
		}
		names[owner].kill()
		page.until("the node is shown as lost", func(v *pageView) bool {
			return slices.ContainsFunc(v.Nodes, func(n pageNode) bool { return n.Name == owner && n.State == "node_lost" })
		})
		(<-looked).want(t, look, false)
		(<-worked).want(t, work, true)
		page.until("both have ended", func(v *pageView) bool { return v.ofTool("look").Ended != 0 && v.ofTool("work").Ended != 0 })
		page.mu.Lock()
		heir := page.last.ofTool("look").Node
		page.mu.Unlock()
		if names[heir] == nil || heir == owner {
			t.Errorf("it went on at %q, was at %q", heir, owner)
		}
		// A state that lasts for less than the time between views may be missing.
		wantSteps(t, page.stepsOf("look"), "runs at "+owner, "node_lost at "+owner, "runs at "+heir, "result at "+heir)
		wantSteps(t, page.stepsOf("work"), "runs at "+owner, "node_lost at "+owner, "runs at "+heir, "outcome_unknown at "+heir)
		got := life.until("the life is shown to its end", func(v *pageView) bool {
			return v.Life != nil && v.Life.State == "result" && len(v.Life.Ticks) > 0 && v.Life.Ticks[len(v.Life.Ticks)-1].Kind == "response"
		}).Life
		if m := got.Moves; len(m) != 1 || m[0].From != owner || m[0].To != heir || m[0].Unknown || m[0].First < 2 || got.From != owner {
			t.Errorf("moves %+v of %+v", m, got.pageCall)
		}
		if len(got.Bars) < 2 || got.Bars[0].Why == "" {
			t.Errorf("connections: %+v", got.Bars)
		}
		for i := 1; i < len(got.Ticks); i++ {
			// The last ticks of the lost node may be missing.
			if d := got.Ticks[i].Seq - got.Ticks[i-1].Seq; d != 1 && (d < 1 || len(got.Moves) == 0 || got.Ticks[i].Seq > got.Moves[0].First) {
				t.Errorf("ticks: %+v", got.Ticks)
				break
			}
		}
		t.Logf("%d views; %q", page.all, page.stepsOf("look"))
	})
}

// wantSteps checks that steps are some of want in the same order, with the first and the last of want.
func wantSteps(t *testing.T, steps []string, want ...string) {
	t.Helper()
	at := 0
	for _, s := range steps {
		for at < len(want) && want[at] != s {
			at++
		}
	}
	if len(steps) < 2 || steps[0] != want[0] || at != len(want)-1 {
		t.Errorf("shown as %s, want %s", fmt.Sprintf("%q", steps), fmt.Sprintf("%q", want))
	}
}
