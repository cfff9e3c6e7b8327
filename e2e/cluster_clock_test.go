package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

var clockToo = flag.Bool("cluster.clock", false,
	"set the clocks of nodes: holdfast is built with a package time whose clock can be set, which takes minutes")

// A setClock is a build of holdfast with a wall clock that can be set while it runs. The
// monotonic clock is not changed, as when the operator sets a machine's clock.
type setClock struct {
	binary string
	dir    string // of files with the offsets of clocks, one for each node
}

// newSetClock builds a setClock. Go asks the system for the time without a library that could
// be replaced, so the package time is replaced.
func newSetClock(t *testing.T) *setClock {
	t.Helper()
	if !*clockToo {
		t.Skip("it takes minutes: -cluster.clock runs it")
	}
	c := &setClock{dir: t.TempDir()}
	c.binary = filepath.Join(c.dir, "holdfast")
	root := mcptest.Must(exec.Command("go", "env", "GOROOT").Output())(t)
	timeDir := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	source := mcptest.Must(os.ReadFile(filepath.Join(timeDir, "time.go")))(t)
	const asks = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	if strings.Count(string(source), asks) != 1 {
		t.Fatal("time.Now of this Go is another one than this test knows")
	}
	replaced := map[string]string{
		filepath.Join(timeDir, "time.go"): strings.Replace(string(source), asks,
			strings.Replace(asks, "\n", "\n\tsec += ahead.Load()\n", 1), 1),
		filepath.Join(timeDir, "ahead.go"): `package time

import "sync/atomic"

var ahead atomic.Int64

// SetAhead sets the wall clock ahead, by seconds.
func SetAhead(by int64) { ahead.Store(by) }
`,
		filepath.Join("..", "cmd", "holdfast", "ahead.go"): `package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

func init() {
	set := func() {
		text, _ := os.ReadFile(os.Getenv("HOLDFAST_AHEAD"))
		if by, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			time.SetAhead(by)
		}
	}
	set()
	go func() {
		for range time.Tick(10 * time.Millisecond) {
			set()
		}
	}()
}
`,
	}
	overlay := make(map[string]string)
	for name, text := range replaced {
		name = mcptest.Must(filepath.Abs(name))(t)
		to := filepath.Join(c.dir, fmt.Sprint(len(overlay))+".go")
		mcptest.Check(t, os.WriteFile(to, []byte(text), 0o600))
		overlay[name] = to
	}
	text := mcptest.Must(json.Marshal(map[string]any{"Replace": overlay}))(t)
	list := filepath.Join(c.dir, "overlay.json")
	mcptest.Check(t, os.WriteFile(list, text, 0o600))
	if out, err := exec.Command("go", "build", "-overlay", list, "-o", c.binary, "holdfast/cmd/holdfast").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return c
}

// on returns the environment by which the node of that name runs under the clock.
func (c *setClock) on(name string) []string {
	return []string{"HOLDFAST_AHEAD=" + filepath.Join(c.dir, name)}
}

// set sets a node's clock, and waits until the node can have noticed.
func (c *setClock) set(t *testing.T, name string, ahead time.Duration) {
	t.Helper()
	at := filepath.Join(c.dir, name)
	mcptest.Check(t, os.WriteFile(at+".new", []byte(fmt.Sprint(int64(ahead.Seconds()))), 0o600))
	mcptest.Check(t, os.Rename(at+".new", at))
	time.Sleep(200 * time.Millisecond)
}

