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
				time.Sleep(700 * time.Millisecond) // the fault's length
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
