package session

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/handover"
	"holdfast/internal/mcptest"
	"holdfast/internal/reading"
	"holdfast/stream"
)

// A session takes the steps of its table and no others.
func TestSessionSteps(t *testing.T) {
	t.Parallel()
	for from := sessionOpening; from <= sessionMoved; from++ {
		for to := sessionOpening; to <= sessionMoved; to++ {
			s := &Session{}
			s.now.Store(uint32(from))
			want := slices.Contains(sessionSteps[from], to)
			was, ok := s.become(to)
			is := from
			if want {
				is = to
			}
			if ok != want || was != from || s.state() != is {
				t.Errorf("from %d to %d: %v, was %d, is %d", from, to, ok, was, s.state())
			}
		}
	}
}

// Events bring a session through its states.
func TestSessionStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // only waiting takes time
		f := newShelf()
		n := f.add(t, "a", Options{})
		why := errors.New("the test says so")
		type step struct {
			do func(s *Session)
			is sessionState
		}
		follow := func(s *Session) { // a client that the session lingers for
			number := s.streams.Add(writer{s.standalone})
			for range 2 {
				r, err := s.Read(t.Context(), number, 0, 0, make(chan struct{}, 1))
				if err != nil {
					t.Fatal(err)
				}
				defer r.Detach(false, true, false)
			}
		}
		var (
			read    *reading.Reader // its reader keeps an ended session for as long as it reads
			attach  = func(s *Session) { read, _ = s.Read(t.Context(), standalone, 0, 0, make(chan struct{}, 1)) }
			detach  = func(*Session) { read.Detach(false, true, false); time.Sleep(reading.FollowFor + time.Second) }
			end     = func(s *Session) { n.end(s, why) }
			linger  = func(s *Session) { follow(s); n.endAs(s, sessionLingering, why) }
			stop    = func(s *Session) { n.stopLingering(s) }
			sever   = func(s *Session) { departing{s}.Cut() }
			lose    = func(s *Session) { n.leaveNode(s, 0) }
			release = func(s *Session) { departing{s}.release(nil) }
			give    = func(s *Session) { departing{s}.HandOver() }
		)
		for what, steps := range map[string][]step{
			"ended before it was opened": {{end, sessionDeleted}, {lose, sessionDeleted}},
			"open":                       {{nil, sessionOpen}},
			"ended and read":             {{nil, sessionOpen}, {attach, sessionOpen}, {end, sessionEnded}, {end, sessionEnded}, {detach, sessionDeleted}},
			"lingering":                  {{nil, sessionOpen}, {attach, sessionOpen}, {linger, sessionLingering}, {stop, sessionEnded}, {stop, sessionEnded}, {detach, sessionDeleted}},
			"lingering and lost":         {{nil, sessionOpen}, {attach, sessionOpen}, {linger, sessionLingering}, {lose, sessionMoved}, {stop, sessionMoved}, {detach, sessionMoved}},
			"ended and lost":             {{nil, sessionOpen}, {attach, sessionOpen}, {end, sessionEnded}, {lose, sessionMoved}, {detach, sessionMoved}},
			"lost":                       {{nil, sessionOpen}, {lose, sessionMoved}, {end, sessionMoved}},
			"handed over":                {{nil, sessionOpen}, {give, sessionMoved}, {sever, sessionMoved}},
			"cut":                        {{nil, sessionOpen}, {sever, sessionLeaving}, {end, sessionLeaving}, {release, sessionMoved}},
			"cut and lost":               {{nil, sessionOpen}, {sever, sessionLeaving}, {lose, sessionMoved}, {release, sessionMoved}},
			"cut, and not begun":         {{nil, sessionOpen}, {sever, sessionLeaving}, {n.forget, sessionDeleted}, {release, sessionDeleted}},
		} {
			var s *Session
			if steps[0].do == nil {
				s = n.open("alice")
				steps = steps[1:]
			} else {
				s = n.session("secret", caller.At("", "alice"), caller.TenantOf(caller.At("", "alice"), ""), kind{})
				if s.state() != sessionOpening {
					t.Errorf("%s: begins as %d", what, s.state())
				}
			}
			for i, step := range steps {
				step.do(s)
				mcptest.Eventually(t, what, time.Minute, func() bool { return s.state() == step.is })
				if s.Moved() != (step.is == sessionMoved) || s.isClosed() != (step.is > sessionOpen) {
					t.Errorf("%s, step %d: moved %v, closed %v", what, i, s.Moved(), s.isClosed())
				}
			}
		}
	})
}

