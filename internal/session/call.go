package session

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/again"
	"holdfast/internal/backpressure"
	"holdfast/internal/journal"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/spans"
	"holdfast/jsonrpc"
)

// A Call is the requests of one POST and all messages of the server about them: one request, or in revisions that have batches, several.
//
// A call starts light, in memory, or stored. A light call becomes stored when it says anything before its
// response, when the transport that waits for it asks ([Call.Promote]), or when its client is gone. The
// stream of a stored call can be read, from any entry on, through a [reading.Reader].
type Call struct {
	s        *Session
	callLife      // see [callState]
	expected bool // the call began light, and the transport that waits for it is expected to read it; guarded by Call.mu

	// Guarded by s.mu; after Begin they change no more.
	method   string // of the first request
	tokens   []string
	record   *record        // nil for most calls
	recovery *recovery      // nil where the store is not shared
	watch    *observe.Watch // nil where there are no observers

	mu      sync.Mutex
	pending pendingRequests
	light   lightAnswers
	number  uint64              // of the stream; 0 while light
	said    uint64              // entries queued for the stream
	parked  *reading.Disconnect // a disconnect that was asked for before the call had a reader
	refused error               // how the backend has refused the call: a [protocol.Unauthorized], or nil

	client   clientWait
	pace     backpressure.Pace // of the call's reader
	standing again.Standing    // towards other calls like this one
	track    journal.Track     // how far the store has the call's entries
}

// standalone is the number of the stream for messages that belong to no call.
const standalone = reading.Standalone

// Method returns the method of the call's first request.
func (c *Call) Method() string { return c.method }

// Session returns the call's session.
func (c *Call) Session() *Session { return c.s }

// Number returns the number of the call's stream, or 0 while it is light.
func (c *Call) Number() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.number
}

// Deliver hands the call's requests to the backend, which it opens if need be. It does not wait for
// responses. A request that can't be delivered gets an error for a response.
func (c *Call) Deliver(ctx context.Context, msgs []jsonrpc.Message, header http.Header) {
	c.deliver(ctx, msgs, header, notDelivered)
}

// Redeliver is Deliver for requests that may have run before, on a node that was lost: if they can't be delivered their outcome is unknown.
func (c *Call) Redeliver(ctx context.Context, msgs []jsonrpc.Message, header http.Header) {
	c.deliver(ctx, msgs, header, notRedelivered)
}

// errNotStored ends a request of a call that could not be stored.
var errNotStored = jsonrpc.Errorf(jsonrpc.CodeServer, "not delivered")

// deliver is Deliver. failed returns the error that answers a request which could not be delivered.
func (c *Call) deliver(ctx context.Context, msgs []jsonrpc.Message, header http.Header, failed func(error) *jsonrpc.Error) {
	for i := range msgs {
		m := msgs[i]
		if m.Kind != jsonrpc.Request {
			if err := c.s.Send(ctx, m, header); err != nil {
				c.s.m.logger.Warn("message of a batch not delivered", "session", c.s.Name(), "method", m.Method, "error", err)
			}
			continue
		}
		if protocol.Resumes(m.Method) { // resume tokens are not for the backend
			c.s.requests.fail(m.ID, c, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound,
				"%s: not in a batch, over HTTP+SSE, or without sessions", m.Method))
			continue
		}
		if c.s.m.Tools.CallsOwn(&m) && c.s.serveTool(ctx, c, m, header, failed) {
			continue
		}
		if c.IsOver() { // an entry of the call could not be stored, so its requests must not run, or the client cancelled them
			if rq := c.s.requests.take(m.ID, c); rq != nil {
				rq.fail(errNotStored)
			} else {
				c.s.m.flights.NotAttached(flightCall{c}, &m)
			}
			continue
		}
		if f := c.s.owner(m.Method); f != nil {
			c.answerBy(f, m)
			continue
		}
		if d := c.deferred(); d != nil {
			m = d.Plain(m)
		}
		if c.s.m.flights.Attach(ctx, flightCall{c}, &m, header, failed) {
			continue
		}
		m = c.s.m.added.Sent(c, m)
		c.deliverOne(ctx, m, header, failed)
	}
}

