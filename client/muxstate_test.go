package client

import "testing"

// Every state with every event: what the table of muxState does not list changes nothing.
func TestMuxState(t *testing.T) {
	t.Parallel()
	type key struct {
		state muxState
		event muxEvent
		begun bool
	}
	table := map[key]muxState{
		{muxConnecting, muxConnected, false}: muxOpening,
		{muxConnecting, muxConnected, true}:  muxOpen,
		{muxOpening, muxSessionBegun, false}: muxOpen,
		{muxOpening, muxSessionBegun, true}:  muxOpen,
		{muxOpening, muxDisconnected, false}: muxConnecting,
		{muxOpening, muxDisconnected, true}:  muxConnecting,
		{muxOpen, muxDisconnected, false}:    muxConnecting,
		{muxOpen, muxDisconnected, true}:     muxConnecting,
		{muxConnecting, muxGaveUp, false}:    muxFailed,
		{muxConnecting, muxGaveUp, true}:     muxFailed,
		{muxOpening, muxGaveUp, false}:       muxFailed,
		{muxOpening, muxGaveUp, true}:        muxFailed,
		{muxOpen, muxGaveUp, false}:          muxFailed,
		{muxOpen, muxGaveUp, true}:           muxFailed,
	}
	for s := muxConnecting; s <= muxFailed; s++ {
		for e := muxConnected; e <= muxGaveUp; e++ {
			for _, begun := range []bool{false, true} {
				want, listed := table[key{s, e, begun}]
				if !listed {
					want = s
				}
				x := &mux{state: s, begun: begun, changed: make(chan struct{}), ended: make(chan struct{})}
				changed, ended := x.changed, x.ended
				x.transition(e)
				if x.state != want {
					t.Errorf("state %d, event %d, begun %v: got %d, want %d", s, e, begun, x.state, want)
				}
				if !isClosed(changed) {
					t.Errorf("state %d, event %d: nobody was woken", s, e)
				}
				if lost := s.connected() && !want.connected(); isClosed(ended) != lost {
					t.Errorf("state %d, event %d: connection ended: %v", s, e, !lost)
				}
			}
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
