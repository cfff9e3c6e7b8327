package bridge

import (
	"context"
	"log/slog"
	"time"

	"holdfast/client"
	"holdfast/jsonrpc"
)

// repeatWithin is how long a host may take to repeat a call that was in flight when the
// process before this one ended. A repetition that comes later is a new call.
const repeatWithin = 10 * time.Minute

// resume resumes the session of a process before this one. It reports whether it can: then
// it answers the host's initialize request.
func (b *bridge) resume(ctx context.Context, m jsonrpc.Message, old *sessionRecord) bool {
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
	b.save() // which calls there are: other processes may take them over
	slog.Info("session resumed", "calls in flight", len(state.Calls))
	b.start(func() { b.confirm(ctx, conn, m, state.Result) })
	return true
}

// confirmWithin bounds how long the server may take to confirm that it has the session. A
// host that starts while the network is away gets the old response to initialize.
const confirmWithin = 3 * time.Second

// confirm answers the host's initialize request. It pings the server first: if the server
// does not have the session any more, the client begins another, with another response.
func (b *bridge) confirm(ctx context.Context, conn *client.Conn, m jsonrpc.Message, result []byte) {
	id, pong := b.requests.beginOwn()
	defer b.requests.endOwn(id)
	b.send(ctx, conn, mustParse(jsonrpc.AppendRequest(nil, id, "ping", nil)))
	late := time.NewTimer(confirmWithin)
	defer late.Stop()
	select {
	case <-pong:
	case <-late.C:
		slog.Warn("the server does not answer: the host gets the session as it was")
	case <-b.stop:
		return
	}
	if current := conn.State().Result; current != nil {
		result = current
	}
	b.host.write(jsonrpc.AppendResult(nil, m.ID, result))
	b.move(eventAnswered)
}

// repeat continues a call that no host waits for, and that the host makes again. It reports
// whether there is one that no other process has taken over.
func (b *bridge) repeat(m jsonrpc.Message, print fingerprint) bool {
	for {
		id := b.requests.repeatable(print)
		if id == nil {
			return false
		}
		if !b.store.takeOver(id) {
			b.requests.drop(id)
			continue
		}
		b.continued(id, m)
		return true
	}
}

// continued gives a call to the host that makes it again. It returns whether the response is
// there already: then it is delivered.
func (b *bridge) continued(id []byte, m jsonrpc.Message) bool {
	slog.Info("repeated call continues", "method", m.Method)
	r := b.requests.repeat(id, m)
	if r != nil {
		b.deliver(r)
	}
	return r != nil
}

// repeatForeign is repeat for a call in the session of another process.
func (b *bridge) repeatForeign(ctx context.Context, conn *client.Conn, m jsonrpc.Message, print fingerprint) bool {
	if time.Since(b.began) > repeatWithin {
		return false
	}
	b.mu.Lock()
	opener := b.opener
	b.mu.Unlock()
	c := b.store.takeOverForeign(ctx, opener, print)
	if c == nil {
		return false
	}
	b.requests.restore([]callRecord{c.callRecord})
	b.save()
	b.store.settle(c)
	if b.continued(c.ID, m) {
		return true
	}
	if err := conn.Continue(*c.Place); err != nil {
		b.respond(outcomeUnknown(c.ID, err))
	}
	return true
}

// Changes are saved at most every saveEvery. While calls are in flight and nothing changes,
// the record is renewed every renewEvery: its age tells how long the process has been gone.
const (
	saveEvery  = 100 * time.Millisecond
	renewEvery = time.Minute
)

// changed is called when there is something new to keep. It does not wait, unless a request
// that must not run twice is being sent.
func (b *bridge) changed() {
	if b.sending.Load() {
		b.save()
		return
	}
	select {
	case b.dirty <- struct{}{}:
	default:
	}
}

// saveChanges saves what has changed until the bridge ends.
func (b *bridge) saveChanges() {
	renew := time.NewTicker(renewEvery)
	defer renew.Stop()
	for {
		select {
		case <-b.dirty:
		case <-renew.C:
		case <-b.stop:
			return
		}
		begun := time.Now()
		b.save()
		// A server can make the record long: saving takes at most a tenth of the time.
		select {
		case <-time.After(max(saveEvery, 9*time.Since(begun))):
		case <-b.stop:
			return
		}
	}
}

// save keeps the session and its calls as they are now.
func (b *bridge) save() {
	if err := b.store.save(b.record); err != nil {
		slog.Warn("state not saved", "error", err)
	}
}

// record returns what is to be kept, or nil if the session cannot be resumed.
func (b *bridge) record() *sessionRecord {
	b.mu.Lock()
	conn, opener := b.conn, b.opener
	b.mu.Unlock()
	if conn == nil {
		return nil
	}
	state := conn.State()
	if state.Result == nil || state.Session == "" && state.Endpoint == "" {
		return nil
	}
	calls := b.requests.records(state.Calls)
	state.Calls = nil
	return &sessionRecord{fingerprint: opener, Alive: time.Now(), Conn: state, Calls: calls}
}
