package server_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
)

// slow is a script that answers initialize only after let was called.
type slow struct {
	*script
	came chan struct{} // gets a value when an initialize begins to wait
	lets chan struct{} // closed: each initialize is answered
	let  func()        // closes lets
}

func newSlow(t *testing.T) *slow {
	s := &slow{script: newScript(), came: make(chan struct{}, 1), lets: make(chan struct{})}
	s.let = sync.OnceFunc(func() { close(s.lets) })
	t.Cleanup(s.let)
	return s
}

func (s *slow) Serve(x *message.Exchange) {
	if x.Method != "initialize" {
		s.script.Serve(x)
		return
	}
	select {
	case s.came <- struct{}{}:
	default:
	}
	go func() {
		<-s.lets
		s.script.Serve(x)
	}()
}

// An initializeCase describes how a node fails that has an initialize not answered yet.
type initializeCase struct {
	name string
	door bool // the client is at a door, else at the node
	head bool // the client has the head of a stream by then
	// lose makes the node that has the initialize fail. It may return a function to call once
	// another node has noticed.
	lose func(t *testing.T, at, owner *farmNode) (later func())
	one  bool // there is no other node
	// mute says that no server answers, so that the client must get an error that says to try again. refused
	// says that it may get one in place of a result.
	mute, refused bool
	long          bool // it takes seconds until a node is missed
}

// TestInitializeOfLostNode kills, stops or drains the node that has an initialize, at each stage of it. The
// client still gets its answer, with a session that works; or, if no node is left to answer, an error that
// says to try again. It never gets a stream that ends without an answer: official clients would wait for
// one.
func TestInitializeOfLostNode(t *testing.T) {
	t.Parallel()
	killed := func(_ *testing.T, _, owner *farmNode) func() { owner.kill(); return nil }
	stopped := func(_ *testing.T, _, owner *farmNode) func() { owner.handle.Cut(true); return nil }
	wakes := func(_ *testing.T, _, owner *farmNode) func() {
		owner.handle.Cut(true)
		return func() { owner.handle.Cut(false) }
	}
	drained := func(_ *testing.T, _, owner *farmNode) func() { go func() { _ = owner.drain(0) }(); return nil }
	doorDrained := func(_ *testing.T, at, _ *farmNode) func() { go func() { _ = at.drain(0) }(); return nil }
	for _, x := range []initializeCase{
		{name: "door, killed", door: true, lose: killed},
		{name: "door, killed after the head", door: true, head: true, lose: killed},
		{name: "door, stands still", door: true, lose: stopped, long: true},
		{name: "door, stands still after the head", door: true, head: true, lose: stopped, long: true},
		{name: "door, wakes", door: true, lose: wakes, long: true},
		{name: "door, wakes after the head", door: true, head: true, lose: wakes, long: true},
		{name: "door, drained", door: true, lose: drained},
		{name: "door, drained after the head", door: true, head: true, lose: drained},
		{name: "door, itself drained after the head", door: true, head: true, lose: doorDrained, mute: true},
		{name: "node, wakes", lose: wakes, long: true},
		{name: "node, wakes after the head", head: true, lose: wakes, long: true},
		{name: "node, drained", lose: drained, refused: true}, // a drained node takes no new requests
		{name: "node, drained after the head", head: true, lose: drained},
		{name: "one node, wakes", one: true, lose: wakes, long: true},
		{name: "one node, wakes after the head", one: true, head: true, lose: wakes, long: true},
		{name: "one node, drained", one: true, lose: drained, mute: true},
		{name: "one node, drained after the head", one: true, head: true, lose: drained, mute: true},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.long {
				testlong.Only(t, "a node is missed after seconds")
			}
			t.Parallel()
			x.run(t)
		})
	}
}

func (x *initializeCase) run(t *testing.T) {
	const patience = 500 * time.Millisecond
	c := config{patience: patience, server: server.Options{Role: server.RoleBoth, UpgradeAfter: unhurried}}
	if x.door {
		c.server.Role = server.RoleWorker
	}
	if x.head {
		c.server.UpgradeAfter = time.Millisecond
	}
	f := newFarm(t, 0, config{})
	var servers []*slow
	for range 2 {
		servers = append(servers, newSlow(t))
		c.backend = message.New(servers[len(servers)-1])
		f.start(c)
		if x.one {
			break
		}
	}
	at := f.nodes[0]
	if x.door {
		at = f.start(config{server: server.Options{Role: server.RoleDoor}})
	}
	for _, n := range f.nodes {
		n.meets(len(servers) - 1)
	}
	if x.door {
		at.meets(len(servers))
	}
	p := &peer{n: at.node, version: "2025-11-25"}
	w := p.open("POST", "/mcp", initialize0)
	owner := 0
	select {
	case <-servers[0].came:
	case <-servers[len(servers)-1].came:
		owner = len(servers) - 1
	}
	if x.head {
		w.head()
	}
	has := f.nodes[owner]
	later := x.lose(t, at, has)
	if later != nil && x.one {
		time.Sleep(4 * patience) // longer than the store's patience
		later()
	} else if later != nil {
		other := f.nodes[1-owner]
		mcptest.Eventually(t, "the node to be missed", time.Minute, func() bool { return !knows(other, has) })
		if x.head {
			mcptest.Eventually(t, "the session to be taken over", time.Minute, func() bool { return other.sessions.Sessions() > 0 })
		}
		later()
	}
	for i, s := range servers {
		if !x.mute && (later != nil || i != owner) {
			s.let()
		}
	}
	r := w.all()
	has.handle.Cut(false)
	said := string(r.body)
	switch answered := strings.Contains(said, `"id":0,"result":{"protocolVersion"`); {
	case answered && !x.mute:
	case !x.refused && !x.mute:
		t.Fatalf("no answer: %d %v %q", r.status, r.header, said)
	case r.status == http.StatusServiceUnavailable && r.header.Get("Retry-After") != "":
		return
	case r.status == http.StatusOK && strings.Contains(said, `"id":0,"error"`) && strings.Contains(said, "again"):
		return
	default:
		t.Fatalf("neither an answer nor a word: %d %v %q", r.status, r.header, said)
	}
	p.id = r.header.Get("Mcp-Session-Id")
	alive := at
	if has.killed || !x.door && !x.one {
		alive = f.nodes[len(f.nodes)-1]
	}
	if r := p.at(alive).post(listTools); r.status != http.StatusOK {
		t.Errorf("in the session: %d %s", r.status, r.body)
	}
}

// knows reports whether n counts other as alive.
func knows(n, other *farmNode) bool { return slices.Contains(n.member.Peers(), other.handle.Node()) }
