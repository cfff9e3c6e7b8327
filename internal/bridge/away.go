package bridge

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// An absence is what a legacy host is told while its server is away that was never reached since the host has started:
//
//	awaited  the server has not answered; what is known is not used yet
//	away     it has not answered in time: initialize and lists are answered from what is known, and the rest waits
//	back     it has answered, or it is not known what it would
//
// It goes from awaited to away or back, and from away to back, where it stays. Its methods may be called concurrently.
type absence struct {
	mu      sync.Mutex
	state   absenceState
	barred  bool              // a login is waited for: it is not known whose answers they are to be
	holds   bool              // what is not answered waits here, as the session is not begun
	waiting []jsonrpc.Message // of the host
	stale   map[string]bool   // the notifications for lists that were answered from what is known, until the host has them
	doubled map[string]bool   // those that were made here, until the host has listed again: the server's own says nothing more
}

type absenceState uint8

const (
	isAwaited absenceState = iota
	isAway
	isBack
)

// awayFor is how long a server that is away at the start is waited for, if the host is answered meanwhile.
const awayFor = 30 * time.Minute

// patienceAtStart is how long a server may take to answer initialize before it is answered for, if what it would say is known. Not all
// hosts list again when they are told to: a server that is slow to start is not taken for one that is away.
const patienceAtStart = 5 * time.Second

// goes notes that the server is away. holds says that what is not answered for is to wait. It reports whether the host may get what
// is known.
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

// bar has the host get nothing more that is only known.
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

// answers notes that a list was answered from what is known. It reports false if the server is back.
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

// hold takes a message of the host that is to wait. It reports false if it need not, or cannot.
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

// drop takes a request back that the host has cancelled. It reports whether it has waited.
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

// next returns what has waited. If nothing has, nothing waits any more.
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

// takeStale returns the notifications that the host is to get.
func (a *absence) takeStale() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	stale := a.stale
	a.stale, a.doubled = nil, maps.Clone(stale)
	return stale
}

// passes reports whether a notification of the server says something that the host has not just been told.
func (a *absence) passes(notification string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.stale, notification)
	doubled := a.doubled[notification]
	delete(a.doubled, notification)
	return !doubled
}

// lists notes that the host lists what a notification was about.
func (a *absence) lists(notification string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.doubled, notification)
}

// serverBack notes that the server has answered something. why is why it begins no session, or nil.
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

// answersFor answers a request from what is known, if the server is away. What is to wait for the server waits. It
// reports whether that is all.
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

// beginsAway answers the host's initialize from what is known. A response of the server that comes later is not for the
// host. It reports false where a session is resumed: that is answered for soon.
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
	if !h.opening.CompareAndSwap(x, nil) { // it is answered
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

// loginTime returns when the user of the connection has logged in; zero: it has no login.
func (b *bridge) loginTime() time.Time {
	if of, ok := b.opts.Auth.(interface{ LoggedIn() time.Time }); ok {
		return of.LoggedIn()
	}
	return time.Time{}
}