// Of three nodes one is always an hour ahead and one an hour behind; the clock of the third
// jumps while it serves, and in the end the third is killed. No call is lost or run twice, no
// session expires, and stored messages can be read at nodes with other clocks.
func TestClusterClocks(t *testing.T) {
	clocks := newSetClock(t)
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		mine := func(name string) string { return e.name + name }
		for _, name := range []string{"A", "B", "C"} {
			clocks.set(t, mine(name), map[string]time.Duration{"A": 0, "B": time.Hour, "C": -time.Hour}[name])
		}
		f := newFleet(t, e, shape{
			program: clocks.binary, env: func(name string) []string { return clocks.on(mine(name)) },
			flags: []string{"--session-ttl", "1m"}, // so that nodes look for idle sessions every 8 s
		})
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		ctx := bounded(t, 2*time.Minute)
		idle := make(map[string]*specClient)
		done := make(map[string]*callRecord)
		for _, n := range f.nodes {
			r := f.client(fixed(n.url()), fixed(n.url()))
			q := request{tool: "work", args: workArgs{ID: callID(t, n.name), Steps: 3, MS: 30}}
			idle[n.name], done[n.name] = r, r.call(ctx, q)
			done[n.name].want(t, q, false)
		}
		sum := &score{}
		calling := f.calling(f.callers(9), sum)
		long := f.client(fixed(a.url()), fixed(a.url()))
		q := request{tool: "work", args: workArgs{ID: callID(t, "long"), Steps: 60, MS: 30_000}}
		told := start(ctx, long, q)
		f.running(q)
		for _, ahead := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour} {
			began := sum.total()
			clocks.set(t, mine("A"), ahead)
			time.Sleep(9 * time.Second)
			mcptest.Eventually(t, fmt.Sprintf("calls are made again with %v", ahead), 20*time.Second, func() bool { return sum.total() > began+9 })
			for _, n := range f.nodes {
				if status := n.ready(); status != http.StatusOK {
					t.Errorf("%s, with A %v ahead: /readyz is %d", n.name, ahead, status)
				}
			}
		}
		(<-told).want(t, q, false)
		calling.end()
		sum.report(t, 0)
		if sum.unknown+sum.unsure > 0 {
			t.Errorf("%d calls with unknown outcome, %d unsure, and nothing has died", sum.unknown, sum.unsure)
		}
		// After a node is lost, other nodes can read its calls, under other clocks.
		a.kill()
		for owner, at := range map[string]*node{"A": b, "B": c, "C": b} {
			r := idle[owner]
			if owner == "A" {
				r.at = fixed(at.url())
			}
			if again := r.ask(ctx, 1, request{tool: "work"}, done[owner].first); again.err != nil || !strings.HasPrefix(again.last(), "result ") {
				t.Errorf("what a session of %s has received, at %s: %v, %q", owner, at.name, again.err, again.received)
			}
			q := request{tool: "work", args: workArgs{ID: callID(t, "after", owner), Steps: 3, MS: 30}}
			r.call(ctx, q).want(t, q, false)
		}
		b.kill()
		r := idle["B"]
		r.at = fixed(c.url())
		if again := r.ask(ctx, 1, request{tool: "work"}, done["B"].first); again.err != nil || !strings.HasPrefix(again.last(), "result ") {
			t.Errorf("what a session of B has received, at C: %v, %q", again.err, again.received)
		}
	})
}

// The clock of one node with its calls on disk jumps. The engine is in the same process, so its clock jumps too.
func TestFileClock(t *testing.T) {
	clocks := newSetClock(t)
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			name := jump.String()
			clocks.set(t, name, 0)
			f := newFleet(t, fileEngine(t), shape{nodes: 1, program: clocks.binary, env: func(string) []string { return clocks.on(name) }})
			n := f.nodes[0]
			ctx := bounded(t, time.Minute)
			idle, busy := f.client(fixed(n.url()), fixed(n.url())), f.client(fixed(n.url()), fixed(n.url()))
			requests := []request{
				{tool: "work", args: workArgs{ID: callID(t, "work"), Steps: 50, MS: 5_000}},
				{tool: "look", args: workArgs{ID: callID(t, "look"), Steps: 50, MS: 10_000}},
			}
			told := make([]<-chan *callRecord, len(requests))
			for i, q := range requests {
				told[i] = start(ctx, busy, q)
			}
			f.running(requests...)
			time.Sleep(time.Second)
			clocks.set(t, name, jump)
			// The engine looks for expired entries now and then. After that the process is
			// killed during a call that is retry-safe.
			time.Sleep(6 * time.Second)
			n.kill()
			mcptest.Check(t, n.start(n.address()))
			for i, q := range requests {
				(<-told[i]).want(t, q, false)
			}
			f.wantRuns(requests[0].args.ID, 1, 1)
			f.wantRuns(requests[1].args.ID, 2, 2)
			q := request{tool: "work", args: workArgs{ID: callID(t, "idle"), Steps: 2, MS: 20}}
			idle.call(ctx, q).want(t, q, false)
		})
	}
}
