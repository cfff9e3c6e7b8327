package bridge

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/internal/translate"
	"holdfast/jsonrpc"
)

// Host and server may speak different eras of the protocol (docs/decisions/0024-two-eras.md).
// The host's messages go through a conversation in its era, which package translate opens. The conversation
// ends in [serverConn] towards the server, and in [legacyHost] or [modernHost] towards the host.

// An era says in which revisions of the protocol the bridge speaks to the server.
type era uint8

const (
	unknownEra era = iota
	legacyEra      // the server has answered initialize
	modernEra      // the server has answered server/discover, and there is no session
)

// serverEra returns the era of the server, as far as it is known.
func (b *bridge) serverEra() era {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.era
}

// eras are the conversations of a bridge, one for each era of the host.
type eras struct {
	both   backend.Backend // the server, in both eras
	legacy legacyHost
	modern modernHost
}

func (e *eras) begin(b *bridge, taskAfter time.Duration) {
	e.both = translate.New(serverSide{b}, nil)
	e.legacy.b, e.legacy.conversation.b = b, b
	e.modern.begin(b, taskAfter)
}

// end ends the conversations. Calls in flight at the server go on there.
func (e *eras) end() {
	e.legacy.conversation.close()
	e.modern.conversation.close()
}

// serverSide is the bridge as the backend of its conversations.
type serverSide struct{ b *bridge }

// Eras implements [backend.EraSpeaker].
func (serverSide) Eras() backend.Eras { return backend.Unknown }

// PassesLegacy lets the messages of a legacy host to a legacy server through unchanged.
func (serverSide) PassesLegacy() bool { return true }

// Open implements [backend.Backend]. The first message connects to the server.
func (s serverSide) Open(_ context.Context, _ backend.Start, sink backend.Sink) (backend.Conn, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.sink = sink
	return serverConn{s.b, sink}, nil
}

// A serverConn is the end of a conversation at the server.
type serverConn struct {
	b    *bridge
	sink backend.Sink
}

// Deliver implements [backend.Conn].
func (c serverConn) Deliver(in backend.Inbound) error {
	from := origin{sink: c.sink}
	from.exchange, _ = in.Call.(*exchange)
	c.b.toServer(in.Message, from)
	return nil
}

// Close implements [backend.Conn]. It leaves the connection to the server, which is the bridge's, open.
func (c serverConn) Close() error { return nil }

// An origin is the maker of a request: a conversation, which makes it for an exchange of the
// host or, if exchange is nil, for itself.
type origin struct {
	sink     backend.Sink
	exchange *exchange
}

// emit gives a message of the server to its conversation. It reports whether the host has taken
// it, or does not have to.
func (o origin) emit(m jsonrpc.Message) (taken bool) {
	switch {
	case o.sink == nil:
		return true
	case o.exchange == nil:
		o.sink.Emit(nil, m)
		return true
	}
	o.exchange.refused.Store(false)
	o.sink.Emit(o.exchange, m)
	return !o.exchange.refused.Load()
}

// fail gives an error response to the conversation.
func (o origin) fail(id []byte, e *jsonrpc.Error) {
	o.emit(mustParse(jsonrpc.AppendError(nil, id, e)))
}

// A conversation connects the host to the server, in an era of the host. Its methods may be
// called concurrently.
type conversation struct {
	b *bridge

	mu   sync.Mutex
	conn backend.Conn // nil until it is needed
}

// deliver gives a message of the host to the conversation, and opens that if necessary. revision is "" for a legacy conversation.
func (c *conversation) deliver(revision string, host backend.Sink, m jsonrpc.Message, of *exchange) error {
	c.mu.Lock()
	conn := c.conn
	if conn == nil {
		var err error
		conn, err = c.b.eras.both.Open(c.b.ctx, backend.Start{Session: "connect", Revision: revision}, host)
		if err != nil {
			c.mu.Unlock()
			return err
		}
		c.conn = conn
	}
	c.mu.Unlock()
	in := backend.Inbound{Message: m, Context: c.b.ctx}
	if of != nil {
		in.Call = of
	}
	return conn.Deliver(in)
}