// deliverOne hands one request to the backend.
func (c *Call) deliverOne(ctx context.Context, m jsonrpc.Message, header http.Header, failed func(error) *jsonrpc.Error) {
	m = spans.Into(m, c.watch)
	err := c.s.deliver(ctx, backend.Inbound{Message: m, Call: c, Context: ctx, Header: header})
	if err != nil {
		c.noteRefusal(&m, err)
		c.s.requests.fail(m.ID, c, failed(err))
	}
}

// Abort answers with e the requests among msgs, with which the call was begun and which will not be delivered.
func (c *Call) Abort(msgs []jsonrpc.Message, e *jsonrpc.Error) {
	c.disown()
	c.untold().Drop() // the client gets the outcome now
	c.fail(msgs, e)
}

// fail answers with e the requests among msgs that are still unanswered.
func (c *Call) fail(msgs []jsonrpc.Message, e *jsonrpc.Error) {
	for m := range protocol.Requests(msgs) {
		c.s.requests.fail(m.ID, c, e)
	}
}

// push queues one entry of the call's stream. c.mu is held.
func (c *Call) push(data []byte, last bool) {
	c.said++
	c.client.said()
	c.pace.Said(&c.s.m.pace, c.said, len(data))
	c.s.log.Queue(entry{By: c, Number: c.number, Data: data, Last: last})
}

// emit takes a message that is not a response. asks says that the client has to answer the message. emit reports whether the message was taken.
func (c *Call) emit(data []byte, asks bool) bool {
	by := c.tell(data, asks)
	if by == nil {
		return false
	}
	c.s.log.Flush()
	if asks {
		by.boundAsking()
	}
	by.pace.Await(&c.s.m.pace, paced{by})
	return true
}

// tell queues a message that is not a response, and returns the call of the stream that has it; nil: the message was not taken. The log must be flushed after.
func (c *Call) tell(data []byte, asks bool) (by *Call) {
	c.mu.Lock()
	if c.sharesStream() {
		c.mu.Unlock()
		return c.s.standalone.tell(data, asks)
	}
	defer c.mu.Unlock()
	if c.IsOver() {
		return nil
	}
	if c.isLight() {
		c.promote()
	}
	if asks {
		c.client.asks()
	}
	c.push(data, false)
	if c.record != nil && c.record.watched != nil {
		c.record.watched.Said(data)
	}
	return c
}

// respond takes the response to a pending request.
func (c *Call) respond(rq *inflight, data []byte) {
	defer c.s.log.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.respondLocked(rq, data)
}

// respondLocked is respond. c.mu is held; the log must be flushed after.
func (c *Call) respondLocked(rq *inflight, data []byte) {
	if c.IsOver() || !c.pending.take(rq) {
		return
	}
	last := len(c.pending) == 0
	if c.watch != nil {
		how, code := outcomeOf(c.method, data)
		c.watch.Settle(c.number, rq.id, how, code)
		if c.number == 0 || c.sharesStream() {
			c.watch.Answered(c.number, rq.id, data)
		}
	}
	if c.isLight() && !c.sharesStream() && !holds(c.s, data) {
		c.promote()
	}
	switch {
	case c.sharesStream():
		c.s.standalone.mu.Lock()
		c.s.standalone.said++
		c.s.log.Queue(entry{By: c.s.standalone, Number: standalone, Data: data, Joined: c.recovery != nil})
		c.appendJournal(rq.id, last)
		c.answered(rq, data, c.s.standalone.said)
		c.s.standalone.mu.Unlock()
	case c.isLight():
		c.answered(rq, data, c.light.add(data))
	default:
		c.push(data, last)
		c.answered(rq, data, c.said)
	}
	if last {
		c.end()
	}
}

// Retriable reports whether the call was not answered because its session left this node, and may be made
// again where the session is now. A light call's error then says so, too.
func (c *Call) Retriable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recovery != nil && (c.recovery.state == recoveryHandedBack || c.recovery.isSafe() && c.number != 0 && c.s.Moved())
}

// Errors of light calls in a session that leaves this node.
var (
	errRetry   = jsonrpc.Errorf(jsonrpc.CodeServer, "not answered: %v; make the request again", ErrMoved)
	errUnknown = outcomeUnknown("%v", ErrMoved)
)

