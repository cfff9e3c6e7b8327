package clustertest_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"holdfast/internal/cluster/clustertest"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/engine/jetstream/natstest"

	"holdfast/internal/testlong"
)

func TestJetStream(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it kills servers of a cluster; TestFile runs the suite over one server, e2e loses nodes and servers")
	servers := natstest.Processes(t)
	victim := 0
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
			{Name: "a server is killed", Do: func() {
				victim = (victim + 1) % servers.Len()
				servers.Kill(victim)
				time.Sleep(500 * time.Millisecond) // the fault's length
				if err := servers.Restart(victim); err != nil {
					t.Error(err)
				}
			}},
			{Name: "a server is stopped", Do: func() {
				victim = (victim + 1) % servers.Len()
				if err := servers.Pause(victim); err != nil {
					t.Error(err)
				}
				time.Sleep(700 * time.Millisecond) // the fault's length
				if err := servers.Resume(victim); err != nil {
					t.Error(err)
				}
			}},
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
