package session

import (
	"errors"
	"slices"
	"testing"
)

// A session takes the steps of its table and no others.
func TestSessionSteps(t *testing.T) {
	t.Parallel()
	for from := sessionOpening; from <= sessionMoved; from++ {
		for to := sessionOpening; to <= sessionMoved; to++ {
			s := &Session{}
			s.life.now.Store(uint32(from))
			want := slices.Contains(sessionSteps[from], to)
			was, ok := s.become(to)
			is := from
			if want {
				is = to
			}
			if ok != want || was != from || s.life.state() != is {
				t.Errorf("from %d to %d: %v, was %d, is %d", from, to, ok, was, s.life.state())
			}
		}
	}
}

// What happens to a session brings it through its states.
func TestSessionStates(t *testing.T) {
	t.Parallel()
	f := newShelf()
	n := f.add(t, "a", Options{})
	why := errors.New("the test says so")
	type step struct {
		do func(s *Session)
		is sessionState
	}
	var (
		read    *Reader // keeps an ended session for as long as it reads
		attach  = func(s *Session) { read, _ = s.Read(t.Context(), standalone, 0, 0, make(chan struct{}, 1)) }
		detach  = func(*Session) { read.Detach(false, true, false) }
		end     = func(s *Session) { n.end(s, why) }
		linger  = func(s *Session) { n.endAs(s, sessionLingering, why) }
		sever   = func(s *Session) { n.sever(s) }
		lose    = func(s *Session) { n.lose(s, 0) }
		release = func(s *Session) { n.part(s, false) }
	)
	for what, steps := range map[string][]step{
		"ended before it was opened": {{end, sessionDeleted}, {lose, sessionDeleted}},
		"open":                       {{nil, sessionOpen}},
		"ended and read":             {{nil, sessionOpen}, {attach, sessionOpen}, {end, sessionEnded}, {end, sessionEnded}, {detach, sessionDeleted}},
		"lingering":                  {{nil, sessionOpen}, {attach, sessionOpen}, {linger, sessionLingering}, {n.leave, sessionEnded}, {n.leave, sessionEnded}, {detach, sessionDeleted}},
		"lingering and lost":         {{nil, sessionOpen}, {attach, sessionOpen}, {linger, sessionLingering}, {lose, sessionMoved}, {n.leave, sessionMoved}, {detach, sessionMoved}},
		"ended and lost":             {{nil, sessionOpen}, {attach, sessionOpen}, {end, sessionEnded}, {lose, sessionMoved}, {detach, sessionMoved}},
		"lost":                       {{nil, sessionOpen}, {lose, sessionMoved}, {end, sessionMoved}},
		"handed over":                {{nil, sessionOpen}, {n.yield, sessionMoved}, {sever, sessionMoved}},
		"cut":                        {{nil, sessionOpen}, {sever, sessionLeaving}, {end, sessionLeaving}, {release, sessionMoved}},
		"cut and lost":               {{nil, sessionOpen}, {sever, sessionLeaving}, {lose, sessionMoved}, {release, sessionMoved}},
		"cut, and not begun":         {{nil, sessionOpen}, {sever, sessionLeaving}, {n.forget, sessionDeleted}, {release, sessionDeleted}},
	} {
		var s *Session
		if steps[0].do == nil {
			s = n.open("alice")
			steps = steps[1:]
		} else {
			s = n.session("secret", "alice", TenantOf("alice", ""), false)
			if s.life.state() != sessionOpening {
				t.Errorf("%s: begins as %d", what, s.life.state())
			}
		}
		for i, step := range steps {
			step.do(s)
			eventually(t, what, func() bool { return s.life.state() == step.is })
			if s.Moved() != (step.is == sessionMoved) || s.isClosed() != (step.is > sessionOpen) {
				t.Errorf("%s, step %d: moved %v, closed %v", what, i, s.Moved(), s.isClosed())
			}
		}
	}
}
