package client

import "testing"

// Every state meets every event: an event outside of the table of muxState changes nothing.
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
				x := &mux{state: s, session: muxSession{begun: begun}, changed: make(chan struct{}), ended: make(chan struct{})}
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

// The connections of a session, one after the other.
func TestMuxSession(t *testing.T) {
	t.Parallel()
	var s muxSession
	for i, test := range []struct {
		resumed, ended bool
		renew          bool
		want           muxSession
	}{
		{false, false, false, muxSession{begun: true, born: 1}},   // the first connection
		{true, false, false, muxSession{begun: true, born: 1}},    // the session continues
		{false, true, true, muxSession{renewing: true, born: 3}},  // the session has ended
		{false, true, false, muxSession{renewing: true, born: 4}}, // the connection of the renewal has ended, too
		{true, false, false, muxSession{renewing: true, born: 4}}, // the renewed session continues
	} {
		renew := s.opened(i+1, test.resumed, test.ended)
		if renew != test.renew || s != test.want {
			t.Errorf("connection %d: renew %v, %+v, want %+v", i+1, renew, s, test.want)
		}
	}
	s.renewed(true)
	if want := (muxSession{begun: true, born: 4}); s != want {
		t.Errorf("renewed: %+v, want %+v", s, want)
	}
	s = muxSession{begun: true} // a session of a State
	if s.opened(1, true, false) || s != (muxSession{begun: true}) {
		t.Errorf("continued: %+v", s)
	}
}