// dropRequest ends a request without an entry in the log: the session has left this node, or is about to. A
// transport that waits for a light call gets an error.
func (c *Call) dropRequest(rq *inflight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.IsOver() || !c.pending.take(rq) {
		return
	}
	if c.number == 0 && !c.s.single {
		e := errUnknown
		if c.recovery != nil && c.recovery.mayRun() {
			e = errRetry
			c.recovery.become(recoveryHandedBack)
		} else {
			c.watch.Settle(0, rq.id, observe.Unknown, e.Code)
		}
		c.light.add(jsonrpc.AppendError(nil, []byte(rq.id), e))
	}
	if len(c.pending) > 0 {
		return
	}
	c.watch.Leave(c.number)
	c.end()
	for f := range c.features {
		f.left(c)
	}
}

// answered tells features that a request was answered. c.mu is held.
func (c *Call) answered(rq *inflight, response []byte, seq uint64) {
	for f := range c.features {
		f.answered(c, rq, jsonrpc.Field(response, "error") != nil, seq)
	}
}

// pendingRequests are the requests of a call that have no response, in their order. Guarded by Call.mu.
type pendingRequests []*inflight

// take removes a request, and reports whether it was pending.
func (p *pendingRequests) take(rq *inflight) bool {
	i := slices.Index(*p, rq)
	if i < 0 {
		return false
	}
	*p = slices.Delete(*p, i, i+1)
	return true
}

// ids returns the ids of the requests.
func (p pendingRequests) ids() []string {
	ids := make([]string, 0, len(p))
	for _, rq := range p {
		ids = append(ids, rq.id)
	}
	return ids
}

// cancel ends a pending request without a response, as its client wants none. If the client may resume the request it gets an error that says so.
func (c *Call) cancel(rq *inflight) {
	c.mu.Lock()
	defer c.s.log.Flush()
	defer c.mu.Unlock()
	if c.IsOver() || !c.pending.take(rq) {
		return
	}
	for f := range c.features {
		f.cancelled(c, rq)
	}
	last := len(c.pending) == 0
	c.watch.Settle(c.number, rq.id, observe.Cancelled, 0)
	c.s.m.flights.Cancelled(flightCall{c}, c.number)
	switch {
	case c.isLight():
		c.appendJournal(rq.id, last)
	case c.resume() != nil:
		c.push(jsonrpc.AppendError(nil, []byte(rq.id), jsonrpc.Errorf(jsonrpc.CodeServer, "cancelled by its client")), last)
	case last:
		c.push(nil, true)
	}
	if last {
		c.end()
	}
}

// AwaitsInput reports whether the call waits for the client to answer a request, and returns how many entries the call's stream has.
func (c *Call) AwaitsInput() (bool, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client.isOpen() && !c.IsOver(), c.said
}

// Disconnect asks the call's reader to end its connection, after telling the client to wait for retry before
// it comes back (negative: as long as it was told when it connected). The call goes on. Without a connected
// client Disconnect does nothing. (SEP-1699: polling by server-side disconnect.)
func (c *Call) Disconnect(retry time.Duration) {
	if c.s.single { // the call's reader is that of the standalone stream
		c.s.streams.Disconnect(standalone, reading.Disconnect{Retry: retry})
		return
	}
	c.mu.Lock()
	first := c.number == 0
	if c.isLight() {
		c.promote() // the transport may read the call before its answers are in the log
	}
	number, k := c.number, reading.Disconnect{Retry: retry, After: c.said}
	if c.expected && number != 0 && c.parked == nil {
		c.parked = &k
	}
	c.mu.Unlock()
	if first {
		c.s.log.Flush()
		return
	}
	c.s.streams.Disconnect(number, k)
}

// takeDisconnect returns and clears the disconnect that was asked for before the call had a reader.
func (c *Call) takeDisconnect() *reading.Disconnect {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.parked
	c.parked, c.expected = nil, false
	return k
}

// callOf returns the call of a message that goes to the backend, or nil.
func callOf(in *backend.Inbound) *Call {
	c, _ := in.Call.(*Call) // all calls are made here
	return c
}
