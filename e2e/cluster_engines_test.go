package e2e

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/engine/redis/redistest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A sharedEngine is an engine that nodes share.
type sharedEngine struct {
	name  string
	addrs []string // of its servers
	// url returns the --store of nodes that reach the servers at these addresses.
	url func(addrs []string) string

	// One of redis and nats is set. prefix begins all names in a NATS that other tests use too.
	redis  *redistest.Server
	nats   *natstest.Servers
	prefix string
}

// eachEngine runs a test over every engine that nodes can share. processes says that
// the test is going to kill or stop its servers.
func eachEngine(t *testing.T, processes bool, test func(t *testing.T, e *sharedEngine)) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		test(t, &sharedEngine{
			name:  "redis",
			addrs: []string{s.Addr()},
			url:   func(addrs []string) string { return "redis://" + addrs[0] + "/0" },
			redis: s,
		})
	})
	t.Run("jetstream", func(t *testing.T) {
		t.Parallel()
		start := sharedNATS
		if processes {
			start = natstest.Processes
		}
		s := start(t)
		e := &sharedEngine{name: "jetstream", prefix: rand.Text(), nats: s}
		for i := range s.Len() {
			e.addrs = append(e.addrs, s.Addr(i))
		}
		e.url = func(addrs []string) string {
			return "nats://" + natstest.User + ":" + natstest.Password + "@" + strings.Join(addrs, ",") + "?prefix=" + e.prefix
		}
		test(t, e)
	})
}

// The JetStream servers of all tests that don't disturb them: one, three with -long.
var (
	shared   sync.Mutex
	sharedIn *natstest.Servers
)

// sharedNATS returns the shared servers, and starts them at the first call.
func sharedNATS(t testing.TB) *natstest.Servers {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if sharedIn == nil {
		servers := 1
		if testlong.Wanted() {
			servers = 3
		}
		s := mcptest.Must(natstest.Start(filepath.Join(filepath.Dir(built), "nats"), servers))(t)
		sharedIn = s
	}
	return sharedIn
}

// stopShared ends the shared servers.
func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	if sharedIn != nil {
		sharedIn.Close()
	}
}

// kill kills the server of the engine that leads most streams, with SIGKILL if it is a process.
func (e *sharedEngine) kill(t *testing.T) (restart func()) {
	t.Helper()
	if e.redis != nil {
		e.redis.Kill()
		return e.redis.Restart
	}
	i := e.leader(t)
	e.nats.Kill(i)
	return func() {
		if err := e.nats.Restart(i); err != nil {
			t.Error(err)
		}
	}
}

// leader returns the server that leads most of the streams.
func (e *sharedEngine) leader(t *testing.T) int {
	t.Helper()
	js := e.jetstream(t)
	leads := make(map[string]int)
	streams := js.ListStreams(bounded(t, time.Minute))
	for s := range streams.Info() {
		if s.Cluster != nil && s.State.Msgs > 0 {
			leads[s.Cluster.Leader]++
		}
	}
	mcptest.Check(t, streams.Err())
	best := 0
	for i := range e.nats.Len() {
		if leads[fmt.Sprint("n", i)] > leads[fmt.Sprint("n", best)] {
			best = i
		}
	}
	return best
}