// isOpen reports whether the conversation has begun.
func (c *conversation) isOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil
}

// close ends the conversation. The next message begins another.
func (c *conversation) close() {
	c.mu.Lock()
	conn := c.conn
	c.conn = nil
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // its error is of the server's end
	}
}

// fromHost handles a message of the host. A message with a method of another kind is refused.
func (b *bridge) fromHost(ctx context.Context, m jsonrpc.Message) {
	rpc.Complete(&m) // the server's SDK may not take the host's error for an answer
	why := protocol.CheckKind(&m)
	switch {
	case m.Kind == jsonrpc.Request:
		b.host.waits.begin(m.ID)
		if protocol.Opens(m.Method) {
			b.greeting.Store(&m.ID)
		}
	case m.Method == protocol.MethodCancelled:
		defer b.host.waits.end(jsonrpc.Field(m.Params, "requestId"))
	}
	switch {
	case why != nil:
		b.host.fail(m.ID, why)
	case isModern(m):
		b.eras.modern.request(m)
	case m.Method == protocol.MethodCancelled && b.eras.modern.cancel(jsonrpc.Field(m.Params, "requestId")):
	case b.strays(m):
	default:
		b.eras.legacy.say(ctx, m)
	}
}

// strays reports whether a message is of no conversation: a modern host has sent it, such as the cancellation of a request that has
// its response. It must not open a legacy conversation, which would get the server's messages. strays answers a ping.
func (b *bridge) strays(m jsonrpc.Message) bool {
	switch {
	case !b.eras.modern.isUsed() || b.eras.legacy.conversation.isOpen():
		return false
	case m.Kind == jsonrpc.Request && m.Method == protocol.MethodPing:
		b.host.write(jsonrpc.AppendResult(nil, m.ID, nil))
		return true
	}
	return m.Kind != jsonrpc.Request
}

// isModern reports whether a message is a request of a modern host.
func isModern(m jsonrpc.Message) bool {
	return m.Kind == jsonrpc.Request && (m.Method == protocol.MethodDiscover ||
		bytes.Contains(m.Params, []byte(protocol.MetaProtocolVersion)) && jsonrpc.Field(m.Params, "_meta", protocol.MetaProtocolVersion) != nil)
}

// A legacyHost is a host of revision 2025-11-25 or earlier. The server's messages go to it
// unchanged.
type legacyHost struct {
	b            *bridge
	conversation conversation
	opening      atomic.Pointer[exchange] // the initialize request, until it is answered
	known        *known                   // nil: nothing is kept
	away         absence

	mu           sync.Mutex
	capabilities []byte            // that the host has declared; nil: they are not known
	questions    map[string][]byte // ids of the server's requests that the host has not answered
	left         chan struct{}     // closed when the server waits for a host that has left; nil: the host is there
	stuck        bool              // left is closed
}

// leave notes that the host will answer nothing any more. The channel is closed when the server waits for an
// answer of the host: the next process may get the question. If no session is kept, the question is refused.
func (h *legacyHost) leave() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = make(chan struct{})
	for _, id := range h.questions {
		h.unansweredLocked(id)
	}
	return h.left
}

// unansweredLocked handles a question to a host that has left. h.mu is held.
func (h *legacyHost) unansweredLocked(id []byte) {
	switch {
	case !h.b.store.isOpen():
		h.refuse(id, jsonrpc.Errorf(jsonrpc.CodeServer, "the client has closed its end, and answers nothing"))
	case !h.stuck:
		h.stuck = true
		close(h.left)
	}
}

// refuse answers a request of the server with an error.
func (h *legacyHost) refuse(id []byte, why *jsonrpc.Error) {
	answer := mustParse(jsonrpc.AppendError(nil, id, why))
	h.b.start(func() { _ = h.conversation.deliver("", h, answer, nil) }) // if the conversation has ended, so has the question
}

