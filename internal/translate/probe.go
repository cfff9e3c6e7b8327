package translate

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// probeTimeout bounds how long a server may take to answer server/discover before it is taken for a legacy
// server, which may leave messages before initialize unanswered (2026-07-28, stdio, "Backward Compatibility").
const probeTimeout = 5 * time.Second

// A path is where the messages of a conversation go, once the server's era is known.
type path struct {
	up   backend.Sink // takes the server's messages
	down backend.Conn // takes the clients' messages
}

// A between is a sink in front of another one, to which it passes questions about the conversation.
type between struct{ sink backend.Sink }

// Account implements [budget.Accounted].
func (b between) Account() budget.Account { return budget.Of(b.sink) }

// Shared is for [rpc.IsShared].
func (b between) Shared() bool { return rpc.IsShared(b.sink) }

// TakePlace is for [rpc.TakePlace].
func (b between) TakePlace() (free func(), ok bool) { return rpc.TakePlace(b.sink) }

// A modernProbe is the first modern conversation with a server of unknown era: it sends server/discover. The
// delivery of the first request waits for the answer, so that it can fail if the server refuses the client.
type modernProbe struct {
	between
	t       *translator
	session string
	server  string // its name, or ""
	out     outbox // until the era is known, and then of a modern server
	own     *ownRequests
	path    atomic.Pointer[path] // nil until the era is known
	asks    sync.WaitGroup       // calls of askAgain
	done    chan struct{}        // closed when the conversation is over
	asking  atomic.Bool          // server/discover is not answered yet

	mu      sync.Mutex
	waiting []backend.Inbound // messages beside the first request
	asked   bool
	over    bool
	why     error // why the conversation is over; nil: its client has left
	late    bool  // the server is modern, but has said so after the timeout
}

// Shared says that modern clients have no conversation of their own; see [rpc.IsShared].
func (p *modernProbe) Shared() bool { return true }

func newModernProbe(t *translator, start backend.Start, sink backend.Sink) *modernProbe {
	p := &modernProbe{between: between{sink}, t: t, session: start.Session, server: start.Server, own: newOwnRequests(), done: make(chan struct{})}
	p.out.failed, p.out.log = p.notTaken, t.log
	return p
}

// Deliver implements [backend.Conn].
func (p *modernProbe) Deliver(in backend.Inbound) error {
	p.mu.Lock()
	path, over, why, asked := p.path.Load(), p.over, p.why, p.asked
	switch {
	case path != nil || over:
	case asked || in.Kind != jsonrpc.Request:
		p.waiting = append(p.waiting, in)
	default:
		p.asked = true
	}
	p.mu.Unlock()
	switch {
	case path != nil:
		return path.down.Deliver(in)
	case over:
		return overBecause(why)
	case asked || in.Kind != jsonrpc.Request:
		return nil
	}
	return p.ask(in)
}

// ask finds out the era of the server, and hands over the request that made that necessary, and
// the messages that have come meanwhile.
func (p *modernProbe) ask(in backend.Inbound) (err error) {
	defer func() {
		if err != nil && !errors.Is(err, errOver) {
			p.t.speaks.doubt()
		}
	}()
	m, began := readMeta(in.Params), time.Now()
	modern := make(chan bool, 1)
	p.asking.Store(true)
	id := p.own.add(func(m jsonrpc.Message) { p.asking.Store(false); modern <- p.discovered(m) })
	if err := p.out.Deliver(about(in, newRequest(id, protocol.MethodDiscover, discoverParams(m.clientInfo, m.capabilities)))); err != nil {
		p.own.drop(id)
		p.asking.Store(false)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.asked = len(p.waiting) > 0; p.asked { // and it is not over
			p.asks.Go(p.askAgain)
		}
		return err
	}
	timer := time.NewTimer(p.t.patience)
	defer timer.Stop()
	is := false
	select {
	case is = <-modern:
		if !is {
			p.t.speaks.learn(unsure, no)
		}
	case <-timer.C: // the server may still be starting: its answer to initialize tells its era
	case <-p.done:
		p.mu.Lock()
		defer p.mu.Unlock()
		return overBecause(p.why)
	}
	if is {
		withdrawn := p.withdraw(in)
		if to := p.goOnModern(nil); !withdrawn {
			return to.down.Deliver(in)
		}
		return nil
	}
	c := p.goOnLegacy(time.Since(began))
	err = c.Deliver(in)
	p.mu.Lock()
	waiting := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	for _, other := range waiting {
		if err := c.Deliver(other); err != nil {
			p.notTaken(other, err)
		}
	}
	return err
}

