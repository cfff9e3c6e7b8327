package bridge

// phase is where a bridge is in its life:
//
//	phase     event     next phase
//	starting  opened    opening     the host initializes, and a session is begun
//	starting  resumed   resuming    the host initializes, and had a session before
//	resuming  failed    opening     the session cannot be resumed: another is begun
//	opening   answered  open        the host has the response to its initialize request
//	resuming  answered  holding
//	holding   ready     open        the host has sent notifications/initialized
//	each      left      leaving     the host has left, or the process has to end
//
// Messages of the server are held while the bridge is resuming or holding. The host here is the
// side that initializes: for a modern host and a legacy server that is the translation. If no
// side does, the bridge stays starting.
type phase uint8

const (
	starting phase = iota
	opening
	resuming
	holding
	open
	leaving
)

type phaseEvent uint8

const (
	eventOpened phaseEvent = iota + 1
	eventResumed
	eventFailed
	eventAnswered
	eventReady
	eventLeft
)

// phaseMoves is the table of [phase].
var phaseMoves = map[phase]map[phaseEvent]phase{
	starting: {eventOpened: opening, eventResumed: resuming, eventLeft: leaving},
	opening:  {eventAnswered: open, eventLeft: leaving},
	resuming: {eventFailed: opening, eventAnswered: holding, eventLeft: leaving},
	holding:  {eventReady: open, eventLeft: leaving},
	open:     {eventLeft: leaving},
}

// move changes the phase by an event. It reports whether the table has such a transition;
// if not, nothing changes.
func (b *bridge) move(e phaseEvent) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.moveLocked(e)
}

// moveLocked is move with b.mu held.
func (b *bridge) moveLocked(e phaseEvent) bool {
	next, ok := phaseMoves[b.phase][e]
	if !ok {
		return false
	}
	b.phase = next
	if e == eventAnswered {
		close(b.answered)
	}
	return true
}
