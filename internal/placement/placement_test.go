package placement

import (
	"context"
	"testing"
)

// A placement changes its state as the table says, and in no other way.
func TestPlacementStates(t *testing.T) {
	t.Parallel()
	all := []placementState{placed, sent, streaming, broken, done}
	for _, from := range all {
		for _, next := range all {
			p := Placement{state: from}
			p.to(next)
			want := from
			switch [2]placementState{from, next} {
			case [2]placementState{placed, sent}, [2]placementState{placed, streaming}, [2]placementState{placed, done},
				[2]placementState{sent, streaming}, [2]placementState{sent, done},
				[2]placementState{streaming, broken}, [2]placementState{streaming, done},
				[2]placementState{broken, streaming}, [2]placementState{broken, done}:
				want = next
			}
			if p.state != want {
				t.Errorf("from %d to %d: %d", from, next, p.state)
			}
		}
	}
}

// A drained node disconnects a client as soon as the client can come back for its
// answers, and not before.
func TestDepartureStates(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		steps            func(*departure)
		turn, over, gone bool
		due              bool
		state            int32
	}{
		"a GET, its turn":                   {steps: func(*departure) {}, turn: true},
		"a GET, at the end":                 {steps: func(*departure) {}, over: true, due: true},
		"requests, at the end":              {steps: (*departure).waits, over: true, state: mustWait},
		"requests, when none is waited for": {steps: (*departure).waits, gone: true, due: true, state: mustWait},
		"requests with an id":               {steps: func(d *departure) { d.waits(); d.hasID() }, over: true, due: true},
		"who listens, its turn":             {steps: (*departure).listens, turn: true, due: true, state: listening},
		"who listens, before its turn":      {steps: (*departure).listens, state: listening},
		"who waits does not listen":         {steps: func(d *departure) { d.waits(); d.listens() }, turn: true, state: mustWait},
		"who departs":                       {steps: func(d *departure) { d.begin(); d.waits(); d.hasID(); d.listens() }, state: departing},
	} {
		var d departure
		tc.steps(&d)
		if due := d.due(tc.turn, tc.over, tc.gone); due != tc.due || d.state.Load() != tc.state {
			t.Errorf("%s: due %v, state %d", name, due, d.state.Load())
		}
	}
	var d departure
	ctx, cancel := context.WithCancel(t.Context())
	if !d.cancels(&cancel) {
		t.Error("it departs")
	}
	d.begin()
	if ctx.Err() == nil || d.cancels(&cancel) || !d.begun() {
		t.Error("it does not depart")
	}
}
