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
