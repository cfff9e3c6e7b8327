package logtest_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/engine/durable"
	"holdfast/engine/durable/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The engine in memory passes the suite itself.
func TestEngine(t *testing.T) {
	t.Parallel()
	// An engine for each case: the clock is each one's own.
	logtest.Run(t, func(*testing.T) func() durable.Log {
		e := logtest.New(logtest.Options{Retention: 2 * time.Second, Faults: logtest.Faults{Latency: 100 * time.Microsecond}})
		return func() durable.Log { return e.Open() }
	}, logtest.RunOptions{})
}
