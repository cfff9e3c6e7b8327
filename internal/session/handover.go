package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/handover"
	"holdfast/internal/moves"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// departing makes a session a [handover.Session].
type departing struct{ *Session }

// newDeparture returns the departure of the manager's node.
func newDeparture(m *Manager) *handover.Departure {
	return handover.New(&m.work, handover.Options{
		Shared: m.shared != nil, Logger: m.logger, Calls: m.Calls, AwaitArrivals: m.awaitTakeOvers,
		Sessions: func() (all []handover.Session) {
			for _, s := range m.all() {
				all = append(all, departing{s})
			}
			return all
		},
	})
}

// admit returns an error if requests must not begin in the session, as the node gives up its sessions. If nothing is in flight
// in the session, admit hands it over now: clients that make one call right after the other leave no other gap.
func (d departing) admit(msgs []jsonrpc.Message) error {
	switch d.m.work.State() {
	case handover.WaitingAlone:
		if slices.ContainsFunc(msgs, func(x jsonrpc.Message) bool {
			return x.Kind == jsonrpc.Request && !protocol.RetrySafe(x.Method, nil)
		}) {
			return ErrClosing
		}
	case handover.HandingOver:
		begun := false
		locked(d.Session, func() { begun = d.backend.initialize != nil })
		if !begun || d.Busy() {
			return nil
		}
		d.m.work.WaitFor(handover.Tick, func() bool { return !d.streams.Lags() }) // a client may be faster than our readers
		if d.HandOver(); d.Moved() {
			return ErrMoved
		}
	}
	return nil
}

func (d departing) IsQuiet() bool { return !d.Busy() && !d.streams.Lags() }

func (d departing) IsAwaited(patience time.Duration) bool {
	return d.use.readers.Load() > 0 || d.streams.Awaits(patience)
}

func (d departing) HandOver() {
	had, ok := closeIf(d.Session, sessionLeaving, func() bool { return d.requests.len() == 0 && !d.Busy() })
	if !ok {
		return
	}
	if had.conn != nil {
		defer d.m.closeBackend(had.conn)
	}
	d.release(nil)
}

// Cut ends the requests in flight in the session, and its backend. Calls that the next owner can go on with are left to it.
func (d departing) Cut() (release func()) {
	had, ok := closeIf(d.Session, sessionLeaving, nil)
	if !ok {
		return nil
	}
	if had.conn != nil {
		defer d.m.closeBackend(had.conn)
	}
	var again []*inflight
	d.log.InOneAppend(func() {
		var unsent, lost []*inflight
		for _, rq := range had.inFlight {
			switch goesOn, sent := rq.call.handOver(); {
			case goesOn:
				again = append(again, rq)
			case sent:
				lost = append(lost, rq)
			default:
				unsent = append(unsent, rq)
			}
		}
		failAll(lost, outcomeUnknown("the session ended: %v", ErrClosing))
		failAll(unsent, errNotBegun)
	})
	d.m.dropRequests(d.Session, again)
	return func() { d.release(again) }
}

// errNotBegun ends a call that has not begun: its client may make it again.
var errNotBegun = jsonrpc.Errorf(jsonrpc.CodeServer, "not delivered: %v; make the request again", ErrClosing)

// release releases a session that was closed. Its next owner goes on with the requests left.
func (d departing) release(left []*inflight) {
	s, m := d.Session, d.m
	open := slices.ContainsFunc(left, func(rq *inflight) bool { return rq.call.storedAs() != 0 }) // the next owner finds calls that have not ended
	s.untold.ReleaseAll()
	m.work.WaitFor(storeTimeout, s.untold.HasTold) // no node reports the outcomes of a session without an owner
	s.noteStored(s.settingsNote.due.Load())
	m.work.WaitFor(appendTimeout, s.log.IsIdle) // the session is not given up before the backend's messages are stored
	open = open || !s.log.IsIdle()
	m.unlist(s)
	lost := !s.step(sessionMoved) // it has moved meanwhile
	s.streams.Dismiss()
	err := stream.ErrFenced
	if !lost {
		ctx, stop := context.WithTimeout(m.work.Context(), storeTimeout)
		defer stop()
		err = m.shared.Release(ctx, s.lease, open)
	}
	if err == nil {
		m.moves.Add(moves.Kind{How: moves.WentReleased}, moves.Count{Sessions: 1})
		return
	}
	if !errors.Is(err, stream.ErrFenced) {
		m.logger.Warn("session not released", "session", s.Name(), "error", err)
	}
	m.shared.Forget(s.lease)
}

// Unfinished counts the calls in flight, and names up to most of them by data that an operator knows.
func (d departing) Unfinished(most int) (calls int, names []string) {
	for rq := range d.requests.each {
		if calls++; len(names) >= most {
			continue
		}
		name := fmt.Sprintf("%s of session %s, id %.64s", rq.call.method, d.Name(), rq.id)
		if d.modern != "" { // the id is ours: the client has used another
			name = fmt.Sprintf("%s of revision %s, in carrier %s", rq.call.method, d.modern, d.Name())
			if who := d.Principal(); who != "" {
				name += fmt.Sprintf(", of %.64q", who)
			}
		}
		names = append(names, name)
	}
	return calls, names
}

// WithdrawWaiting ends calls of modern clients that wait for input and have no reader, as no node will be here to take the input.
func (d departing) WithdrawWaiting() {
	if d.modern == "" {
		return
	}
	var waiting []*Call
	for rq := range d.requests.each {
		if asking, _ := rq.call.AwaitsInput(); asking && !d.streams.IsRead(rq.call.Number()) {
			waiting = append(waiting, rq.call)
		}
	}
	for _, c := range waiting {
		c.Withdraw(ErrClosing.Error())
	}
}
