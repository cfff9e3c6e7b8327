package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// However often a server sends its client away for a moment, one that then can't be
// reached is tried again soon.
func TestPolledThenAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pace{told: true, retry: 10 * time.Millisecond}
		wait := func(err error) time.Duration {
			t.Helper()
			began := time.Now()
			if err := p.waitFor(t.Context(), err, time.Hour); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		for range 100 {
			if d := wait(nil); d > 20*time.Millisecond {
				t.Fatalf("sent away for 10 ms, and waited %v", d)
			}
		}
		away := errors.New("away")
		if d := wait(away); d > 2*firstDelay {
			t.Errorf("away, and waited %v", d)
		}
		for range 20 {
			wait(away)
		}
		if d := wait(away); d < longestDelay/4 {
			t.Errorf("away for long, and waited %v", d)
		}
		wait(nil)
		if d := wait(away); d > 2*firstDelay {
			t.Errorf("away again, and waited %v", d)
		}
	})
}
