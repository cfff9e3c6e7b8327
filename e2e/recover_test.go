package e2e

import (
	"slices"
	"testing"
	"time"
)

// Some clients resume a call, lose the connection before its first id, forget
// the id that they resumed with, and come back with nothing but the session,
// while another connection of theirs takes turns at the standalone stream. They
// hear the rest of the call, and nothing twice. (Failure 3)
func TestIDForgotten(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, serve func(...string) *program) {
		const steps, received = 20, 2
		p := serve("--retry", "100ms")
		c := connect(t, p)
		listening := c.listen("GET", "", "")
		listening.next() // its first id
		call := c.count(steps, 50*time.Millisecond)
		call.until(received)
		call.Close()
		c.listen("GET", call.LastID, "").Close()
		forgetful := c.listen("GET", "", "")     // takes over
		var early []string                       // heard by a connection that was then replaced, where the machine is slow
		for turn := 0; len(early) == 0; turn++ { // as long as neither hears of the call
			time.Sleep(100 * time.Millisecond) // as both were told
			early = listening.rest().received
			if turn == 1 { // from the fourth connection on, the one before it is let be
				break
			}
			if len(early) == 0 {
				listening, forgetful = forgetful, c.listen("GET", listening.LastID, "")
			}
		}
		got := early
		for len(got) < steps-received+1 {
			heard := len(forgetful.received)
			forgetful.until(heard + 1)
			if m := forgetful.received[heard]; !slices.Contains(early, m) { // it was cut off amid them
				got = append(got, m)
			}
		}
		if want := counted(received, steps); !slices.Equal(got, want) {
			t.Errorf("received %q, want %q", got, want)
		}
	})
}
