package durable_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"holdfast/internal/engine/contest"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
)

// With any faults of the engine, and with nodes cut off from it, no acknowledged
// entry is lost, and no node appends after a newer owner.
func TestContest(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]logtest.Faults{
		"well":   {},
		"slow":   {Latency: 2 * time.Millisecond},
		"faulty": {Before: 0.1, After: 0.1, Late: 0.1, Behind: 0.5, Latency: 200 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			e := logtest.New(logtest.Options{Seed: seed, Faults: faults})
			var nodes []shared.Store
			var handles []*logtest.Handle
			for range 3 {
				n := open(t, e, durable.Options{Patience: 300 * time.Millisecond})
				t.Cleanup(n.shut)
				nodes = append(nodes, n)
				handles = append(handles, n.h)
			}
			o := contest.Options{Seed: seed, For: time.Second}
			if name == "faulty" {
				o.Disturb = func(rng *rand.Rand) { handles[rng.IntN(3)].Cut(rng.IntN(3) == 0) }
				o.Calm = func() {
					for _, h := range handles {
						h.Cut(false)
					}
					e.SetFaults(logtest.Faults{})
				}
			}
			contest.Run(t, nodes, o)
		})
	}
}