// heard notes the host's capabilities, and which questions it has answered.
func (h *legacyHost) heard(m jsonrpc.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case m.Kind == jsonrpc.Response:
		delete(h.questions, string(jsonrpc.Key(m.ID)))
	case m.Kind == jsonrpc.Request && m.Method == protocol.MethodInitialize:
		h.capabilities = jsonrpc.Field(m.Params, "capabilities")
	}
}

// shows reports whether a message of the server is for the host. It refuses requests that the host cannot answer.
func (h *legacyHost) shows(m jsonrpc.Message) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case m.Kind == jsonrpc.Notification && m.Method == protocol.MethodCancelled:
		delete(h.questions, string(jsonrpc.Key(jsonrpc.Field(m.Params, "requestId"))))
	case m.Kind != jsonrpc.Request:
	case h.left != nil:
		h.unansweredLocked(m.ID)
		return false
	default:
		if h.capabilities != nil {
			why := protocol.DoesNotKnow(h.capabilities, m.Method)
			if why == nil && protocol.AsksClient(m.Method) {
				_, why = protocol.MayAsk(h.capabilities, m.Method, m.Params)
			}
			if why != nil {
				h.refuse(m.ID, why)
				return false
			}
		}
		if h.questions == nil {
			h.questions = make(map[string][]byte)
		}
		h.questions[string(jsonrpc.Key(m.ID))] = m.ID
	}
	return true
}

// say handles a message of the host.
func (h *legacyHost) say(ctx context.Context, m jsonrpc.Message) {
	h.heard(m)
	if h.answersFor(m) {
		return
	}
	x := h.hand(m)
	if x == nil || x.answered == nil {
		return
	}
	var late <-chan time.Time
	result := h.known.answer(x.key, h.b.loginTime())
	if result != nil {
		timer := time.NewTimer(patienceAtStart)
		defer timer.Stop()
		late = timer.C
	}
	// Not every host waits for the response before it sends more.
	for waits := true; waits; {
		waits = false
		select {
		case <-x.answered:
		case <-late:
			late, waits = nil, !h.beginsAway(m, x, result)
		case <-ctx.Done():
		case <-h.b.host.gone:
		}
	}
}

// hand gives a message of the host to the conversation. It returns the exchange of a request.
func (h *legacyHost) hand(m jsonrpc.Message) (x *exchange) {
	if m.Kind == jsonrpc.Request {
		x = &exchange{}
		if h.known != nil {
			x.key = keyOf(m.Method, m.Params)
		}
		if m.Method == protocol.MethodInitialize {
			x.id, x.answered = m.ID, make(chan struct{})
			h.opening.Store(x)
		}
	}
	if err := h.conversation.deliver("", h, m, x); err != nil && m.Kind == jsonrpc.Request {
		h.Emit(x, mustParse(jsonrpc.AppendError(nil, m.ID, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", err))))
	}
	return x
}

// Emit implements [backend.Sink].
func (h *legacyHost) Emit(of backend.Call, m jsonrpc.Message) {
	if !h.shows(m) {
		return
	}
	if m.Kind == jsonrpc.Notification && isListChanged(m.Method) && !h.away.passes(m.Method) {
		return
	}
	x, _ := of.(*exchange)
	opening := h.opening.Load()
	if opening != nil && (m.Kind != jsonrpc.Response || string(m.ID) != string(opening.id) || !h.opening.CompareAndSwap(opening, nil)) {
		opening = nil
	}
	if x != nil && m.Kind == jsonrpc.Response {
		if m.Result != nil {
			h.known.keep(x.key, h.b.loginTime(), m.Result)
		}
		if opening == nil && x.told.Load() {
			h.serverBack(m.Error)
			return
		}
	}
	taken := h.b.host.write(m.Raw)
	if x != nil && !taken {
		x.refused.Store(true)
	}
	if opening != nil {
		close(opening.answered)
	}
}

// EmitUnrelated implements [backend.Sink].
func (h *legacyHost) EmitUnrelated(m jsonrpc.Message) { h.Emit(nil, m) }

// Closed implements [backend.Sink]. This conversation cannot go on; the next message begins
// another.
func (h *legacyHost) Closed(error, bool) { h.b.start(h.conversation.close) }
