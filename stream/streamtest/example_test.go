package streamtest_test

import (
	"testing"

	"holdfast/engine"
	"holdfast/stream"
	"holdfast/stream/streamtest"
)

// TestStore in a package that implements a store.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestStore(t *testing.T)
		streamtest.Run(t, func(_ *testing.T, limits streamtest.Limits) func() stream.Store {
			return func() stream.Store {
				return engine.Memory(engine.Options{Keep: limits.Keep, Memory: limits.TotalBytes})
			}
		}, streamtest.Options{})
	}
	// Output:
}
