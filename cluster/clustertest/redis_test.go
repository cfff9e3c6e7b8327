//go:build unix

package clustertest_test

import (
	"testing"
	"time"

	"holdfast/cluster/clustertest"
	"holdfast/engine/redis"
	"holdfast/engine/redis/redistest"
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
				time.Sleep(700 * time.Millisecond) // so long it lasts
				server.Resume()
			}},
		},
	})
}

// With writes that wait for a replica, that replica takes the master's place.
func TestRedisPromoted(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Replica(t, master)
	sentinel := redistest.Sentinel(t, master, "mymaster")
	both(t, clustertest.Options{
		For: max(*lasts, 4*time.Second),
		Open: func(t testing.TB) clustertest.Node {
			url := "redis+sentinel://" + sentinel.Addr() + "?master=mymaster&wait=1"
			log := opened(t, redis.Open, url)
			return clustertest.Node{Store: store(log)}
		},
		Faults: []clustertest.Fault{{Name: "the master is killed", Once: true, Do: func() {
			master.Kill()
			replica.Promoted()
			redistest.Replica(t, replica)
		}}},
	})
}
