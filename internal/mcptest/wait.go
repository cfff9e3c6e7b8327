package mcptest

import (
	"testing"
	"time"
)

// Eventually waits until is returns true. After atMost it ends the test with a message that names the condition, what. It
// calls is every few milliseconds: it is for conditions that no channel reports. In a synctest bubble it uses the time of
// the bubble.
func Eventually(t testing.TB, what string, atMost time.Duration, is func() bool) {
	t.Helper()
	const first, slowest = time.Millisecond, 20 * time.Millisecond
	pause := first
	for end := time.Now().Add(atMost); !is(); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, atMost)
		}
		pause = min(pause*2, slowest)
	}
}

// Standstill measures how long this process does not run, as the machine stands still: a time
// limit that was exceeded then proves nothing. lasted may be called once.
func Standstill() (lasted func() time.Duration) {
	stop, sum := make(chan struct{}), make(chan time.Duration)
	go func() {
		const beat, late = 20 * time.Millisecond, 200 * time.Millisecond
		t := time.NewTicker(beat)
		defer t.Stop()
		var total time.Duration
		for last, over := time.Now(), false; ; {
			select {
			case <-t.C:
			case <-stop:
				over = true
			}
			if gap := time.Since(last); gap > late {
				total += gap
			}
			if last = time.Now(); over {
				sum <- total
				return
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-sum
	}
}
