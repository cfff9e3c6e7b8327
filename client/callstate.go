package client

// A callState is how far a call has come:
//
//	state           event             next
//	callUnsent      eventSent         callSent
//	callUnsent      eventTaken        callTaken
//	callSent        eventTaken        callTaken
//	any but ended   eventAnswered     callAnswered
//	any but ended   eventCancelled    callCancelling
//	callAnswered    eventUndelivered  callTaken
//	callTaken       eventAsked        callUnsent
//	callSent        eventRefused      callUnsent
//	callTaken       eventRefused      callUnsent
//
// callAnswered and callCancelling are the ended ones. Every other pair of a state and an
// event changes nothing. The state alone tells whether the request may have run: not in
// callUnsent, but in callSent and callTaken.
type callState uint8

const (
	callUnsent     callState = iota // the server does not have the request
	callSent                        // the server may have the request
	callTaken                       // the server has the request
	callAnswered                    // the response is with the host, or on its way there
	callCancelling                  // the host wants no response; the cancellation is sent
)

// A callEvent moves a call from one state to another.
type callEvent uint8

const (
	eventSent        callEvent = iota // an attempt may have reached the server
	eventTaken                        // the server has the request
	eventAnswered                     // the response has come, or there will be none
	eventCancelled                    // the host wants no response any more
	eventUndelivered                  // the Conn ended before the host had the response
	eventAsked                        // the server is done with the request, and wants it again with more
	eventRefused                      // the server has not looked at the request: it has refused the session
)

// ended reports whether no attempt follows.
func (s callState) ended() bool { return s >= callAnswered }

// mayHaveRun reports whether the request may have run.
func (s callState) mayHaveRun() bool { return s == callSent || s == callTaken }

// after returns the state that follows an event. It is the only place that decides this.
func (s callState) after(e callEvent) callState {
	switch {
	case s == callAnswered && e == eventUndelivered:
		return callTaken
	case s.ended():
		return s
	case e == eventAsked && s == callTaken, e == eventRefused:
		return callUnsent
	case e == eventSent && s == callUnsent:
		return callSent
	case e == eventTaken:
		return callTaken
	case e == eventAnswered:
		return callAnswered
	case e == eventCancelled:
		return callCancelling
	}
	return s
}

// transition moves the call to its next state. It reports whether that is another one.
// k.mu is held.
func (k *call) transition(e callEvent) bool {
	before := k.state
	k.state = before.after(e)
	return k.state != before
}

// happened is transition without k.mu.
func (k *call) happened(e callEvent) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.transition(e)
}

// mayHaveRun reports whether the request may have run.
func (k *call) mayHaveRun() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.mayHaveRun()
}

// done reports whether the call was answered or cancelled, or its context has ended.
func (k *call) done() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.ended() || k.ctx.Err() != nil
}
