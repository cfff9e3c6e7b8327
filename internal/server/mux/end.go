package mux

import (
	"math/rand/v2"
	"time"

	"holdfast/internal/server/streaming"
)

// times are the times of a connection, used by [mux.run].
type times struct {
	opened  time.Time
	pinged  time.Time
	leaving time.Time       // when to end the connection, as the node is drained; zero: not yet set
	retry   time.Duration   // after which the client may come back
	drain   <-chan struct{} // closed when the node is drained; nil: leaving is set, or the connection is not quiet
}

// due ends the connection with an error if it is time for that; else it promotes light calls and pings when they are due. It sets a to
// the time of the next look.
func (m *mux) due(a *streaming.Alarm) error {
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

// ends returns the reason to end the connection now, or nil.
func (m *mux) ends() error {
	quiet := m.isQuiet()
	s := m.session()
	switch {
	case m.is(stateLeaving) && m.isIdle() && m.announced():
		m.times.retry = m.front.Retry
		return streaming.ErrComeBack
	case m.remote != nil && m.remote.ended.Load() && quiet:
		return errSessionEnded
	case s == nil:
	case s.Moved() && (m.client.returns && !m.isAnyWaiting() || quiet):
		return streaming.ErrComeBack
	case s.Moved(): // the client's requests continue on the session's new node
	case s.Ended() && quiet:
		return errSessionEnded
	}
	return nil
}

// awaitDrain sets the time to end the connection if the node is drained. It does so once all requests are answered.
func (m *mux) awaitDrain(now time.Time) {
	m.times.drain = nil
	if m.times.leaving.IsZero() && m.isQuiet() {
		m.times.leaving, m.times.drain = m.front.Life.Departure(now, false)
	}
}

// disconnected reports whether a call has asked for the connection's end, and the client has all tokens to come back with.
func (m *mux) disconnected() (retry time.Duration, ok bool) {
	if !m.isIdle() || !m.announced() {
		return 0, false
	}
	return m.disconnects(m.front.Retry)
}

// leave returns ErrComeBack to end the connection, so that the client comes back after retry. It returns nil if the client could not come back.
func (m *mux) leave(retry time.Duration) error {
	if !m.mayLeave() {
		return nil
	}
	m.times.retry = retry
	return streaming.ErrComeBack
}

// mayLeave reports whether the connection may be ended: the client can connect again and resume all its calls, or the node is
// drained and has no more messages for it.
func (m *mux) mayLeave() bool {
	switch {
	case !m.isIdle():
		return false
	case m.front.Life.IsDraining():
		return m.isAlone()
	}
	return m.client.returns && (m.isAlone() || m.resumes() && m.announced())
}

// isIdle reports whether all requests of the connection are answered, or their answers are copied from streams.
func (m *mux) isIdle() bool {
	return !m.isAnyWaiting() && m.queue.isEmpty() && len(m.lights) == 0 // in this order
}

// isQuiet reports whether the client waits for no answer. Between two looks a call may begin to be copied, or end, or both, so it looks twice.
func (m *mux) isQuiet() bool { return m.isAlone() && m.isIdle() && m.isAlone() && m.isIdle() }

// isOver reports whether the client sends no more and has all its answers.
func (m *mux) isOver() bool { return m.is(stateFinished) && m.isQuiet() }

// isSilent reports whether the client of a WebSocket has sent no initialize, or one
// that failed and was answered.
func (m *mux) isSilent() bool {
	return m.client.returns && !m.begun() && !m.isBare() && m.isQuiet()
}

// isBare reports whether the client came for calls of other sessions, and has not initialized the connection's session.
func (m *mux) isBare() bool { return m.hasOthers() && !m.begun() }

// resumes reports whether the client can resume the calls that it receives here.
func (m *mux) resumes() bool {
	s := m.session()
	if s == nil {
		return m.remote.resumes
	}
	return s.Resumes() != nil && s.Revision() != "" || m.isBare()
}
