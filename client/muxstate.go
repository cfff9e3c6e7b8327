package client

// A muxState says which messages may be sent over a [mux]:
//
//	state          event            next
//	muxConnecting  muxConnected     muxOpening, or muxOpen if the session is begun
//	muxOpening     muxSessionBegun  muxOpen
//	muxOpening     muxDisconnected  muxConnecting
//	muxOpen        muxDisconnected  muxConnecting
//	any            muxGaveUp        muxFailed
//
// Every other pair of a state and an event changes nothing.
type muxState uint8

const (
	muxConnecting muxState = iota // nothing: there is no connection
	muxOpening                    // requests that begin a session
	muxOpen                       // all messages
	muxFailed                     // nothing, ever
)

// A muxEvent moves a mux from one state to another.
type muxEvent uint8

const (
	muxConnected    muxEvent = iota // a connection was opened
	muxSessionBegun                 // the server has a session for the mux
	muxDisconnected                 // the connection has ended
	muxGaveUp                       // no other connection will be opened
)

// after returns the state that follows an event. begun reports whether the server has a
// session. It is the only place that decides this.
func (s muxState) after(e muxEvent, begun bool) muxState {
	switch {
	case s == muxFailed, e == muxGaveUp:
		return muxFailed
	case s == muxConnecting && e == muxConnected && begun, s == muxOpening && e == muxSessionBegun:
		return muxOpen
	case s == muxConnecting && e == muxConnected:
		return muxOpening
	case e == muxDisconnected:
		return muxConnecting
	}
	return s
}

// connected reports whether there is a connection.
func (s muxState) connected() bool { return s == muxOpening || s == muxOpen }

// transition moves the mux to its next state, and wakes the callers that wait for a change. x.mu is held.
func (x *mux) transition(e muxEvent) {
	was := x.state
	x.state = was.after(e, x.session.begun)
	switch {
	case !was.connected() && x.state.connected():
		x.ended = make(chan struct{})
	case was.connected() && !x.state.connected():
		close(x.ended)
	}
	close(x.changed)
	x.changed = make(chan struct{})
}
