package client

import "testing"

// Every state meets every event: an event outside of the table of standaloneState changes nothing.
func TestStandaloneState(t *testing.T) {
	t.Parallel()
	type key struct {
		state standaloneState
		event standaloneEvent
	}
	table := map[key]standaloneState{
		{standaloneOff, standaloneWanted}:        standaloneOpening,
		{standaloneOpening, standaloneConnected}: standaloneOpen,
		{standaloneWaiting, standaloneConnected}: standaloneOpen,
		{standaloneOpen, standaloneDisconnected}: standaloneWaiting,
		{standaloneOpening, standaloneRefused}:   standaloneOff,
		{standaloneOpen, standaloneRefused}:      standaloneOff,
		{standaloneWaiting, standaloneRefused}:   standaloneOff,
	}
	for s := standaloneOff; s <= standaloneWaiting; s++ {
		for e := standaloneWanted; e <= standaloneRefused; e++ {
			want, listed := table[key{s, e}]
			if !listed {
				want = s
			}
			var c Conn
			c.standalone.state = s
			if before := c.standaloneHappened(e); before != s || c.standalone.state != want {
				t.Errorf("state %d, event %d: got %d, want %d", s, e, c.standalone.state, want)
			}
		}
	}
}
