package cluster

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// If the bus stops carrying messages just after a node has begun to dial another, the
// other node does not count as gone.
func TestDialBusAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, _ := alone(t)
		n.hears(from("a", kindBeat).bytes(0))
		time.Sleep(time.Minute)
		dialled := make(chan error)
		go func() {
			_, err := n.Dial(t.Context(), "a")
			dialled <- err
		}()
		time.Sleep(100 * time.Millisecond)
		n.health.echo.Store(int64(n.now())) // the last message that the bus carried
		if err := <-dialled; !errors.Is(err, errAway) {
			t.Errorf("dialled: %v", err)
		}
		p := n.use("a")
		defer n.release(p)
		if p.lost() {
			t.Error("the peer counts as gone")
		}
	})
}