// A call takes the steps of its table and no others.
func TestCallSteps(t *testing.T) {
	t.Parallel()
	for from := callLight; from <= callSealed; from++ {
		for to := callLight; to <= callSealed; to++ {
			c := &Call{}
			c.now.Store(uint32(from))
			want := slices.Contains(callSteps[from], to)
			is := from
			if want {
				is = to
			}
			if ok := c.become(to); ok != want || c.state() != is {
				t.Errorf("from %d to %d: %v, is %d", from, to, ok, c.state())
			}
		}
	}
}

// Messages and other events bring a call through its states.
func TestCallStates(t *testing.T) {
	t.Parallel()
	h, d := diskHouse(t, Options{})
	s := h.open("alice")
	id := 0
	type step struct {
		do func(c *Call)
		is callState
	}
	answer := func(c *Call) {
		h.desk.last().say(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":1}`, id))
	}
	notify := func(c *Call) { h.desk.last().say(c, `{"jsonrpc":"2.0","method":"notifications/message"}`) }
	cancel := func(*Call) {
		m := mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
		if err := s.Send(t.Context(), m, nil); err != nil {
			t.Error(err)
		}
	}
	refuse := func(c *Call) {
		d.set(func([]stream.Record) error { return stream.ErrFull })
		notify(c)
		d.set(nil)
	}
	drop := func(c *Call) {
		rq := s.requests.take(fmt.Appendf(nil, "%d", id), c)
		h.dropRequests(s, []*inflight{rq})
	}
	for what, steps := range map[string][]step{
		"answered":              {{nil, callLight}, {answer, callAnswered}, {notify, callAnswered}, {(*Call).Promote, callAnswered}},
		"cancelled while light": {{nil, callLight}, {cancel, callAnswered}},
		"dropped":               {{nil, callLight}, {drop, callAnswered}},
		"says more":             {{nil, callLight}, {notify, callStored}, {notify, callStored}, {answer, callEnded}, {notify, callEnded}},
		"promoted":              {{nil, callLight}, {(*Call).Promote, callStored}, {cancel, callEnded}},
		"disconnected":          {{nil, callLight}, {func(c *Call) { c.Disconnect(0) }, callStored}, {drop, callEnded}},
		"refused":               {{nil, callLight}, {(*Call).Promote, callStored}, {refuse, callSealed}, {answer, callSealed}},
	} {
		id++
		c := begin(t, s, true, request(id))
		for i, step := range steps {
			if step.do != nil {
				step.do(c)
			}
			if c.state() != step.is {
				t.Errorf("%s, step %d: %d, want %d", what, i, c.state(), step.is)
			}
		}
	}
	if s.standalone.state() != callStored || h.Calls() != 0 {
		t.Errorf("the standalone stream is %d; %d calls", s.standalone.state(), h.Calls())
	}
}

// The requests of a call take the steps of their table and no others.
func TestRecoverySteps(t *testing.T) {
	t.Parallel()
	for from := recoveryUndelivered; from <= recoveryHandedBack; from++ {
		for to := recoveryUndelivered; to <= recoveryHandedBack; to++ {
			k := &recovery{state: from}
			want := slices.Contains(recoverySteps[from], to)
			is := from
			if want {
				is = to
			}
			if ok := k.become(to); ok != want || k.state != is {
				t.Errorf("from %d to %d: %v, is %d", from, to, ok, k.state)
			}
		}
	}
}

// The ends of a manager bring it through its states.
func TestDrainStates(t *testing.T) {
	t.Parallel()
	f := newShelf()
	n := f.add(t, "a", Options{})
	n.open("alice")
	var is []handover.State
	look := func() { is = append(is, n.work.State()) }
	look()
	n.Departure.DrainAlone(t.Context(), func() bool { look(); return false })
	look()
	if err := n.Departure.HandOver(t.Context()); err != nil {
		t.Error(err)
	}
	look()
	n.Departure.Stop()
	look()
	n.Close()
	look()
	if want := []handover.State{handover.Serving, handover.WaitingAlone, handover.Serving, handover.HandingOver, handover.Stopped, handover.Closed}; !slices.Equal(is, want) {
		t.Errorf("the states were %d, want %d", is, want)
	}
}
