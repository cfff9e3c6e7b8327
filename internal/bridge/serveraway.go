package bridge

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// An absence has the state of a legacy host while its server is away, and was never reached since the host started:
//
//	awaited  the server has not answered; known answers are not used yet
//	away     it has not answered in time: initialize and lists get known answers ([known]), and other messages wait
//	back     it has answered
//
// It goes from awaited to away or back, and from away to back, where it stays. Its methods may be called concurrently.
type absence struct {
	mu      sync.Mutex
	state   absenceState
	barred  bool              // a login is waited for: the known answers may be of another user
	holds   bool              // messages that get no known answer wait here, as the session has not begun
	waiting []jsonrpc.Message // of the host
	stale   map[string]bool   // the notifications for lists that got known answers, until the host has them
	doubled map[string]bool   // notifications that were made here, until the host has listed again: those of the server say nothing more
}

type absenceState uint8

const (
	isAwaited absenceState = iota
	isAway
	isBack
)

// awayFor is how long the bridge waits for a server that is away at the start, if the host has known answers meanwhile.
const awayFor = 30 * time.Minute

// patienceAtStart is how long a server may take to answer initialize before the host gets the known answer. A server that is slow to
// start must not be taken for one that is away: not all hosts list again when they are told to.
const patienceAtStart = 5 * time.Second

// goes notes that the server is away. holds says that messages without a known answer have to wait. It reports whether the host may
// get known answers.
func (a *absence) goes(holds bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != isAwaited || a.barred {
		return a.state == isAway
	}
	a.state, a.holds = isAway, holds
	slog.Warn("the server is away: the host gets what it has last said, until it is back")
	return true
}

// bar stops known answers: the host gets no more of them.
func (a *absence) bar() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.barred = true
}

// isAway reports whether the server is away.
func (a *absence) isAway() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state == isAway
}

// answers notes that a list gets a known answer. It reports false if it may not: the server is not away, or bar was called.
func (a *absence) answers(method string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != isAway || a.barred {
		return false
	}
	if a.stale == nil {
		a.stale = make(map[string]bool)
	}
	a.stale[lists[method]] = true
	return true
}

// hold takes a message of the host that has to wait. held is false if it need not wait, or if too many do (full).
func (a *absence) hold(m jsonrpc.Message) (held, full bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !a.holds:
		return false, false
	case len(a.waiting) >= maxHeld:
		return false, true
	}
	a.waiting = append(a.waiting, m)
	return true, false
}

// drop removes a request that the host has cancelled. It reports whether the request was waiting.
func (a *absence) drop(id []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, m := range a.waiting {
		if m.Kind == jsonrpc.Request && string(jsonrpc.Key(m.ID)) == string(jsonrpc.Key(id)) {
			a.waiting = append(a.waiting[:i:i], a.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// next returns the messages that wait, and removes them. If there are none, later messages do not wait.
func (a *absence) next() []jsonrpc.Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	waiting := a.waiting
	a.waiting = nil
	a.holds = a.holds && len(waiting) > 0
	return waiting
}

// returns notes that the server has answered. It reports whether it was away.
func (a *absence) returns() (was bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was = a.state == isAway
	a.state = isBack
	return was
}

// takeStale returns the notifications for the host, and notes that they were made here.
func (a *absence) takeStale() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	stale := a.stale
	a.stale, a.doubled = nil, maps.Clone(stale)
	return stale
}

// passes reports whether a notification of the server says more than one that was made here.
func (a *absence) passes(notification string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.stale, notification)
	doubled := a.doubled[notification]
	delete(a.doubled, notification)
	return !doubled
}

// lists notes that the host makes the list request that a notification calls for.
func (a *absence) lists(notification string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.doubled, notification)
}

// serverBack notes that the server has answered, and handles the messages that wait. why is the error with which it refused a session, or nil.
func (h *legacyHost) serverBack(why []byte) {
	if !h.away.returns() {
		return
	}
	slog.Info("the server is back")
	h.b.start(func() {
		for {
			waiting := h.away.next()
			if len(waiting) == 0 {
				break
			}
			for _, m := range waiting {
				switch {
				case why == nil:
					h.hand(m)
				case m.Kind == jsonrpc.Request:
					raw, _ := jsonrpc.Set(jsonrpc.AppendResult(nil, m.ID, nil), why, "error")
					h.b.host.write(raw)
				}
			}
		}
		if why != nil {
			return
		}
		for notification := range h.away.takeStale() {
			h.b.host.write(jsonrpc.AppendRequest(nil, nil, notification, nil))
		}
	})
}

// answersFor gives a request its known answer, if the server is away, or holds a message for the server. It
// reports whether the message needs nothing more.
func (h *legacyHost) answersFor(m jsonrpc.Message) bool {
	if h.away.isAway() && m.Kind == jsonrpc.Request {
		if result := h.known.answer(keyOf(m.Method, m.Params), h.b.loginTime()); result != nil && lists[m.Method] != "" && h.away.answers(m.Method) {
			h.b.host.write(jsonrpc.AppendResult(nil, m.ID, result))
			return true
		}
	}
	if of := lists[m.Method]; of != "" {
		h.away.lists(of)
	}
	switch {
	case m.Method == protocol.MethodCancelled && h.away.drop(jsonrpc.Field(m.Params, "requestId")):
		return true
	case m.Method == protocol.MethodPing && h.away.isAway():
		h.b.host.write(jsonrpc.AppendResult(nil, m.ID, []byte("{}")))
		return true
	}
	held, full := h.away.hold(m)
	if full && m.Kind == jsonrpc.Request {
		h.b.host.fail(m.ID, jsonrpc.Errorf(jsonrpc.CodeServer, "not sent: the server is away, and %d messages wait for it", maxHeld))
	}
	return held || full
}

// beginsAway gives the host's initialize its known answer. A later response of the server is not for the host. It
// reports false if known answers may not be used, or if a session is resumed: [bridge.confirm] answers soon.
func (h *legacyHost) beginsAway(m jsonrpc.Message, x *exchange, result []byte) bool {
	h.b.mu.Lock()
	resumes := h.b.phase == resuming
	h.b.mu.Unlock()
	if resumes {
		return false
	}
	x.told.Store(true)
	if !h.away.goes(true) {
		x.told.Store(false)
		return false
	}
	if !h.opening.CompareAndSwap(x, nil) { // the server has answered
		x.told.Store(false)
		h.serverBack(nil)
		return true
	}
	for _, list := range []string{"tools", "prompts", "resources"} {
		if jsonrpc.Field(result, "capabilities", list) != nil {
			result, _ = jsonrpc.Set(result, []byte("true"), "capabilities", list, "listChanged")
		}
	}
	h.b.host.write(jsonrpc.AppendResult(nil, m.ID, result))
	return true
}

// loginTime returns when the user of the connection has logged in; zero: the connection has no login.
func (b *bridge) loginTime() time.Time {
	if of, ok := b.opts.Auth.(interface{ LoggedIn() time.Time }); ok {
		return of.LoggedIn()
	}
	return time.Time{}
}
