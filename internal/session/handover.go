package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/internal/moves"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

const (
	// handOften is how often it is looked for sessions in which nothing is in flight.
	handOverTick = 50 * time.Millisecond

	// farewell is how long readers are given to read what was said to the end, in a
	// session that is cut.
	readersGrace = 2 * time.Second
)

// HandOver gives up all sessions for other nodes to take over, each as soon as
// nothing is in flight in it. When ctx is done it cuts what is left: calls that
// may be made again, or that no backend has got yet, are left to the next owner,
// others end with their outcome unknown. It returns when no session is left; the
// error is ctx's if it had to cut, which takes as long as [readersGrace] and what the
// store needs, and [closePatience] if the store does not answer. It does nothing
// where the store is not shared. From now on no session is taken over any more.
func (m *Manager) HandOver(ctx context.Context) error {
	if m.shared == nil {
		return nil
	}
	m.drain.become(handingOver)
	m.awaitTakeOvers(ctx)
	tick := time.NewTicker(handOverTick)
	defer tick.Stop()
	for {
		all := m.all()
		if len(all) == 0 {
			return nil
		}
		var quiet []*Session
		for _, s := range all {
			if s.use.calls.Load() == 0 && !s.streams.Lags() {
				quiet = append(quiet, s)
			}
		}
		each(quiet, parallel, m.handOverIdle)
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.LogUnfinished()
			late := time.AfterFunc(closePatience, m.stop)
			defer late.Stop()
			m.cut(m.all())
			return ctx.Err()
		}
	}
}