// askAgain asks for the next request that waits, as the first one was refused: for the token of its client, for example.
func (p *modernProbe) askAgain() {
	p.mu.Lock()
	at := slices.IndexFunc(p.waiting, func(w backend.Inbound) bool { return w.Kind == jsonrpc.Request })
	if p.asked = at >= 0; !p.asked {
		p.mu.Unlock()
		return
	}
	in := p.waiting[at]
	p.waiting = slices.Delete(p.waiting, at, at+1)
	p.mu.Unlock()
	if err := p.ask(in); err != nil {
		p.notTaken(in, err)
	}
}

// withdraw removes the cancellation of a request from the waiting messages, where it would come before the request. It
// reports whether there is one.
func (p *modernProbe) withdraw(in backend.Inbound) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.waiting)
	p.waiting = slices.DeleteFunc(p.waiting, func(w backend.Inbound) bool {
		return w.Method == protocol.MethodCancelled && key(jsonrpc.Field(w.Params, "requestId")) == key(in.ID)
	})
	return len(p.waiting) < n
}

// discovered takes the answer to server/discover, and reports whether the server is modern.
func (p *modernProbe) discovered(m jsonrpc.Message) bool {
	modern := isModern(m)
	if modern {
		p.t.speaks.learn(unsure, yes)
		p.mu.Lock()
		p.late = true
		p.mu.Unlock()
	}
	return modern
}

// goOnModern sends on the messages that have waited, and from now on all others.
func (p *modernProbe) goOnModern(waiting []backend.Inbound) *path {
	p.mu.Lock()
	defer p.mu.Unlock()
	waiting = append(waiting, p.waiting...)
	p.waiting = nil
	if at := p.path.Load(); at != nil {
		if r, ok := at.up.(*relay); ok { // messages that have come since
			for i := range waiting {
				waiting[i] = r.outgoing(waiting[i])
			}
			p.out.later(waiting...)
			return at
		}
	}
	to := &path{up: p.sink, down: &p.out}
	if p.t.Processes() {
		r := newRelay(p.sink)
		r.conn = &p.out
		to = &path{up: r, down: r}
		for i := range waiting {
			waiting[i] = r.outgoing(waiting[i])
		}
	}
	p.path.Store(to) // before the server has the waiting messages: it may answer at once
	p.out.later(waiting...)
	return to
}

// goOnLegacy translates all messages from now on. probed is how long the server has not answered server/discover.
func (p *modernProbe) goOnLegacy(probed time.Duration) *legacyServer {
	c := newLegacyServer(p.sink, p.server, p.t.log.With("session", p.session))
	c.probed, c.refusals = probed, &p.t.refusals
	c.apart = !p.t.Processes()
	c.instead = func(answer jsonrpc.Message, waiting []backend.Inbound) bool {
		refuses := isModern(answer) // the refusal may come before the answer to server/discover
		if refuses {
			p.t.speaks.learn(unsure, yes)
		}
		p.mu.Lock()
		p.late = p.late || refuses
		late := p.late
		p.mu.Unlock()
		if !late {
			p.t.speaks.doubt()
			return false
		}
		p.goOnModern(waiting) // the server has answered server/discover late, and refuses initialize
		return true
	}
	c.begun = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.late {
			p.t.speaks.learn(unsure, no)
		}
	}
	c.out.open(p.out.conn)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.path.Store(&path{up: c, down: c})
	return c
}

// discoverParams returns the params of server/discover for a client. info and capabilities may be nil.
func discoverParams(info, capabilities []byte) []byte {
	return append(protocol.AppendMember([]byte{'{'}, "_meta", append(clientMeta(info, capabilities), '}')), '}')
}

// clientMeta returns the members that the _meta of all modern requests of a client has: an
// object without its closing brace.
func clientMeta(info, capabilities []byte) []byte {
	if capabilities == nil {
		capabilities = []byte("{}")
	}
	dst := protocol.AppendMember([]byte{'{'}, protocol.MetaProtocolVersion, jsonrpc.Quote(protocol.V20260728))
	if info != nil {
		dst = protocol.AppendMember(dst, protocol.MetaClientInfo, info)
	}
	return protocol.AppendMember(dst, protocol.MetaClientCapabilities, capabilities)
}

