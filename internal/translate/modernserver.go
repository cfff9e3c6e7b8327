package translate

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A modernServer is a legacy conversation with a modern server. It answers initialize with the server's
// answer to server/discover, and sends each request on with the client's info and capabilities from
// initialize. It is the [backend.Conn] of Holdfast and the [backend.Sink] of the server.
//
// The ids of clients go through; a request that is made again with the client's input has
// an id of ours.
type modernServer struct {
	sink backend.Sink
	log  *slog.Logger
	out  outbox
	own  *ownRequests
	// doubt is called when server/discover fails. It may be nil.
	doubt func()

	mu           sync.Mutex
	over         bool
	client       clientFacts
	capabilities []byte // of the server
	level        []byte // of log messages, as JSON, or nil
	inFlight     map[string]*exchange
	tokens       map[string]*exchange // by the keys of their progress tokens
	questions    map[string]*exchange // exchanges that wait for the client's answer, by the question's id
	changes      changes
	timers       map[*time.Timer]struct{}
}

// clientFacts are a legacy client's info and capabilities in initialize, as JSON.
type clientFacts struct {
	info         []byte
	capabilities []byte
}

// Account implements [budget.Accounted].
func (c *modernServer) Account() budget.Account { return budget.Of(c.sink) }

func newModernServer(sink backend.Sink, log *slog.Logger) *modernServer {
	c := &modernServer{
		sink: sink, log: log, own: newOwnRequests(),
		inFlight: make(map[string]*exchange), tokens: make(map[string]*exchange), questions: make(map[string]*exchange), timers: make(map[*time.Timer]struct{}),
	}
	c.changes.wanted = make(map[string]bool)
	c.out.failed, c.out.log = c.notTaken, log
	return c
}

// Sessionless reports that the server keeps no session: its revision has none.
func (c *modernServer) Sessionless() bool { return true }

// Deliver implements [backend.Conn].
func (c *modernServer) Deliver(in backend.Inbound) error {
	c.mu.Lock()
	over := c.over
	c.mu.Unlock()
	switch {
	case over:
		return errOver
	case in.Kind == jsonrpc.Response:
		c.answered(in)
		return nil
	case in.Kind == jsonrpc.Notification:
		return c.notice(in)
	}
	reply := func(m jsonrpc.Message) error { c.sink.Emit(in.Call, m); return nil }
	switch in.Method {
	case protocol.MethodInitialize:
		return c.initialize(in)
	case protocol.MethodPing:
		return reply(newResult(in.ID, nil))
	case protocol.MethodSetLevel:
		level := jsonrpc.Field(in.Params, "level")
		if _, ok := levelOf(level); !ok || level == nil {
			return reply(newError(in.ID, jsonrpc.CodeInvalidParams, "no log level: %s", level))
		}
		c.mu.Lock()
		c.level = level
		c.mu.Unlock()
		return reply(newResult(in.ID, nil))
	case protocol.MethodSubscribe, protocol.MethodUnsubscribe:
		return c.subscribe(in)
	}
	return c.begin(in)
}

// notice handles a notification of the client.
func (c *modernServer) notice(in backend.Inbound) error {
	switch in.Method {
	case protocol.MethodInitialized:
		c.mu.Lock()
		c.changes.watchLists(c.capabilities)
		c.mu.Unlock()
		c.renew(in)
		return nil
	case protocol.MethodCancelled:
		return c.cancelled(in)
	}
	c.log.Debug("notification of the client dropped: modern servers know none", "method", in.Method)
	return nil
}

// initialize asks the server with server/discover, to answer a client's initialize.
func (c *modernServer) initialize(in backend.Inbound) error {
	client := clientFacts{info: jsonrpc.Field(in.Params, "clientInfo")}
	if capabilities := jsonrpc.Field(in.Params, "capabilities"); capabilities != nil {
		client.capabilities = withoutTasks(capabilities)
	}
	c.mu.Lock()
	c.client = client
	c.mu.Unlock()
	var timer *time.Timer
	id := c.own.add(func(m jsonrpc.Message) {
		c.stop(timer)
		c.discovered(in, m)
	})
	timer = c.after(handshakeTimeout, func() { c.own.fail(id, fmt.Errorf("no answer within %v", handshakeTimeout)) })
	err := c.out.Deliver(about(in, newRequest(id, protocol.MethodDiscover, discoverParams(client.info, client.capabilities))))
	if err != nil {
		c.own.drop(id)
		c.stop(timer)
	}
	return err
}

