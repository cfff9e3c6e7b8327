package e2e

import (
	"slices"
	"testing"
	"time"
)

// Some clients resume a call, lose the connection before its first event id, forget the id with
// which they resumed, and come back with the session id only, while another of their
// connections takes turns with it at the standalone stream. They receive the rest of the call,
// and no message twice. (Failure 3)
func TestIDForgotten(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, serve func(...string) *program) {
		const steps, received = 20, 2
		p := serve("--retry", "100ms")
		c := connect(t, p)
		listening := c.listen("GET", "", "")
		listening.next() // the first event id
		call := c.count(steps, 50*time.Millisecond)
		call.until(received)
		call.Close()
		c.listen("GET", call.LastID, "").Close()
		forgetful := c.listen("GET", "", "")     // takes the standalone stream over
		var early []string                       // messages to a connection that was replaced afterwards, on a slow machine
		for turn := 0; len(early) == 0; turn++ { // until a connection receives a message of the call
			time.Sleep(100 * time.Millisecond) // the retry time of both
			early = listening.rest().received
			if turn == 1 { // soon the server does not end the older connection any more: it steps aside
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
			if m := forgetful.received[heard]; !slices.Contains(early, m) { // the replaced connection may have got a part of them
				got = append(got, m)
			}
		}
		if want := counted(received, steps); !slices.Equal(got, want) {
			t.Errorf("received %q, want %q", got, want)
		}
	})
}
