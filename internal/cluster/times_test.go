package cluster_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/cluster/bustest"
)

// A node that only reads from a peer notices in time that the peer has died.
func TestNoticed(t *testing.T) {
	for _, test := range []struct {
		what        string
		nobody      bustest.NoNode
		least, most time.Duration
	}{
		{"where the bus knows at once", bustest.AtOnce, 300 * time.Millisecond, time.Second},
		{"where it says so later", bustest.Later, 300 * time.Millisecond, time.Second},
		{"where it says nothing", bustest.Never, 1500 * time.Millisecond, 2500 * time.Millisecond},
	} {
		t.Run(test.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t, 1, cluster.Options{}, "a", "b")
				w.Set(bustest.Faults{NoNode: test.nobody})
				c, other := w.pair("b")
				time.Sleep(10 * time.Minute)
				w.buses["b"].Close()
				died := time.Now()
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, cluster.ErrNoNode) {
					t.Errorf("reading from the dead: %v", err)
				}
				if took := time.Since(died); took < test.least || took > test.most {
					t.Errorf("noticed after %v", took)
				}
				other.Close()
			})
		})
	}
	t.Run("that is announced", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTown(t, 1, cluster.Options{}, "a", "b")
			c, _ := w.pair("b")
			died := time.Now()
			w.nodes["b"].Close()
			delete(w.nodes, "b")
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("read from one who has left")
			}
			if took := time.Since(died); took > 100*time.Millisecond {
				t.Errorf("noticed after %v", took)
			}
		})
	})
}

// An idle connection costs next to no messages, and does not end.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, cluster.Options{}, "a", "b")
		here, there := w.pair("b")
		before := w.Count()
		time.Sleep(10 * time.Minute)
		// Each node sends each other node 2 heartbeats a second, and a question and an
		// answer every ten seconds.
		if count := w.Count() - before; count > 600*2*2*2+600/10*2*2+100 {
			t.Errorf("%d messages in ten minutes", count)
		}
		if _, err := here.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if _, err := there.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		here.Close()
		there.Close()
	})
}
