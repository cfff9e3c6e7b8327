package translate

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// handshakeTimeout bounds how long a server may take to answer initialize.
const handshakeTimeout = protocol.OpensWithin

// A legacyServer is a modern conversation with a legacy server. The first request makes it
// initialize the server in the name of that request's client; all clients of the conversation
// are of one kind. It is the [backend.Conn] of Holdfast and the [backend.Sink] of the server.
//
// Ids go through unchanged: Holdfast's are unique in the conversation, and those of our own requests
// begin with a text that no other ids have. Progress tokens are replaced, because clients choose them.
type legacyServer struct {
	between
	log  *slog.Logger
	name string // of the server, or ""
	out  outbox
	own  *ownRequests
	// instead is called before the conversation ends because the server cannot be initialized.
	// answer is the server's answer to initialize, or the zero value. If instead returns true,
	// it takes over the messages that wait; it may be nil.
	instead func(answer jsonrpc.Message, waiting []backend.Inbound) bool
	// apart says that log messages may come on another connection than the response to the request that they belong to.
	apart bool
	// probed is how long the server has already left a request of a probe unanswered.
	probed time.Duration
	// begun is called when the server was initialized; it may be nil.
	begun func()
	// refusals are the refusals of initialize by this server, in all conversations.
	refusals *refusals
	asks     sync.WaitGroup // calls of initializeNext

	mu       sync.Mutex
	phase    phase
	why      error             // why the conversation is over; nil: its client has left
	waiting  []backend.Inbound // messages, until the server has answered initialize
	timer    *time.Timer       // of initialize
	client   []byte            // the client's capabilities
	server   serverFacts
	inFlight map[string]*request // by the keys of their ids, as the server knows them
	visits   map[string]*request // requests that wait for the client, by the ids of the questions
	tokens   map[string]*request // by the tokens that the server knows them by
	level    int                 // the level that the server was told last, or noLevel
	leveling int                 // how many logging/setLevel requests the server has not answered
	held     []backend.Inbound   // requests that wait for these answers
	subs     map[string]*subscription
}

// A phase is how far the handshake with a legacy server is.
type phase uint8

const (
	idle    phase = iota // no request has come
	opening              // initialize is in flight, or messages that waited for it are on their way
	ready
	over
)

// serverFacts are a legacy server's answer to initialize, as JSON.
type serverFacts struct {
	info         []byte
	capabilities []byte
	result       []byte // of initialize
}

// A request is a client's request in flight to the server.
type request struct {
	id     []byte // Holdfast's id
	wire   []byte // the id that the server knows: the same, or ours if the request is made again
	call   backend.Call
	method string
	token  []byte // the client's progress token, or nil
	ours   string // the key of the token that the server knows, or ""
	uri    []byte // the resource that it names, or nil
	level  int    // of the log messages that it wants, or noLevel
	listen *listen
	visit  *visit // nil if the client visits no URLs
	held   bool   // the server has not got it yet, see [legacyServer.setLevel]
	lacks  *refusal
	told   bool             // a log message that named its call has come
	done   *jsonrpc.Message // its response, which waits for log messages, see logGrace; or nil
}

// A refusal says that the server could not ask the client something during a request, or, if the server does not name the
// request, maybe during that one.
type refusal struct {
	code     int    // the error code that the server got
	required string // the capabilities that the client has not declared, as requiredCapabilities has them
	text     string
}

// takesInput reports whether a server may ask the client something during the request
// (2026-07-28, Multi Round-Trip Requests, "Supported Requests").
func (r *request) takesInput() bool {
	return r.call != nil && protocol.TakesInput(r.method)
}

// Shared says that modern clients have no conversation of their own; see [rpc.IsShared].
func (c *legacyServer) Shared() bool { return true }

func newLegacyServer(sink backend.Sink, name string, log *slog.Logger) *legacyServer {
	c := &legacyServer{
		between: between{sink}, name: name, log: log, level: noLevel, own: newOwnRequests(),
		inFlight: make(map[string]*request), tokens: make(map[string]*request), visits: make(map[string]*request),
		subs: make(map[string]*subscription),
	}
	c.out.failed, c.out.log = c.notTaken, log
	return c
}

// Deliver implements [backend.Conn].
func (c *legacyServer) Deliver(in backend.Inbound) error {
	switch {
	case in.Kind == jsonrpc.Response && c.visited(in.Message):
		return nil
	case in.Kind == jsonrpc.Response: // to a request of the server
		return c.out.Deliver(in)
	case in.Kind == jsonrpc.Notification && in.Method == protocol.MethodCancelled:
		return c.cancelled(in, c.out.Deliver, false)
	}
	c.mu.Lock()
	switch c.phase {
	case idle:
		c.waiting = append(c.waiting, in)
		if !begins(in) {
			c.mu.Unlock()
			return nil
		}
		c.phase = opening
		c.mu.Unlock()
		_, err := c.initialize(in)
		return err
	case opening:
		c.waiting = append(c.waiting, in)
		c.mu.Unlock()
		return nil
	case over:
		why := c.why
		c.mu.Unlock()
		return overBecause(why)
	}
	c.mu.Unlock()
	return c.serve(in, c.out.Deliver)
}

