package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// versionBefore is the commit of the older build that runs beside this one: the last commit
// before the code was restructured.
const versionBefore = "c9c1f11"

// buildBefore builds the program of versionBefore, from the history of this clone.
func buildBefore(t *testing.T) (program string) {
	t.Helper()
	if err := exec.Command("git", "cat-file", "-e", versionBefore+"^{commit}").Run(); err != nil {
		t.Skipf("this clone does not have commit %s (%v): git fetch --unshallow gets it", versionBefore, err)
	}
	dir := t.TempDir()
	archive := exec.Command("sh", "-c", `git -C .. archive --format=tar "$0" | tar -x -C "$1"`, versionBefore, dir) // the whole repository
	if out, err := archive.CombinedOutput(); err != nil {
		t.Fatalf("git archive: %v\n%s", err, out)
	}
	program = filepath.Join(dir, "holdfast-before")
	compile := exec.Command("go", "build", "-o", program, "./cmd/holdfast")
	compile.Dir = dir
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("go build of %s: %v\n%s", versionBefore, err, out)
	}
	return program
}

// TestClusterVersions has a node of versionBefore and a node of this build serve the same
// sessions, as while a new version is deployed. Each in turn owns sessions that clients use at
// the other node, and is killed, or drained, with calls in flight.
func TestClusterVersions(t *testing.T) {
	testlong.Only(t, "it takes half a minute")
	t.Parallel()
	before := buildBefore(t)
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{nodes: 2, programs: []string{before, ""}, flags: []string{"--drain", "2s"}})
		for _, leaves := range []bool{false, true} {
			for i, owner := range f.nodes {
				v := versions{fleet: f, owner: owner, other: f.nodes[1-i], name: fmt.Sprint([]string{"before", "now"}[i], "-", leaves)}
				v.forwarded()
				v.resumed()
				v.keyed()
				v.socket()
				v.deleted()
				v.takenOver(leaves)
				owner.restart()
			}
		}
	})
}

// versions are two nodes of different builds.
type versions struct {
	*fleet
	owner, other *node
	name         string // of the case
}

// begin begins a session at the owner. The client sends its later requests to the other node.
func (v *versions) begin() *specClient { return v.client(fixed(v.owner.url()), fixed(v.other.url())) }

func (v *versions) request(tool, what string, ms int) request {
	return request{tool: tool, args: workArgs{ID: callID(v.t, v.name, "-", what), Steps: 4, MS: ms}}
}

// forwarded makes calls at the node that does not have the session.
func (v *versions) forwarded() {
	r := v.begin()
	for _, tool := range []string{"work", "look"} {
		q := v.request(tool, "forwarded-"+tool, 100)
		v.whole(q, r.call(bounded(v.t, time.Minute), q))
	}
	r.listTools(v.t)
}

// resumed makes a call at one node, and resumes it at the other.
func (v *versions) resumed() {
	r := v.begin()
	for i, at := range []*node{v.owner, v.other} {
		q := v.request("work", fmt.Sprint("resumed-", i), 600)
		s, id := newRecord(), r.ids.Add(1)
		r.at = fixed(at.url())
		events := r.now().Stream(v.t, "POST", q.body(id))
		for len(s.received) < 2 {
			s.event(mcptest.Must(events.Next())(v.t), id)
		}
		events.Close()
		r.at = fixed([]*node{v.other, v.owner}[i].url())
		r.stay(bounded(v.t, time.Minute), s, id, q)
		v.whole(q, s)
	}
}

// keyed makes a call, and makes it again with the same key at the other node.
func (v *versions) keyed() {
	r := v.begin()
	q := v.request("work", "keyed", 50)
	q.key = q.args.ID
	id := r.ids.Add(1)
	for _, at := range []*node{v.owner, v.other} {
		r.at = fixed(at.url())
		v.whole(q, r.ask(bounded(v.t, time.Minute), id, q, ""))
	}
}

// socket makes a call on a WebSocket at the node that does not have the session.
func (v *versions) socket() {
	r := v.begin()
	ctx := bounded(v.t, time.Minute)
	ws := mcptest.MustDial(v.t, ctx, v.other.url(), "Mcp-Session-Id", r.session)
	q, s := v.request("work", "socket", 100), newRecord()
	ws.Say(v.t, q.body(1))
	for !s.over() && s.err == nil {
		s.addMessage([]byte(ws.Hear(v.t)), 1)
	}
	v.whole(q, s)
}

// deleted ends a session at the node that does not have it.
func (v *versions) deleted() {
	r := v.begin()
	if r := r.exchange(v.t, "DELETE", ""); r.Status != http.StatusNoContent {
		v.t.Errorf("%s: DELETE: %d %s", v.name, r.Status, r.Body)
	}
	for _, n := range []*node{v.owner, v.other} {
		r.at = fixed(n.url())
		if r := r.exchange(v.t, "GET", ""); r.Status != http.StatusNotFound {
			v.t.Errorf("%s: GET of a session that was deleted: %d %s", v.name, r.Status, r.Body)
		}
	}
}

// takenOver kills the owner in the middle of calls, or drains it. Calls that had ended are
// kept, retry-safe calls run again, and each other call has an end.
func (v *versions) takenOver(leaves bool) {
	r, done := v.begin(), v.request("work", "before", 50)
	ctx := bounded(v.t, 2*time.Minute)
	before := r.call(ctx, done)
	v.whole(done, before)
	requests, told := make([]request, 4), make([]<-chan *callRecord, 4)
	for i := range requests {
		q := v.request([]string{"work", "look"}[i%2], fmt.Sprint("taken-over-", i), 4000)
		q.key = q.args.ID // a light call that is cut can be found by its key only
		at := r
		if i >= 2 { // a client that is connected to the owner, and goes to the other node when the owner is lost
			at = v.client(fixed(v.owner.url()), prefer(v.owner, v.other))
		}
		requests[i], told[i] = q, start(ctx, at, q)
	}
	v.running(requests...)
	if leaves {
		if err := v.owner.terminate(time.Minute); err != nil {
			v.t.Errorf("%s: the owner ended with %v", v.name, err)
		}
	} else {
		v.owner.kill()
	}
	for i, q := range requests {
		s := <-told[i]
		if err := s.check(q); err != nil || !s.over() {
			v.t.Errorf("%s: %v, received %q", q.args.ID, err, s.received)
		}
		if q.tool == "work" {
			v.wantRuns(q.args.ID, 1, 1)
		} else if s.unknown() {
			v.t.Errorf("%s may be run again, and was not: received %q", q.args.ID, s.received)
		}
	}
	// The call that had ended can be read at the other node.
	v.whole(done, r.ask(ctx, 1, done, before.first))
	q := v.request("work", "after", 50)
	v.whole(q, r.call(context.WithoutCancel(ctx), q))
}
