package server_test

import (
	"cmp"
	"log/slog"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/cluster"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/revival"
	"holdfast/internal/server"
)

// A farm is a cluster of nodes that share an engine. Each has a socket of its own.
type farm struct {
	t      testing.TB
	engine *logtest.Engine
	mu     sync.Mutex
	nodes  []*farmNode // all nodes that were started
}

type farmNode struct {
	*node
	handle *logtest.Handle
	store  *durable.Store
	member *cluster.Node
	http   *httptest.Server
	once   sync.Once
	killed bool
}

// newFarm starts n nodes, and waits until they know each other.
func newFarm(t testing.TB, n int, c config) *farm {
	t.Helper()
	f := &farm{t: t, engine: logtest.New(logtest.Options{})}
	for range n {
		f.start(c)
	}
	for _, one := range f.nodes {
		one.meets(n - 1)
	}
	return f
}

// meets waits until the node knows so many others. Doors do not count, as they have no sessions.
func (n *farmNode) meets(others int) {
	n.t.Helper()
	mcptest.Eventually(n.t, "the nodes to know each other", time.Minute, func() bool { return len(n.member.Peers()) >= others })
}

// heldAt waits until a call is held at one of the nodes, and returns the call.
func (f *farm) heldAt(nodes []*farmNode) *message.Exchange {
	f.t.Helper()
	var held *message.Exchange
	mcptest.Eventually(f.t, "a call to be held", time.Minute, func() bool {
		for _, n := range nodes {
			n.script.mu.Lock()
			if len(n.script.held) > 0 {
				held, n.script.held = n.script.held[0], n.script.held[1:]
			}
			n.script.mu.Unlock()
		}
		return held != nil
	})
	return held
}

// start starts one more node.
func (f *farm) start(c config) *farmNode {
	f.t.Helper()
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("FARM_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	handle := f.engine.Open()
	logger = logger.With("node", handle.Node())
	if c.server.Logger == nil {
		c.server.Logger = logger
	}
	n := &farmNode{
		node:   &node{t: f.t, script: newScript(), store: memory.New(memory.Options{}), lists: c.backend == nil},
		handle: handle,
		store:  durable.New(handle, durable.Options{Patience: cmp.Or(c.patience, 10*time.Second), Keep: c.memory.Keep, Logger: c.server.Logger}),
	}
	var err error
	var bus cluster.Bus = n.store
	if c.bus != nil {
		bus = c.bus(bus)
	}
	if n.member, err = cluster.Join(bus, cluster.Options{Logger: c.server.Logger, Silence: c.silence, Door: c.server.Role == server.RoleDoor}); err != nil {
		f.t.Fatal(err)
	}
	if c.life > 0 {
		c.session.Revival = revival.New(revival.Options{Life: c.life, Values: n.store})
	}
	c.server.Node = n.member
	if c.server.Principal == nil {
		c.server.Principal = bearer
	}
	n.http = n.serve(&c, n.store)
	f.mu.Lock()
	f.nodes = append(f.nodes, n)
	f.mu.Unlock()
	f.t.Cleanup(n.close)
	return n
}

// close ends the node as its process would.
func (n *farmNode) close() {
	n.once.Do(func() {
		if n.killed { // then no goroutine waits for the engine any more
			_ = n.store.Close()
		} else {
			defer n.store.Close()
		}
		n.sessions.Close()
		n.http.CloseClientConnections()
		n.http.Close()
		n.Close()
		_ = n.member.Close()
		_ = n.node.store.Close()
	})
}

// kill cuts the node off from the engine, from other nodes, and from clients, as if its process
// were lost.
func (n *farmNode) kill() {
	n.killed = true
	n.handle.Cut(true)
	_ = n.handle.Close()
	n.http.Listener.Close()
	n.http.CloseClientConnections()
}

// runs returns how often a tool ran with a key, on all nodes.
func (f *farm) runs(key string) (sum int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		sum += n.runs(key)
	}
	return sum
}

// at returns the same client at another node.
func (p *peer) at(n *farmNode) *peer {
	q := *p
	q.n = n.node
	return &q
}
