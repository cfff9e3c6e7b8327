package client

// A standaloneState is how far the standalone stream of Streamable HTTP has come:
//
//	state              event                   next
//	standaloneOff      standaloneWanted        standaloneOpening
//	standaloneOpening  standaloneConnected     standaloneOpen
//	standaloneWaiting  standaloneConnected     standaloneOpen
//	standaloneOpen     standaloneDisconnected  standaloneWaiting
//	any                standaloneRefused       standaloneOff
//
// Every other pair of a state and an event changes nothing.
type standaloneState uint8

const (
	standaloneOff     standaloneState = iota // it is not read
	standaloneOpening                        // the server has never answered with it
	standaloneOpen                           // it is being read
	standaloneWaiting                        // it was read, and will be opened again
)

// A standaloneEvent moves the standalone stream from one state to another.
type standaloneEvent uint8

const (
	standaloneWanted       standaloneEvent = iota // the session is begun
	standaloneConnected                           // the server has answered with the stream
	standaloneDisconnected                        // its connection has ended
	standaloneRefused                             // the server does not offer it, or the Conn has ended
)

// after returns the state that follows an event. It is the only place that decides this.
func (s standaloneState) after(e standaloneEvent) standaloneState {
	switch {
	case e == standaloneRefused:
		return standaloneOff
	case e == standaloneWanted && s == standaloneOff:
		return standaloneOpening
	case e == standaloneConnected && s != standaloneOff:
		return standaloneOpen
	case e == standaloneDisconnected && s == standaloneOpen:
		return standaloneWaiting
	}
	return s
}

// standalone is the state of the stream on which the server sends messages that belong to
// no request. Over a mux that is the connection itself. Conn.mu guards it.
type standalone struct {
	state       standaloneState // of Streamable HTTP
	lastEventID string
	endpoint    string // where messages are posted to (HTTP+SSE)
}

// standaloneHappened moves the standalone stream to its next state. It returns the state before.
func (c *Conn) standaloneHappened(e standaloneEvent) (before standaloneState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = c.standalone.state
	c.standalone.state = before.after(e)
	return before
}
