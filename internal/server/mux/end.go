package mux

import (
	"math/rand/v2"
	"time"

	"holdfast/internal/server/copying"
)

// times are what [mux.run] goes by.
type times struct {
	opened  time.Time
	pinged  time.Time
	leaving time.Time       // when to leave, as the node is drained; zero: it is not
	retry   time.Duration   // after which the client may come back
	drain   <-chan struct{} // closed when the node is drained; nil: that is known, or does not matter yet
}

// due does what its time has come for.
func (m *mux) due(a *copying.Alarm) error {
	opts, t := m.front, &m.times
	if err := m.client.isGone(); err != nil {
		return err
	}
	if retry, ok := m.disconnected(); ok {
		if err := m.leave(retry); err != nil {
			return err
		}
	}
	m.promoteLights(a)
	m.awaitDrain(a.Now)
	switch ended := m.ends(); {
	case ended != nil:
		return ended
	case m.isSilent() && a.Due(t.opened.Add(opts.BodyTimeout)):
		return errSilent
	case m.isQuiet() && a.Due(t.leaving):
		return m.leave(opts.Retry + rand.N(opts.Retry+1))
	case opts.DisconnectAfter > 0 && m.mayLeave() && a.Due(t.opened.Add(opts.DisconnectAfter)):
		return m.leave(opts.Retry)
	case opts.KeepAlive > 0 && a.Due(t.pinged.Add(opts.KeepAlive)):
		t.pinged = a.Now
		a.Due(a.Now.Add(opts.KeepAlive))
		m.touch()
		m.out.ping()
	}
	return nil
}

// ends returns why the connection ends now, if it does.
func (m *mux) ends() error {
	quiet := m.isQuiet()
	s := m.session()
	switch {
	case m.is(stateLeaving) && m.isIdle() && m.announced():
		m.times.retry = m.front.Retry
		return copying.ErrComeBack
	case m.remote != nil && m.remote.ended.Load() && quiet:
		return errSessionEnded
	case s == nil:
	case s.Moved() && (m.client.returns && !m.isAnyWaiting() || quiet):
		return copying.ErrComeBack
	case s.Moved(): // what its client has asked for is gone on with elsewhere
	case s.Ended() && quiet:
		return errSessionEnded
	}
	return nil
}

// awaitDrain sets when the connection is to end, if the node is drained. What is unanswered is waited for.
func (m *mux) awaitDrain(now time.Time) {
	m.times.drain = nil
	if m.times.leaving.IsZero() && m.isQuiet() {
		m.times.leaving, m.times.drain = m.front.Life.Departure(now)
	}
}

// disconnected reports whether a call has asked for the connection's end, and its client knows how to come back.
func (m *mux) disconnected() (retry time.Duration, ok bool) {
	if !m.isIdle() || !m.announced() {
		return 0, false
	}
	return m.disconnects(m.front.Retry)
}

// leave ends the connection, and has the client come back after a time. Where it could not come back, it stays.
func (m *mux) leave(retry time.Duration) error {
	if !m.mayLeave() {
		return nil
	}
	m.times.retry = retry
	return copying.ErrComeBack
}

// mayLeave reports whether the connection may be ended: the client can connect again and find all that it has asked for, or is
// being sent away by a node that has nothing more to tell it.
func (m *mux) mayLeave() bool {
	switch {
	case !m.isIdle():
		return false
	case m.front.Life.IsDraining():
		return m.isAlone()
	}
	return m.client.returns && (m.isAlone() || m.resumes() && m.announced())
}

// isIdle reports whether nothing that was asked here is unanswered, but what is copied from a stream.
func (m *mux) isIdle() bool {
	return !m.isAnyWaiting() && m.queue.isEmpty() && len(m.lights) == 0 // in this order
}

// isQuiet reports whether the client waits for nothing in particular. A call may come among those that are copied, or leave them, between
// two looks, and do both: so it looks again.
func (m *mux) isQuiet() bool { return m.isAlone() && m.isIdle() && m.isAlone() && m.isIdle() }

// isOver reports whether everything was sent to a client that sends no more.
func (m *mux) isOver() bool { return m.is(stateFinished) && m.isQuiet() }

// isSilent reports whether the client of a connection that can be made again has yet to
// begin. One whose initialize has failed gets its answer first.
func (m *mux) isSilent() bool {
	return m.client.returns && !m.begun() && !m.isBare() && m.isQuiet()
}

// isBare reports whether the client came for calls of other sessions, and has begun none here.
func (m *mux) isBare() bool { return m.hasOthers() && !m.begun() }

// resumes reports whether the client can resume the calls that it receives here.
func (m *mux) resumes() bool {
	s := m.session()
	if s == nil {
		return m.remote.resumes
	}
	return s.Resumes() != nil && s.Revision() != "" || m.isBare()
}