// begins reports whether the server may be initialized for a message. A request of Holdfast's own may know no client.
func begins(in backend.Inbound) bool {
	return in.Kind == jsonrpc.Request && (in.Call != nil || ofClient(in.Params))
}

// ofClient reports whether a request names its client. A request of Holdfast's own does if it is made for a
// client's request, which may wait for its answer.
func ofClient(params []byte) bool {
	m := readMeta(params)
	return m.capabilities != nil && string(m.clientInfo) != protocol.OwnClientInfo
}

// Close implements [backend.Conn].
func (c *legacyServer) Close() error {
	c.mu.Lock()
	c.phase = over
	c.stopTimers()
	c.mu.Unlock()
	defer c.asks.Wait() // the end of the server's conversation ends them
	return c.out.Close()
}

// Closed implements [backend.Sink].
func (c *legacyServer) Closed(why error, reopen bool) {
	c.mu.Lock()
	if c.phase == over {
		c.mu.Unlock()
		return
	}
	c.phase, c.why = over, why
	c.stopTimers()
	waiting := c.waiting
	c.waiting = nil
	for _, in := range c.held {
		if rq := c.inFlight[key(in.ID)]; rq != nil && rq.held { // else it was cancelled
			waiting = append(waiting, in)
		}
	}
	c.held = nil
	var listens []*listen
	done := make(map[*request]jsonrpc.Message)
	for _, rq := range c.inFlight {
		if rq.visits() {
			waiting = append(waiting, rq.visit.in)
			c.forget(rq)
		}
		if rq.done != nil {
			done[rq] = *rq.done
		}
		if rq.listen != nil {
			listens = append(listens, rq.listen)
		}
	}
	c.mu.Unlock()
	for _, in := range waiting { // the server has not seen them
		c.notTaken(in, why)
	}
	for _, l := range listens {
		c.finish(l)
	}
	for rq, m := range done {
		c.answer(rq, m)
	}
	c.sink.Closed(why, reopen)
}

