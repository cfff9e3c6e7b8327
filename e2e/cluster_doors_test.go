package e2e

import (
	"flag"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// The size of TestDoorsKilled. For a full minute:
//
//	go test ./e2e -run TestDoorsKilled -long -doors.for 1m -doors.clients 200 -doors.call 30s
var (
	doorsFor     = flag.Duration("doors.for", 15*time.Second, "how long doors are killed in TestDoorsKilled")
	doorsClients = flag.Int("doors.clients", 60, "its clients")
	doorsCall    = flag.Duration("doors.call", 8*time.Second, "they make calls of up to that long")
)

// sessions returns how many sessions of clients a node has, by its metrics.
func (n *node) sessions() (sum int) {
	n.t.Helper()
	for _, m := range sessionsFigure.FindAllStringSubmatch(figuresOf(n.t, n.now().admin), -1) {
		sum += mcptest.Must(strconv.Atoi(m[1]))(n.t)
	}
	return sum
}

var sessionsFigure = regexp.MustCompile(`(?m)^holdfast_sessions\{[^}]*kind="client"[^}]*\} (\d+)$`)

// TestDoors has clients at two doors, and their sessions at two workers. A door is killed in the
// middle of a call that is not retry-safe: the call goes on, and its client reads it to its end at
// the other door. Then the workers are told to stop in the middle of another call: its worker
// waits for the call, and the doors refuse new sessions, as there is no worker.
func TestDoors(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{nodes: 4, doors: 2, flags: []string{"--drain", "2h"}})
		doors, workers := f.nodes[:2], f.nodes[2:]
		cut := f.client(fixed(doors[0].url()), prefer(doors...))
		q := request{tool: "work", args: workArgs{ID: callID(t, "cut"), Steps: 10, MS: 1_500}}
		told := start(bounded(t, time.Minute), cut, q)
		f.running(q)
		for range 2 { // at least one of the sessions goes to the worker with less to do
			f.client(fixed(doors[1].url()), nil)
		}
		doors[0].kill()
		f.whole(q, <-told)
		for i, w := range workers {
			if n := w.sessions(); n == 0 || n == 3 {
				t.Errorf("worker %d has %d of 3 sessions", i, n)
			}
		}
		if n := doors[1].sessions(); n != 0 {
			t.Errorf("a door has %d sessions", n)
		}

		q.args.ID = callID(t, "drained")
		told = start(bounded(t, time.Minute), cut, q)
		f.running(q)
		for _, w := range workers {
			w.signal(syscall.SIGTERM) // one of them is idle
		}
		f.whole(q, <-told)
		for i, w := range workers {
			select {
			case <-w.now().ended:
			case <-time.After(time.Minute):
				t.Errorf("worker %d waits, and has nothing to do", i)
			}
		}
		mcptest.Eventually(t, "the door says that there is no worker", time.Minute, func() bool {
			stranger := &specClient{at: fixed(doors[1].url()), http: cut.http}
			r := stranger.exchange(t, "POST", strangeInit)
			return r.Status == http.StatusServiceUnavailable && r.Header.Get("Retry-After") != "" && strings.Contains(r.Body, "no worker")
		})
	})
}

// whole checks that a call ran once, and that its client received the answer and all messages before it.
func (f *fleet) whole(q request, s *callRecord) {
	f.t.Helper()
	s.want(f.t, q, false)
	f.wantRuns(q.args.ID, 1, 1)
}

// TestDoorsKilled kills a door every second, with SIGKILL, while clients make calls that are not
// retry-safe. Then all doors are replaced, each in the middle of calls, and with less time than
// the calls take. Last a worker is drained, which has the time. Every call runs once, its client
// gets all of it, and no client is told that the outcome is unknown.
func TestDoorsKilled(t *testing.T) {
	testlong.Only(t, "doors are killed for a while")
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		const doors = 3
		f := newFleet(t, e, shape{nodes: doors + 2, doors: doors, library: true, flags: []string{"--drain", "2h"}, doorFlags: []string{"--drain", "2s"}})
		sum := &score{}
		c := f.calling(f.callers(*doorsClients), sum, tempo{call: *doorsCall, step: time.Second, unsafe: true})
		stop := f.killing(f.nodes[:doors], time.Second)
		time.Sleep(*doorsFor)
		kills := stop()
		t.Logf("%d doors killed, %d calls so far", kills, sum.total())
		for _, n := range f.nodes[:doors] {
			if err := n.terminate(leaveBound + time.Minute); err != nil {
				t.Errorf("door %s: %v", n.name, err)
			}
			n.restart()
		}
		worker := f.nodes[doors]
		began := time.Now()
		if err := worker.terminate(*doorsCall + 2*time.Minute); err != nil {
			t.Errorf("the worker that is drained: %v", err)
		}
		t.Logf("a worker has drained in %v", time.Since(began).Round(time.Millisecond))
		c.end()
		sum.report(t, kills)
		if sum.unknown+sum.unsure+sum.again > 0 {
			t.Errorf("%d calls were told that nobody knows, %d were cut off before they could know, %d ran again: want 0",
				sum.unknown, sum.unsure, sum.again)
		}
	})
}

// TestDoorsVersions has a door and a worker of this build beside a node of an older build, which knows no
// roles: the older node gets its share of sessions from the door, places none at the door, and forwards
// requests of its own clients to the worker's sessions. When the older node is lost, the worker takes over.
func TestDoorsVersions(t *testing.T) {
	testlong.Only(t, "it builds the version before")
	t.Parallel()
	before := buildBefore(t)
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{nodes: 3, doors: 1, programs: []string{"", "", before}, flags: []string{"--drain", "10s"}})
		door, worker, older := f.nodes[0], f.nodes[1], f.nodes[2]
		begun := 0
		mcptest.Eventually(t, "both have sessions", time.Minute, func() bool {
			f.client(fixed(door.url()), nil)
			begun++
			has := worker.sessions()
			return has > 0 && has < begun
		})
		all := make([]*specClient, 0, 6)
		for i := range 6 {
			at := []*node{door, older}[i%2]
			all = append(all, f.client(fixed(at.url()), fixed([]*node{older, door}[i%2].url())))
		}
		each := func(what string) {
			for i, r := range all {
				q := request{tool: "work", args: workArgs{ID: callID(t, what, i), Steps: 3, MS: 60}}
				f.whole(q, r.call(bounded(t, time.Minute), q))
			}
		}
		each("both")
		older.kill()
		for _, r := range all {
			r.at = fixed(door.url())
		}
		each("lost")
		if n := door.sessions(); n != 0 {
			t.Errorf("the door has %d sessions", n)
		}
	})
}
