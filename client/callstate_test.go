package client

import "testing"

// Every state meets every event: an event outside of the table of callState changes nothing.
func TestCallState(t *testing.T) {
	t.Parallel()
	states := []callState{callUnsent, callSent, callTaken, callAnswered, callCancelling}
	events := []callEvent{eventSent, eventTaken, eventAnswered, eventCancelled, eventUndelivered}
	type pair struct {
		state callState
		event callEvent
	}
	table := map[pair]callState{
		{callUnsent, eventSent}:          callSent,
		{callUnsent, eventTaken}:         callTaken,
		{callSent, eventTaken}:           callTaken,
		{callUnsent, eventAnswered}:      callAnswered,
		{callSent, eventAnswered}:        callAnswered,
		{callTaken, eventAnswered}:       callAnswered,
		{callUnsent, eventCancelled}:     callCancelling,
		{callSent, eventCancelled}:       callCancelling,
		{callTaken, eventCancelled}:      callCancelling,
		{callAnswered, eventUndelivered}: callTaken,
	}
	for _, s := range states {
		for _, e := range events {
			want, listed := table[pair{s, e}]
			if !listed {
				want = s
			}
			k := &call{state: s}
			if changed := k.happened(e); k.state != want || changed != (want != s) {
				t.Errorf("state %d, event %d: got %d (changed: %v), want %d", s, e, k.state, changed, want)
			}
		}
	}
}