// stopTimers stops the timers that bound the server's answers. c.mu is held.
func (c *legacyServer) stopTimers() {
	if c.phase == over {
		c.own.end()
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	for _, rq := range c.inFlight {
		if rq.listen != nil && rq.listen.timer != nil {
			rq.listen.timer.Stop()
		}
	}
}

// initialize initializes the server in the name of the client of a request. taken says with an error that the request was answered, as
// the conversation has ended.
func (c *legacyServer) initialize(in backend.Inbound) (taken bool, err error) {
	m := readMeta(in.Params)
	id := c.own.add(c.initialized)
	c.mu.Lock()
	c.client = m.capabilities
	c.timer = time.AfterFunc(handshakeTimeout-c.probed, func() {
		c.own.drop(id)
		c.refused(&protocol.NoAnswer{Server: c.name, Method: protocol.MethodInitialize, Within: handshakeTimeout}, jsonrpc.Message{})
	})
	c.mu.Unlock()
	err = c.out.Deliver(about(in, newRequest(id, protocol.MethodInitialize, initializeParams(m))))
	if err == nil {
		return false, nil
	}
	c.own.drop(id)
	c.mu.Lock()
	c.stopTimers()
	if c.phase != opening {
		c.mu.Unlock()
		return true, err
	}
	c.waiting = slices.DeleteFunc(c.waiting, func(other backend.Inbound) bool { return key(other.ID) == key(in.ID) })
	if at := slices.IndexFunc(c.waiting, begins); at >= 0 {
		next := c.waiting[at]
		c.asks.Go(func() { c.initializeNext(next) })
		c.mu.Unlock()
		return false, err
	}
	c.phase = idle
	waiting := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	for _, in := range waiting {
		c.notTaken(in, err)
	}
	return false, err
}

// initializeNext initializes the server for the next request that waits, as the first one was refused: for the token of its client, for example.
func (c *legacyServer) initializeNext(in backend.Inbound) {
	if taken, err := c.initialize(in); err != nil && !taken {
		c.notTaken(in, err)
	}
}

// initialized takes the server's answer to initialize.
func (c *legacyServer) initialized(m jsonrpc.Message) {
	if m.Error != nil {
		c.refused(errors.New(jsonrpc.String(jsonrpc.Field(m.Error, "message"))), m)
		return
	}
	if jsonrpc.Field(m.Result, "protocolVersion") == nil {
		c.refused(errors.New("its answer has no protocolVersion"), m)
		return
	}
	_ = c.refusals.note(nil)
	if c.begun != nil {
		c.begun()
	}
	c.mu.Lock()
	if c.phase != opening {
		c.mu.Unlock()
		return
	}
	c.timer.Stop()
	c.server = serverFacts{
		info:         jsonrpc.Field(m.Result, "serverInfo"),
		capabilities: jsonrpc.Field(m.Result, "capabilities"),
		result:       m.Result,
	}
	c.mu.Unlock()
	send := func(in backend.Inbound) error { c.out.later(in); return nil }
	_ = send(backend.Inbound{Message: newRequest(nil, protocol.MethodInitialized, nil)})
	for {
		c.mu.Lock()
		if len(c.waiting) == 0 || c.phase == over {
			c.waiting = nil
			if c.phase == opening {
				c.phase = ready
			}
			c.mu.Unlock()
			return
		}
		in := c.waiting[0]
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		if in.Kind == jsonrpc.Notification && in.Method == protocol.MethodCancelled {
			_ = c.cancelled(in, send, true)
			continue
		}
		_ = c.serve(in, send)
	}
}

// refused ends the conversation because the server cannot be initialized. The next request
// opens another one.
func (c *legacyServer) refused(why error, answer jsonrpc.Message) {
	c.mu.Lock()
	if c.phase != opening {
		c.mu.Unlock()
		return
	}
	waiting := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	taken := c.instead != nil && c.instead(answer, waiting)
	c.mu.Lock()
	if taken {
		c.phase = over
		c.stopTimers()
		waiting, c.waiting = c.waiting, nil // messages that have come meanwhile
		c.mu.Unlock()
		c.instead(answer, waiting)
		return
	}
	c.waiting = append(waiting, c.waiting...)
	c.mu.Unlock()
	var none *protocol.NoAnswer
	if !errors.As(why, &none) { // a NoAnswer says it all
		why = c.refusals.note(fmt.Errorf("the server cannot be initialized: %w", why))
	}
	c.Closed(why, true)
}

// notTaken answers a request that the server has not taken.
func (c *legacyServer) notTaken(in backend.Inbound, why error) {
	if in.Kind != jsonrpc.Request || c.own.fail(in.ID, why) {
		return
	}
	c.mu.Lock()
	id := in.ID
	if rq := c.inFlight[key(in.ID)]; rq != nil {
		id = rq.id
		c.forget(rq)
	}
	c.mu.Unlock()
	if of, ok := in.Call.(refusable); ok {
		of.Refused(why)
	}
	if of, ok := in.Call.(notTaken); ok {
		of.NotTaken()
	}
	c.sink.Emit(in.Call, newError(id, jsonrpc.CodeServer, "%s was not delivered: %v", in.Method, why))
}

// A notTaken is a [backend.Call] that can be told that no server has its request: its client may make it
// again under the same idempotency key.
type notTaken interface{ NotTaken() }

// A refusable is a [backend.Call] that can be told why the server has refused its client: a [protocol.Unauthorized], or another error.
type refusable interface{ Refused(err error) }

// forget removes a request from those in flight. rq may be nil; c.mu is held.
func (c *legacyServer) forget(rq *request) {
	if rq != nil {
		if rq.visit != nil {
			for id := range rq.visit.open {
				delete(c.visits, id)
			}
			clear(rq.visit.open)
		}
		delete(c.inFlight, key(rq.wire))
		delete(c.tokens, rq.ours)
	}
}

// initializeParams returns the params of initialize for the client of a request. Tasks, and Holdfast's own
// extensions, are not the server's business.
func initializeParams(m meta) []byte {
	capabilities := []byte("{}")
	if m.capabilities != nil {
		capabilities = withoutTasks(m.capabilities)
	}
	info := m.clientInfo
	if info == nil { // the client does not say; a legacy server has to be told something
		info = []byte(`{"name":"unknown","version":"0"}`)
	}
	dst := protocol.AppendMember([]byte{'{'}, "protocolVersion", jsonrpc.Quote(protocol.V20251125))
	dst = protocol.AppendMember(dst, "capabilities", capabilities)
	return append(protocol.AppendMember(dst, "clientInfo", info), '}')
}

// withoutTasks returns capabilities as the other era knows them, without tasks of either era and without Holdfast's extensions:
// these are Holdfast's business.
func withoutTasks(capabilities []byte) []byte {
	dst := []byte{'{'}
	jsonrpc.Each(capabilities, func(name, value []byte) {
		switch string(name) {
		case "tasks":
			return
		case "extensions":
			value = pick(value, func(name string) bool {
				return name != protocol.ExtensionTasks && !strings.HasPrefix(name, protocol.OwnExtensions)
			})
			if string(value) == "{}" {
				return
			}
		}
		dst = protocol.AppendMember(dst, string(name), value)
	})
	return append(dst, '}')
}