// discovered answers initialize with the server's answer to server/discover.
func (c *modernServer) discovered(in backend.Inbound, m jsonrpc.Message) {
	switch {
	case m.Error != nil:
		if c.doubt != nil {
			c.doubt()
		}
		c.sink.Emit(in.Call, newFailure(in.ID, m.Error))
		return
	case !speaks(m.Result, func(v string) bool { return v == protocol.V20260728 }):
		c.sink.Emit(in.Call, newError(in.ID, jsonrpc.CodeInvalidParams, "the server does not speak revision %s, but %s",
			protocol.V20260728, jsonrpc.Field(m.Result, "supportedVersions")))
		return
	}
	c.mu.Lock()
	c.capabilities = jsonrpc.Field(m.Result, "capabilities")
	if c.capabilities == nil {
		c.capabilities = []byte("{}")
	}
	c.mu.Unlock()
	revision := jsonrpc.String(jsonrpc.Field(in.Params, "protocolVersion"))
	if !protocol.Known(revision) {
		revision = protocol.V20251125
	}
	info := jsonrpc.Field(m.Result, "_meta", protocol.MetaServerInfo)
	if info == nil {
		info = []byte(`{"name":"unknown","version":"0"}`)
	}
	dst := protocol.AppendMember([]byte{'{'}, "protocolVersion", jsonrpc.Quote(revision))
	dst = protocol.AppendMember(dst, "capabilities", c.capabilities)
	dst = protocol.AppendMember(dst, "serverInfo", info)
	jsonrpc.Each(legacyResult(protocol.MethodDiscover, m.Result), func(name, value []byte) { // instructions, and members that no revision has
		switch name := string(name); name {
		case "protocolVersion", "capabilities", "serverInfo", "supportedVersions":
		default:
			dst = protocol.AppendMember(dst, name, value)
		}
	})
	c.sink.Emit(in.Call, newResult(in.ID, append(dst, '}')))
}

// notTaken answers a request that the server has not taken.
func (c *modernServer) notTaken(in backend.Inbound, why error) {
	if in.Kind != jsonrpc.Request || c.own.fail(in.ID, why) {
		return
	}
	c.mu.Lock()
	x := c.inFlight[key(in.ID)]
	c.drop(x)
	c.mu.Unlock()
	if x != nil {
		c.fail(x, "%s was not delivered: %v", x.in.Method, why)
	}
}

// after calls do later, unless the conversation is over by then.
func (c *modernServer) after(d time.Duration, do func()) *time.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		_, ok := c.timers[timer]
		delete(c.timers, timer)
		c.mu.Unlock()
		if ok {
			do()
		}
	})
	if c.over {
		timer.Stop()
		return timer
	}
	c.timers[timer] = struct{}{}
	return timer
}

// stop stops a timer, which may be nil.
func (c *modernServer) stop(timer *time.Timer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if timer != nil {
		timer.Stop()
		delete(c.timers, timer)
	}
}

// Close implements [backend.Conn].
func (c *modernServer) Close() error {
	c.finish()
	return c.out.Close()
}

// Closed implements [backend.Sink].
func (c *modernServer) Closed(why error, reopen bool) {
	if !c.finish() {
		return
	}
	c.sink.Closed(why, reopen)
}

// finish stops our own requests and the timers. It reports whether it is the first to do so.
func (c *modernServer) finish() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := !c.over
	c.over = true
	c.own.end()
	for timer := range c.timers {
		timer.Stop()
	}
	clear(c.timers)
	return first
}

// Emit implements [backend.Sink].
func (c *modernServer) Emit(of backend.Call, m jsonrpc.Message) {
	switch m.Kind {
	case jsonrpc.Response:
		if !c.own.answer(m) {
			c.responded(m)
		}
	case jsonrpc.Request: // modern servers do not make any
		if m.Method == protocol.MethodPing {
			c.out.later(backend.Inbound{Message: newResult(m.ID, nil)})
			return
		}
		c.out.later(backend.Inbound{Message: newError(m.ID, jsonrpc.CodeMethodNotFound, "revision %s has no requests to a client", protocol.V20260728)})
	case jsonrpc.Notification:
		if jsonrpc.Field(m.Params, "_meta", protocol.MetaSubscriptionID) != nil || m.Method == protocol.MethodCancelled {
			c.receive(m)
			return
		}
		if m.Method != protocol.MethodProgress || c.advances(m.Params) {
			c.sink.Emit(of, m)
		}
	}
}

// EmitUnrelated implements [backend.Sink].
func (c *modernServer) EmitUnrelated(m jsonrpc.Message) { c.Emit(nil, m) }
