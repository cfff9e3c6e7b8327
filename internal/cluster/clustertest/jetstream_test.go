package clustertest_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"holdfast/internal/cluster/clustertest"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

func TestJetStream(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it kills servers of a cluster; TestFile runs the suite over one server, e2e loses nodes and servers")
	servers := natstest.Processes(t)
	victim := 0
	// fault returns a fault of one server after the other or, once, of the server that leads the stream of events.
	fault := func(name string, leader bool, begin, end func(i int) error) clustertest.Fault {
		return clustertest.Fault{Name: name, Once: leader, Do: func() {
			victim = (victim + 1) % servers.Len()
			if leader {
				mcptest.Eventually(t, "a server leads", time.Minute, func() bool {
					var err error
					victim, err = servers.Leader(t.Context(), "holdfast-events")
					return err == nil && victim >= 0
				})
			}
			mcptest.Check(t, begin(victim))
			time.Sleep(700 * time.Millisecond) // the fault's length
			mcptest.Check(t, end(victim))
		}}
	}
	kill := func(i int) error { servers.Kill(i); return nil }
	both(t, clustertest.Options{
		Open: func(t testing.TB) clustertest.Node {
			var hosts []string
			var proxies []*clustertest.Proxy
			for i := range servers.Len() {
				p := clustertest.NewProxy(t, servers.Addr(i))
				proxies = append(proxies, p)
				hosts = append(hosts, p.Addr())
			}
			u := "nats://" + url.UserPassword(natstest.User, natstest.Password).String() + "@" + strings.Join(hosts, ",")
			log := opened(t, embedded.Open, u)
			return clustertest.Node{Store: store(log), Cut: func(c clustertest.Cut) {
				for _, p := range proxies {
					p.Cut(c)
				}
			}}
		},
		Faults: []clustertest.Fault{
			fault("a server is killed", false, kill, servers.Restart),
			fault("a server is stopped", false, servers.Pause, servers.Resume),
			fault("the leader is killed", true, kill, servers.Restart),
			fault("the leader is stopped", true, servers.Pause, servers.Resume),
		},
	})
}

func TestFile(t *testing.T) {
	testlong.Only(t, "nodes are at work for seconds")
	t.Parallel()
	dir := t.TempDir()
	clustertest.Run(t, clustertest.Options{
		For:     *lasts,
		Seed:    *seed,
		OneNode: true,
		Open: func(t testing.TB) clustertest.Node {
			log := opened(t, embedded.Open, "file:"+dir)
			return clustertest.Node{Store: store(log)}
		},
	})
}
