package cluster_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/cluster/bustest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// If the bus carries nothing for a time, and the messages after it come at different times, no node counts as gone.
func TestBusAway(t *testing.T) {
	for _, away := range []time.Duration{1400 * time.Millisecond, 1600 * time.Millisecond, 1700 * time.Millisecond, 1900 * time.Millisecond, 2500 * time.Millisecond} {
		for i := range 400 {
			if i%4 != 0 && !testlong.All() {
				continue
			}
			synctest.Test(t, func(t *testing.T) { busAway(t, i, time.Duration(i*13+i%7)*time.Millisecond, away) })
		}
	}
}

// If a node asks a peer for a sign of life during a short pause of the bus, it asks again afterwards.
func TestBusPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { busAway(t, 97, 97*1300*time.Microsecond, 1600*time.Millisecond) })
}

func busAway(t *testing.T, i int, phase, away time.Duration) {
	w := newTown(t, uint64(100+i), cluster.Options{}, "a")
	w.Set(bustest.Faults{Jitter: 300 * time.Millisecond})
	time.Sleep(phase) // nodes send heartbeats at different times
	w.join("b", cluster.Options{})
	gone := 0
	w.nodes["a"].Watch(func(string) { gone++ })
	mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(w.nodes["a"].Peers()) == 1 })
	c := mcptest.Must(w.nodes["a"].Dial(t.Context(), "b"))(t)
	defer c.Close()
	time.Sleep(3*time.Second + time.Duration(i)*7*time.Millisecond)
	w.buses["a"].Pause(true)
	w.buses["b"].Pause(true)
	time.Sleep(away)
	w.buses["a"].Pause(false)
	w.buses["b"].Pause(false)
	time.Sleep(3 * time.Second)
	if gone > 0 {
		t.Errorf("run %d: the peer counts as gone after the bus was away for %v", i, away)
	}
}

// If a peer that was gone comes back while the bus carries nothing for this node, the
// node does not take it for gone afterwards.
func TestBackWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, cluster.Options{}, "a")
		w.join("b", cluster.Options{})
		a := w.nodes["a"]
		mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(a.Peers()) == 1 })
		w.buses["b"].Pause(true)
		mcptest.Eventually(t, "b is gone", time.Minute, func() bool { return a.Gone(t.Context(), "b") })
		w.buses["a"].Pause(true)
		time.Sleep(3 * time.Second)
		w.buses["b"].Pause(false)
		time.Sleep(3 * time.Second)
		w.buses["a"].Pause(false)
		for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(10 * time.Millisecond) {
			if a.Gone(t.Context(), "b") {
				t.Fatalf("gone, %v after the bus came back", time.Since(began))
			}
		}
	})
}

// A node that is lost once has one line in the log, also if the bus fails and comes back afterwards.
func TestLostBeforeBusAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log mcptest.Log
		w := newTown(t, 1, cluster.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, "a")
		w.join("b", cluster.Options{})
		w.join("c", cluster.Options{})
		a := w.nodes["a"]
		mcptest.Eventually(t, "peers", time.Minute, func() bool { return len(a.Peers()) == 2 })
		w.kill("b")
		mcptest.Eventually(t, "b is gone", time.Minute, func() bool { return a.Gone(t.Context(), "b") })
		time.Sleep(10 * time.Second)
		for range 3 {
			w.buses["a"].Pause(true)
			w.buses["c"].Pause(true)
			time.Sleep(8 * time.Second)
			w.buses["a"].Pause(false)
			w.buses["c"].Pause(false)
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		if n := len(log.Lines("node=b")); n != 1 {
			t.Errorf("%d lines tell of a node that was lost once: %s", n, &log)
		}
	})
}
