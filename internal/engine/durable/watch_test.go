package durable

import (
	"testing"
	"time"
)

// The watch reports a jump only if the wall clock advances more than the time that has passed.
func TestWatch(t *testing.T) {
	t.Parallel()
	began := time.Now()
	w := watch{began: began}
	for i, x := range []struct{ wall, passed, want time.Duration }{
		{time.Second, time.Second, 0},
		{time.Hour + 2*time.Second, 2 * time.Second, time.Hour},
		{time.Hour + 3*time.Second, 3 * time.Second, 0}, // the jump was reported already
		{4 * time.Second, 4 * time.Second, -time.Hour},
		{8 * time.Hour, 8 * time.Hour, 0}, // the process was stopped
	} {
		if got := w.jumped(began.Round(0).Add(x.wall), x.passed); got != x.want {
			t.Errorf("%d: %v, want %v", i, got, x.want)
		}
	}
}
