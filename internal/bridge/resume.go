package bridge

import (
	"log/slog"
	"time"

	"holdfast/client"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// repeatWithin is how long a host may take to repeat a call that was in flight when the
// process before this one ended. A repetition that comes later is a new call.
const repeatWithin = 10 * time.Minute

// resume resumes the session of an earlier process. It reports whether it can: then it answers
// the host's initialize request.
func (b *bridge) resume(m jsonrpc.Message, from origin, old *sessionRecord) bool {
	state := old.Conn
	state.Calls = b.requests.restore(old.repeatable())
	b.move(eventResumed)
	conn, err := b.connect(&state)
	if err != nil {
		slog.Warn("cannot resume the session", "error", err)
		b.requests.forget()
		b.move(eventFailed)
		return false
	}
	b.save() // the calls: other processes may take them over
	slog.Info("session resumed", "calls in flight", len(state.Calls))
	b.start(func() { b.confirm(conn, m, from, state.Result) })
	return true
}

// confirmWithin bounds how long the server may take to confirm that it has the session. A
// host that starts while the network is away gets the old response to initialize.
const confirmWithin = 3 * time.Second

// confirm answers the host's initialize request. It pings the server first: if the server
// does not have the session any more, the client begins another, with another response.
func (b *bridge) confirm(conn *client.Conn, m jsonrpc.Message, from origin, result []byte) {
	id, pong := b.requests.beginOwn()
	defer b.requests.endOwn(id)
	b.send(b.ctx, conn, mustParse(jsonrpc.AppendRequest(nil, id, protocol.MethodPing, nil)))
	late := time.NewTimer(confirmWithin)
	defer late.Stop()
	select {
	case <-pong:
	case <-late.C:
		slog.Warn("the server does not answer: the host gets the session as it was")
		b.eras.legacy.away.goes(false)
	case <-b.stop:
		return
	}
	if current := conn.State().Result; current != nil {
		result = current
	}
	b.mu.Lock()
	b.era = legacyEra
	b.mu.Unlock()
	from.emit(mustParse(jsonrpc.AppendResult(nil, m.ID, result)))
	b.move(eventAnswered)
}

// repeat continues a call that no host waits for, and that the host makes again. It reports
// whether there is such a call that no other process has taken over.
func (b *bridge) repeat(m jsonrpc.Message, from origin, print fingerprint) bool {
	for {
		id := b.requests.repeatable(print)
		if id == nil {
			return false
		}
		if !b.store.takeOver(id) {
			b.requests.drop(id)
			continue
		}
		if b.continued(id, m, from) {
			return true
		}
	}
}

// continued gives a call that no host waits for to the host that makes it again. It reports whether there is such a call.
func (b *bridge) continued(id []byte, m jsonrpc.Message, from origin) bool {
	r, ok := b.requests.repeat(id, m, from)
	if !ok {
		return false
	}
	slog.Info("repeated call continues", "method", m.Method)
	for _, question := range b.requests.unpark(id) {
		from.emit(question)
	}
	if r != nil {
		b.deliver(r)
	}
	return true
}

// repeatForeign is repeat for a call in the session of another process.
func (b *bridge) repeatForeign(conn *client.Conn, m jsonrpc.Message, from origin, print fingerprint) bool {
	if time.Since(b.began) > repeatWithin {
		return false
	}
	return b.takeForeign(conn, m, from, func(c *callRecord) bool { return c.matches(print) })
}

// takeForeign takes over a call from the session of another process, one for which wanted returns true, and gives it to the
// host that makes it again. It reports whether there is such a call.
func (b *bridge) takeForeign(conn *client.Conn, m jsonrpc.Message, from origin, wanted func(*callRecord) bool) bool {
	b.mu.Lock()
	opener := b.opener
	b.mu.Unlock()
	c := b.store.takeOverForeign(b.ctx, opener, wanted)
	if c == nil {
		return false
	}
	slog.Info("repeated call continues", "method", m.Method)
	r := b.requests.adopt(&c.callRecord, m, from)
	b.save()
	b.store.settle(c)
	if taskOf(m) != "" {
		b.foundTask(from, c.Task)
	}
	if r != nil {
		b.deliver(r)
		return true
	}
	if err := conn.Continue(*c.Place); err != nil {
		b.respond(outcomeUnknown(c.ID, err))
	}
	return true
}

// discovers notes the fingerprint of a request that may find that the server is modern.
func (b *bridge) discovers(m jsonrpc.Message) {
	info := jsonrpc.Field(m.Params, "_meta", protocol.MetaClientInfo)
	if info == nil {
		info = []byte(`{}`)
	}
	params, _ := jsonrpc.Set([]byte(`{}`), info, "clientInfo")
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.era == unknownEra {
		b.opener = fingerprintOf(m.Method, params)
	}
}

// discovered notes that the server is modern, and continues the calls that the same host had in
// flight at it. There is no session.
func (b *bridge) discovered() {
	b.mu.Lock()
	conn, opener, first := b.conn, b.opener, b.era == unknownEra
	if first {
		b.era = modernEra
	}
	b.mu.Unlock()
	if !first || b.store == nil || b.store.isOpen() {
		return
	}
	old, err := b.store.open(opener)
	if err != nil {
		slog.Warn("cannot keep calls: after a restart they cannot be continued", "error", err)
	}
	if old == nil {
		return
	}
	places := b.requests.restore(old.repeatable())
	b.save()
	slog.Info("calls of the process before continue", "calls in flight", len(places))
	for _, place := range places {
		if err := conn.Continue(place); err != nil {
			b.respond(outcomeUnknown(place.ID, err))
		}
	}
}

// Changes are saved at most every saveEvery. While calls are in flight and nothing changes,
// the record is renewed every renewEvery: its age tells how long the process has been gone.
const (
	saveEvery  = 100 * time.Millisecond
	renewEvery = time.Minute
)