// DrainAlone is what comes before [Manager.HandOver] as long as there is nobody to take
// sessions over: they stay, and what listens to them may, but tools are called no more,
// nor methods that the specification does not have: that is refused with [ErrClosing].
// It returns when nothing is in flight, alone says that somebody has come, or ctx is
// done. It does nothing where the store is not shared.
func (m *Manager) DrainAlone(ctx context.Context, alone func() bool) {
	if m.shared == nil {
		return
	}
	m.drain.become(waitingAlone)
	defer m.drain.become(serving)
	tick := time.NewTicker(handOverTick)
	defer tick.Stop()
	for alone() && slices.ContainsFunc(m.all(), func(s *Session) bool { return s.use.calls.Load() > 0 || s.streams.Lags() }) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// refusesAlone reports whether requests are not to be begun because of [Manager.DrainAlone].
func (m *Manager) refusesAlone(msgs []jsonrpc.Message) bool {
	return m.drain.state() == waitingAlone && slices.ContainsFunc(msgs, func(x jsonrpc.Message) bool {
		return x.Kind == jsonrpc.Request && !protocol.RetrySafe(x.Method, nil)
	})
}

// RefuseUnsafe begins the end of [Manager.HandOver]: from now on a call that may not be
// made again is refused with [ErrMoved] before it begins, as it would probably be cut.
func (m *Manager) RefuseUnsafe() { m.drain.late.Store(true) }

// handOverFirst gives up a session at the beginning of a request in it, if this node gives
// up its sessions and nothing else is in flight in this one; it reports whether it
// has. Clients that make one call right after the other leave no other gap.
func (m *Manager) handOverFirst(s *Session) bool {
	if m.drain.state() != handingOver {
		return false
	}
	begun := false
	locked(s, func() { begun = s.backend.initialize != nil })
	if !begun || s.use.calls.Load() > 0 {
		return false
	}
	m.waitFor(handOverTick, func() bool { return !s.streams.Lags() }) // a client may be faster than we
	m.handOverIdle(s)
	return s.Moved()
}

// handOverIdle gives up a session if nothing is in flight in it.
func (m *Manager) handOverIdle(s *Session) {
	had, ok := closeIf(s, sessionLeaving, func() bool { return s.requests.len() == 0 && s.use.calls.Load() == 0 })
	if !ok {
		return
	}
	if had.conn != nil {
		defer m.closeBackend(had.conn)
	}
	m.release(s, false)
}

// leaving is a session that is being cut.
type leaving struct {
	*Session
	calls []*Call // that are left to the next owner
}

// open reports whether the next owner will find calls that have not ended.
func (l *leaving) open() bool { return slices.ContainsFunc(l.calls, (*Call).isStored) }

// cut gives up sessions, whatever is in flight in them: first all are ended here, then
// each is released as soon as its readers know.
func (m *Manager) cut(all []*Session) {
	var mu sync.Mutex
	var left []leaving
	each(all, parallelDepartures, func(s *Session) {
		if calls, done := m.closeForHandOver(s); done {
			mu.Lock()
			left = append(left, leaving{s, calls})
			mu.Unlock()
		}
	})
	end := time.Now().Add(readersGrace)
	for len(left) > 0 {
		late := time.Now().After(end) || m.ctx.Err() != nil
		var told, rest []leaving
		for _, s := range left {
			if late || s.use.calls.Load() == 0 && !s.streams.Lags() {
				told = append(told, s)
			} else {
				rest = append(rest, s)
			}
		}
		each(told, parallelDepartures, func(s leaving) { m.release(s.Session, s.open()) })
		if left = rest; len(left) > 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// closeForHandOver ends what is in flight in a session that is cut, and its backend. It returns
// the calls that are left to the next owner, and whether there was anything to be done.
func (m *Manager) closeForHandOver(s *Session) (calls []*Call, done bool) {
	had, ok := closeIf(s, sessionLeaving, nil)
	if !ok {
		return nil, false
	}
	if had.conn != nil {
		defer m.closeBackend(had.conn)
	}
	var again []*inflight
	s.log.InOneAppend(func() {
		var unsent, lost []*inflight
		for _, rq := range had.inFlight {
			switch goesOn, sent := rq.call.handOver(); {
			case goesOn:
				again = append(again, rq)
				calls = append(calls, rq.call)
			case sent:
				lost = append(lost, rq)
			default:
				unsent = append(unsent, rq)
			}
		}
		failAll(lost, outcomeUnknown("the session ended: %v", ErrClosing))
		failAll(unsent, errNotBegun)
	})
	m.dropRequests(s, again)
	return calls, true
}

// errUnsent ends a call that has not begun, and whose client may make it again.
var errNotBegun = jsonrpc.Errorf(jsonrpc.CodeServer, "not delivered: %v; make the request again", ErrClosing)

// release releases a session that was closed. open says that calls in it have not
// ended.
func (m *Manager) release(s *Session, open bool) {
	s.untold.ReleaseAll()
	m.waitFor(storeTimeout, s.untold.HasTold) // a session without an owner is not looked after
	s.noteStored(false)
	m.waitFor(appendTimeout, s.log.IsIdle) // what the backend has said is not given up before it is stored
	open = open || !s.log.IsIdle()
	m.unlist(s)
	lost := !s.step(sessionMoved) // meanwhile
	s.streams.Dismiss()
	if lost {
		m.shared.Forget(s.lease)
		return
	}
	ctx, stop := context.WithTimeout(m.ctx, storeTimeout)
	defer stop()
	err := m.shared.Release(ctx, s.lease, open)
	if err == nil {
		m.moves.Add(moves.Kind{How: moves.WentReleased}, moves.Count{Sessions: 1})
		return
	}
	if !errors.Is(err, stream.ErrFenced) {
		m.logger.Warn("session not released", "session", s.Name(), "error", err)
	}
	m.shared.Forget(s.lease)
}

// mostUnfinished is how many calls one line of the log names.
const mostUnfinished = 20

// LogUnfinished logs which calls have not ended, because the time that they had at the end of this node is over.
func (m *Manager) LogUnfinished() {
	var names []string
	n := 0
	for _, s := range m.all() {
		for rq := range s.requests.each {
			if n++; len(names) >= mostUnfinished {
				continue
			}
			name := fmt.Sprintf("%s of session %s, id %.64s", rq.call.method, s.Name(), rq.id)
			if s.modern != "" { // where the id is ours: its client has used another
				name = fmt.Sprintf("%s of revision %s, in carrier %s", rq.call.method, s.modern, s.Name())
				if who := s.Principal(); who != "" {
					name += fmt.Sprintf(", of %.64q", who)
				}
			}
			names = append(names, name)
		}
	}
	if n > 0 {
		slices.Sort(names)
		m.logger.Warn("calls did not end in time", "calls", n, "which", names)
	}
}
