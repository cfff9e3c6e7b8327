//go:build unix

package clustertest_test

import (
	"testing"
	"time"

	"holdfast/internal/cluster/clustertest"
	"holdfast/internal/engine/redis"
	"holdfast/internal/engine/redis/redistest"
)

// redisNode opens a node that reaches a Redis server through a network of its own.
func redisNode(server *redistest.Server, query string) func(t testing.TB) clustertest.Node {
	return func(t testing.TB) clustertest.Node {
		proxy := clustertest.NewProxy(t, server.Addr())
		log := opened(t, redis.Open, "redis://"+proxy.Addr()+query)
		return clustertest.Node{Store: store(log), Cut: proxy.Cut}
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendfsync", "always")
	both(t, clustertest.Options{
		Open: redisNode(server, ""),
		Faults: []clustertest.Fault{
			{Name: "Redis is killed", Do: func() {
				server.Kill()
				server.Restart()
			}},
			{Name: "Redis is stopped", Do: func() {
				server.Pause()
				time.Sleep(2500 * time.Millisecond) // the fault's length: longer than an attempt
				server.Resume()
			}},
		},
	})
}

// With writes that wait for a replica, nothing is lost when that replica replaces a master:
// one that is killed, or one that was stopped and does not know it when it goes on.
func TestRedisPromoted(t *testing.T) {
	t.Parallel()
	promoted(t, "the master is killed", (*redistest.Server).Kill, (*redistest.Server).Restart)
}

func TestRedisDeposed(t *testing.T) {
	t.Parallel()
	promoted(t, "the master is deposed", (*redistest.Server).Pause, (*redistest.Server).Resume)
}

// The same holds in a Cluster.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, true)
	both(t, clustertest.Options{
		For: max(*lasts, 4*time.Second),
		Open: func(t testing.TB) clustertest.Node {
			url := "redis+cluster://" + servers[1].Addr() + "," + servers[2].Addr() + "/?wait=1"
			return clustertest.Node{Store: store(opened(t, redis.Open, url))}
		},
		Faults: []clustertest.Fault{{Name: "a master is killed", Once: true, Do: func() {
			servers[0].Kill()
			redistest.FailOver(servers[3], servers[1:]...)
			servers[0].Restart()
		}}},
	})
}

// Nodes go on while the sessions' slots of a Cluster move to other masters.
func TestRedisResharded(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, false)
	both(t, clustertest.Options{
		Open: func(t testing.TB) clustertest.Node {
			return clustertest.Node{Store: store(opened(t, redis.Open, "redis+cluster://"+servers[0].Addr()+"/"))}
		},
		Faults: []clustertest.Fault{{Name: "slots move", Once: true, Do: func() {
			for i := range 24 {
				from := servers[i%3]
				if key := from.MustDo("RANDOMKEY"); key != "" {
					redistest.Move(t, servers, from.MustDo("CLUSTER", "KEYSLOT", key), from, servers[(i+1)%3])
				}
			}
		}}},
	})
}

func promoted(t *testing.T, name string, away, back func(*redistest.Server)) {
	master := redistest.Start(t)
	replica := redistest.Replica(t, master)
	sentinel := redistest.Sentinel(t, master, "mymaster")
	both(t, clustertest.Options{
		For: max(*lasts, 4*time.Second),
		Open: func(t testing.TB) clustertest.Node {
			url := "redis+sentinel://" + sentinel.Addr() + "?master=mymaster&wait=1"
			return clustertest.Node{Store: store(opened(t, redis.Open, url))}
		},
		Faults: []clustertest.Fault{{Name: name, Once: true, Do: func() {
			away(master)
			sentinel.FailOver("mymaster", replica)
			redistest.Replica(t, replica)
			back(master)
		}}},
	})
}