// isModern reports whether an answer to server/discover is a modern server's.
func isModern(m jsonrpc.Message) bool {
	if m.Error == nil {
		return speaks(m.Result, protocol.Modern)
	}
	switch string(jsonrpc.Field(m.Error, "code")) {
	case "-32020", "-32021", "-32023":
		return true
	case "-32022": // of modern revisions, unless its list of supported ones has none
		supported := jsonrpc.Field(m.Error, "data", "supported")
		return supported == nil || names(supported, protocol.Modern)
	}
	return false
}

// speaks reports whether the result of server/discover names a revision for which ok is true.
func speaks(discovered []byte, ok func(revision string) bool) bool {
	return names(jsonrpc.Field(discovered, "supportedVersions"), ok)
}

// names reports whether a list of revisions, as JSON, has one for which ok is true.
func names(list []byte, ok func(revision string) bool) bool {
	for _, v := range strings.Split(strings.Trim(string(list), "[] "), ",") {
		if ok(jsonrpc.String([]byte(strings.TrimSpace(v)))) {
			return true
		}
	}
	return false
}

// notTaken answers a request that the server has not taken.
func (p *modernProbe) notTaken(in backend.Inbound, why error) {
	if to := p.path.Load(); to != nil && in.Kind == jsonrpc.Request {
		if r, ok := to.up.(*relay); ok {
			r.end(in.ID)
		}
	}
	answerNotTaken(in, why, p.own, p.sink)
}

// answerNotTaken answers a request that the server has not taken: one of our own, or a client's.
func answerNotTaken(in backend.Inbound, why error, own *ownRequests, sink backend.Sink) {
	if in.Kind != jsonrpc.Request || own.fail(in.ID, why) {
		return
	}
	if of, ok := in.Call.(refusable); ok {
		of.Refused(why)
	}
	if of, ok := in.Call.(notTaken); ok {
		of.NotTaken()
	}
	sink.Emit(in.Call, newError(in.ID, jsonrpc.CodeServer, "%s was not delivered: %v", in.Method, why))
}

// Close implements [backend.Conn].
func (p *modernProbe) Close() error {
	p.end(nil)
	defer p.asks.Wait() // the end of the server's conversation ends them
	if path := p.path.Load(); path != nil {
		p.out.stop()
		return path.down.Close()
	}
	return p.out.Close()
}

// end stops the probe, and returns the waiting messages. why is the reason, or nil if the client has left.
func (p *modernProbe) end(why error) []backend.Inbound {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.over, p.why = true, why
		close(p.done)
	}
	waiting := p.waiting
	p.waiting = nil
	return waiting
}

// Emit implements [backend.Sink].
func (p *modernProbe) Emit(of backend.Call, m jsonrpc.Message) {
	path := p.path.Load()
	switch {
	case m.Kind == jsonrpc.Response && (path == nil || path.down != &p.out || p.asking.Load()) && p.own.answer(m):
	case path != nil:
		path.up.Emit(of, m)
	case m.Method == protocol.MethodPing && m.Kind == jsonrpc.Request:
		p.out.later(backend.Inbound{Message: newResult(m.ID, nil)})
	case m.Kind == jsonrpc.Request:
		p.out.later(backend.Inbound{Message: newError(m.ID, jsonrpc.CodeMethodNotFound, "%s: no client has begun yet", m.Method)})
	}
	// Other messages are dropped: the server has not heard of a client.
}

// EmitUnrelated implements [backend.Sink].
func (p *modernProbe) EmitUnrelated(m jsonrpc.Message) {
	if path := p.path.Load(); path != nil && m.Kind != jsonrpc.Response {
		path.up.EmitUnrelated(m)
		return
	}
	p.Emit(nil, m)
}

// Closed implements [backend.Sink].
func (p *modernProbe) Closed(why error, reopen bool) {
	if path := p.path.Load(); path != nil {
		path.up.Closed(why, reopen)
		return
	}
	p.t.speaks.learn(unsure, no) // a server that ends when it is asked for its era is a legacy one, if any
	for _, in := range p.end(why) {
		p.notTaken(in, why)
	}
	p.sink.Closed(why, reopen)
}
