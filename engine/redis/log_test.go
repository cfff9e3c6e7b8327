//go:build unix

package redis

import (
	"testing"

	"holdfast/engine/durable"
	"holdfast/engine/durable/logtest"
	"holdfast/engine/redis/redistest"
)

// opener returns what opens handles on what a URL names, as several nodes do.
func opener(rawURL string) logtest.Maker {
	return func(t *testing.T) func() durable.Log {
		return func() durable.Log {
			l, err := Open(t.Context(), rawURL, durable.Options{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	logtest.Run(t, opener(redistest.Start(t).URL()), logtest.RunOptions{})
}

// The same with a password and a prefix, in another database, and with every
// write waiting for a replica.
func TestLogWaits(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--requirepass", "p@ss/w?rd", "--masterauth", "p@ss/w?rd")
	redistest.Replica(t, master, "--masterauth", "p@ss/w?rd")
	logtest.Run(t, opener("redis://:p%40ss%2Fw%3Frd@"+master.Addr()+"/3?prefix=my.app:1&wait=1"), logtest.RunOptions{})
}

func TestLogSentinel(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.Replica(t, master)
	sentinel := redistest.Sentinel(t, master, "mymaster")
	logtest.Run(t, opener("redis+sentinel://127.0.0.1:1,"+sentinel.Addr()+"/1?master=mymaster"), logtest.RunOptions{})
}

func TestLogCluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, true)
	url := "redis+cluster://" + servers[0].Addr() + "," + servers[1].Addr()
	t.Run("", func(t *testing.T) {
		t.Parallel()
		logtest.Run(t, opener(url), logtest.RunOptions{})
	})
	t.Run("wait", func(t *testing.T) {
		t.Parallel()
		logtest.Run(t, opener(url+"/0?wait=1&prefix=other"), logtest.RunOptions{})
	})
}
