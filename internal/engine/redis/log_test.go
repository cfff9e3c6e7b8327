//go:build unix

package redis

import (
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/redis/redistest"
)

// opener returns a function that opens a log at a URL, again for each node.
func opener(rawURL string) logtest.Maker {
	return func(t *testing.T) func() durable.Log {
		return func() durable.Log {
			return patient(t, rawURL, durable.Options{Logger: quiet})
		}
	}
}

// patient opens a URL for a test in which Redis is never away, so late answers on a
// busy machine are no errors.
func patient(t testing.TB, rawURL string, o durable.Options) durable.Log {
	t.Helper()
	const attempt = time.Minute
	to, err := parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case to.failover != nil:
		to.failover.DialTimeout, to.failover.ReadTimeout, to.failover.WriteTimeout, to.failover.PoolTimeout = attempt, attempt, attempt, attempt
	case to.cluster != nil:
		to.cluster.DialTimeout, to.cluster.ReadTimeout, to.cluster.WriteTimeout, to.cluster.PoolTimeout = attempt, attempt, attempt, attempt
	default:
		to.single.DialTimeout, to.single.ReadTimeout, to.single.WriteTimeout, to.single.PoolTimeout = attempt, attempt, attempt, attempt
	}
	l, err := openTarget(t.Context(), &to, o, attempt)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLog(t *testing.T) {
	t.Parallel()
	logtest.Run(t, opener(redistest.Start(t).URL()), logtest.RunOptions{})
}

// The suite runs with a password and a prefix, in another database, and with every
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
