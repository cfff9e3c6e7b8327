package clustertest_test

import (
	"context"
	"flag"
	"log/slog"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/cluster/clustertest"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	natstest.Main()
	testlong.AtOnce(4)
	// The goroutine of go-redis ends within a second of Close.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

var (
	lasts = flag.Duration("for", 0, "how long nodes are at work in each test; 0: half a second, three with -long")
	seed  = flag.Uint64("seed", 0, "of what they do; 0: a random one")
	quiet = slog.New(slog.DiscardHandler)
)

// store returns a node's store over a log.
func store(log durable.Log) clustertest.Store {
	return durable.New(log, durable.Options{Patience: 5 * time.Second, Logger: quiet})
}

// both runs the checks of the bus and of the store on one engine.
func both(t *testing.T, o clustertest.Options) {
	t.Run("bus", func(t *testing.T) { bus(t, o) })
	t.Run("store", func(t *testing.T) { work(t, o) })
}

// bus runs the checks of the bus.
func bus(t *testing.T, o clustertest.Options) {
	o.Faults = slices.DeleteFunc(slices.Clone(o.Faults), func(f clustertest.Fault) bool { return f.Once })
	clustertest.RunBus(t, o)
}

// work runs the checks of the store.
func work(t *testing.T, o clustertest.Options) {
	switch {
	case o.For != 0:
	case *lasts != 0:
		o.For = *lasts
	case testlong.Wanted():
		o.For = 3 * time.Second
	default:
		o.For = 500 * time.Millisecond
	}
	o.Seed = *seed
	clustertest.Run(t, o)
}

// opened opens a log, and tries again for a while, as the engine may just be failing over.
func opened(t testing.TB, open func(ctx context.Context, url string, o durable.Options) (durable.Log, error), url string) durable.Log {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		log, err := open(t.Context(), url, durable.Options{Logger: quiet})
		if err == nil {
			return log
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// The engine in memory loses answers, and carries out operations late.
func TestFake(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]func(*testing.T, clustertest.Options){"bus": bus, "store": work} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, fake())
		})
	}
}

// fake returns options with an engine in memory.
func fake() clustertest.Options {
	e := logtest.New(logtest.Options{Seed: *seed, Faults: logtest.Faults{Latency: time.Millisecond}})
	faulty := func(f logtest.Faults) func() {
		f.Latency = time.Millisecond
		return func() {
			e.SetFaults(f)
			time.Sleep(testlong.Either[time.Duration](200, 500) * time.Millisecond) // the fault's length
			e.SetFaults(logtest.Faults{Latency: time.Millisecond})
		}
	}
	return clustertest.Options{
		Open: func(testing.TB) clustertest.Node {
			h := e.Open()
			return clustertest.Node{Store: store(h), Cut: func(c clustertest.Cut) { h.Cut(c != clustertest.Healed) }}
		},
		Faults: []clustertest.Fault{
			{Name: "operations fail", Do: faulty(logtest.Faults{Before: 0.1})},
			{Name: "answers are lost", Do: faulty(logtest.Faults{After: 0.1})},
			{Name: "operations happen late", Do: faulty(logtest.Faults{Late: 0.1})},
			{Name: "the engine is full", Do: func() {
				e.SetFull(true)
				time.Sleep(testlong.Either[time.Duration](150, 300) * time.Millisecond) // the fault's length
				e.SetFull(false)
			}},
		},
	}
}
