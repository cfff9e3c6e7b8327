package translate

import (
	"bytes"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A legacyProbe is the first legacy conversation with a server of unknown era. The client's
// initialize goes through untouched. If the server refuses it, or takes it and keeps no session,
// the probe sends server/discover: without a session a legacy server can ask its client nothing,
// and send nothing but responses. A modern server can.
type legacyProbe struct {
	between
	t       *translator
	session string
	out     outbox // until it is known that the server is modern
	own     *ownRequests
	path    atomic.Pointer[path]  // nil until the era is known
	asked   atomic.Pointer[asked] // nil until server/discover is sent

	mu    sync.Mutex
	first *backend.Inbound // the client's initialize, while the server has not answered it
	timer *time.Timer
}

// asked are the ids of the requests server/discover of a probe, which follow each other. A client may send another initialize after
// the first was refused.
type asked struct{ first, last int64 }

func newLegacyProbe(t *translator, start backend.Start, sink backend.Sink) *legacyProbe {
	p := &legacyProbe{between: between{sink}, t: t, session: start.Session, own: newOwnRequests()}
	p.out.failed, p.out.log = p.notTaken, t.log
	return p
}

// Sessionless reports whether the server keeps no session, as far as is known.
func (p *legacyProbe) Sessionless() bool {
	path := p.path.Load()
	return path != nil && keepsNoSession(path.down)
}

// Deliver implements [backend.Conn].
func (p *legacyProbe) Deliver(in backend.Inbound) error {
	if path := p.path.Load(); path != nil {
		return path.down.Deliver(in)
	}
	if in.Kind == jsonrpc.Request && in.Method == protocol.MethodInitialize {
		p.mu.Lock()
		p.first = &in
		p.mu.Unlock()
	}
	return p.out.Deliver(in)
}

// Emit implements [backend.Sink].
func (p *legacyProbe) Emit(of backend.Call, m jsonrpc.Message) {
	switch path := p.path.Load(); {
	case path != nil && !p.isLate(m):
		path.up.Emit(of, m)
	case path == nil && m.Kind == jsonrpc.Response && p.own.answer(m), p.isLate(m):
	case m.Kind == jsonrpc.Response && p.answered(of, m):
	default:
		p.sink.Emit(of, m)
	}
}

// isLate reports whether a message is an answer to a server/discover that is not waited for any more: no client has asked for it.
func (p *legacyProbe) isLate(m jsonrpc.Message) bool {
	asked := p.asked.Load()
	if asked == nil || m.Kind != jsonrpc.Response {
		return false
	}
	id, err := strconv.ParseInt(key(m.ID), 10, 64)
	return err == nil && asked.first <= id && id <= asked.last
}

// asks notes the id of a server/discover. p.mu is held.
func (p *legacyProbe) asks(id []byte) {
	n, _ := strconv.ParseInt(string(id), 10, 64) // [rpc.OwnIDs] are integers
	asked := asked{n, n}
	if before := p.asked.Load(); before != nil {
		asked.first = before.first
	}
	p.asked.Store(&asked)
}

// answered handles the server's answer to initialize. It reports whether the client must not
// see it yet.
func (p *legacyProbe) answered(of backend.Call, m jsonrpc.Message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := p.first
	if in == nil || key(in.ID) != key(m.ID) {
		return false
	}
	p.first = nil
	switch {
	case m.Error != nil && !mayBeModern(m.Error):
		return false
	case m.Error == nil && (!keepsNoSession(p.out.conn) || jsonrpc.Field(m.Result, "capabilities", "tasks") != nil):
		p.goOnLegacy()
		return false
	}
	id := p.own.add(func(discovered jsonrpc.Message) { p.discovered(*in, of, m, discovered) })
	p.asks(id)
	p.timer = time.AfterFunc(p.t.patience, func() { p.own.fail(id, errSilent) })
	params := discoverParams(jsonrpc.Field(in.Params, "clientInfo"), jsonrpc.Field(in.Params, "capabilities"))
	p.out.later(about(*in, newRequest(id, protocol.MethodDiscover, params)))
	return true
}

// goOnLegacy lets messages go through untouched from now on.
func (p *legacyProbe) goOnLegacy() {
	p.t.speaks.learn(yes, unsure)
	p.path.Store(&path{up: p.sink, down: &p.out})
}

// keepsNoSession reports whether the server behind a conn has answered initialize, and keeps no
// session.
func keepsNoSession(c backend.Conn) bool {
	s, ok := c.(interface{ Sessionless() bool })
	return ok && s.Sessionless()
}

// mayBeModern reports whether a server that speaks only modern revisions may refuse initialize
// with this error: the server does not know the method, misses the _meta, or names its
// revisions (2026-07-28, Versioning, "Backward Compatibility"). After another error, such as
// that of a server out of reach, the server is not asked again.
func mayBeModern(failure []byte) bool {
	switch string(jsonrpc.Field(failure, "code")) {
	case "-32600", "-32601", "-32602", "-32020", "-32021", "-32022", "-32023":
		return true
	}
	return bytes.Contains(failure, []byte(protocol.V20260728))
}

var errSilent = errors.New("no answer to server/discover")

// discovered takes the answer to server/discover. initialized is the answer to initialize.
func (p *legacyProbe) discovered(in backend.Inbound, of backend.Call, initialized, m jsonrpc.Message) {
	p.mu.Lock()
	p.timer.Stop()
	p.mu.Unlock()
	if m.Error != nil || !isModern(m) {
		if initialized.Error == nil {
			p.goOnLegacy()
		}
		p.sink.Emit(of, initialized)
		return
	}
	p.t.speaks.learn(no, yes)
	c := newModernServer(p.sink, p.t.log.With("session", p.session))
	_ = c.Deliver(in)       // its outbox is not open yet: nothing is sent
	c.out.conn = p.out.conn // the client may close it at once
	p.path.Store(&path{up: c, down: c})
	c.out.later() // sends the waiting messages
}

// notTaken answers a request that the server has not taken.
func (p *legacyProbe) notTaken(in backend.Inbound, why error) { answerNotTaken(in, why, p.own, p.sink) }

// Close implements [backend.Conn].
func (p *legacyProbe) Close() error {
	p.mu.Lock()
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	if path := p.path.Load(); path != nil {
		p.out.stop()
		return path.down.Close()
	}
	return p.out.Close()
}

// EmitUnrelated implements [backend.Sink].
func (p *legacyProbe) EmitUnrelated(m jsonrpc.Message) {
	switch path := p.path.Load(); {
	case path != nil && !p.isLate(m):
		path.up.EmitUnrelated(m)
	case m.Kind == jsonrpc.Response:
		p.Emit(nil, m)
	default:
		p.sink.EmitUnrelated(m)
	}
}

// Closed implements [backend.Sink].
func (p *legacyProbe) Closed(why error, reopen bool) {
	if path := p.path.Load(); path != nil {
		path.up.Closed(why, reopen)
		return
	}
	if asked := p.asked.Load(); asked != nil {
		p.own.fail(strconv.AppendInt(nil, asked.last, 10), why)
	}
	p.sink.Closed(why, reopen)
}
