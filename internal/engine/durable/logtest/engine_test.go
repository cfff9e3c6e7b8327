package logtest_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(16)
	goleak.VerifyTestMain(m)
}

// The engine in memory passes its own suite.
func TestEngine(t *testing.T) {
	t.Parallel()
	// Each case has an engine. One case has an engine with the shortest retention that a test can wait for.
	logtest.Run(t, func(t *testing.T) func() durable.Log {
		o := logtest.Options{Faults: logtest.Faults{Latency: 100 * time.Microsecond}}
		if strings.HasSuffix(t.Name(), "/frames_expire") {
			o.Retention = 2 * time.Second
		}
		e := logtest.New(o)
		return func() durable.Log { return e.Open() }
	}, logtest.RunOptions{Bubble: true})
}
