package session

import (
	"context"
	"net/http"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/flight"
	"holdfast/internal/journal"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
)

// A Call is the requests of one POST and all that the server says about them:
// one request, or in revisions that have batches, several.
//
// A call starts light, in memory, or stored. A light one becomes stored when it
// says anything before its response, when the transport that waits for it asks
// ([Call.Promote]), or when its client is gone. What a stored call says can be
// read, from any place in it, through a [reading.Reader].
type Call struct {
	s *Session

	// Guarded by s.mu; after Begin they change no more.
	method   string // of the first request
	tokens   []string
	record   *record        // nil for most calls
	recovery *recovery      // nil where the store is not shared
	watch    *observe.Watch // nil where there are no observers

	mu       sync.Mutex
	life     callLife      // see [callState]
	asking   int32         // requests to the client that it has not answered
	pending  []*inflight   // without a response, in their order
	light    [][]byte      // responses so far, while the call is light
	changed  chan struct{} // told when a light call ends or is promoted; nil if nobody waits
	number   uint64        // of the stream; 0 while light
	said     uint64        // entries queued for the stream
	delivery delivery
	away     *time.Timer // ends the call if its client does not return; nil if it was never waited for

	standing flight.Standing // to other calls that are like it
	track    journal.Track   // how far the store has what it says
}

// A delivery is how far the clients of a call were told what it says. Guarded by Call.mu.
type delivery struct {
	told  uint64      // sequence of the last entry that a reader has written out
	bytes int64       // said, if it is known how many are kept
	pace  *readerPace // nil for calls that say little

	// A call that began light is expected to be read by the transport that waits for it. A
	// disconnect that is asked for before that is parked.
	parked   *reading.Disconnect
	expected bool

	refused error // how the backend has refused it: a [protocol.Unauthorized], or nil

	signalled bool // its client was told that it waits for input, and has not shown that it knows what for
}

// standalone is the number of the stream that carries what belongs to no call.
const standalone = reading.Standalone

// Method returns the method of the call's first request.
func (c *Call) Method() string { return c.method }

// Session returns the session that the call is part of.
func (c *Call) Session() *Session { return c.s }

// Number returns the number of the call's stream, or 0 while it is light.
func (c *Call) Number() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.number
}

// Deliver hands the call's requests to the backend, which may be opened for it.
// It does not wait for answers. What goes wrong becomes an answer.
func (c *Call) Deliver(ctx context.Context, msgs []jsonrpc.Message, header http.Header) {
	c.deliver(ctx, msgs, header, notDelivered)
}

// Redeliver is Deliver for requests that may have run before, on a node that was
// lost: where they can't be run again nobody knows.
func (c *Call) Redeliver(ctx context.Context, msgs []jsonrpc.Message, header http.Header) {
	c.deliver(ctx, msgs, header, notRedelivered)
}

// deliver is Deliver. failed is what a request is answered with whose delivery gave
// an error.
func (c *Call) deliver(ctx context.Context, msgs []jsonrpc.Message, header http.Header, failed func(error) *jsonrpc.Error) {
	for i := range msgs {
		m := msgs[i]
		if m.Kind != jsonrpc.Request {
			if err := c.s.Send(ctx, m, header); err != nil {
				c.s.m.logger.Warn("message of a batch not delivered", "session", c.s.Name(), "method", m.Method, "error", err)
			}
			continue
		}
		if protocol.Resumes(m.Method) { // whose tokens are none of the backend's business
			c.s.requests.fail(m.ID, c, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound,
				"%s: not in a batch, over HTTP+SSE, or without sessions", m.Method))
			continue
		}
		if c.s.m.Tools.CallsOwn(&m) && c.s.serveTool(ctx, c, m, header, failed) {
			continue
		}
		if c.isOver() { // what it had to say could not be stored, so it must not run
			c.s.requests.fail(m.ID, c, jsonrpc.Errorf(jsonrpc.CodeServer, "not delivered"))
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
	if c.watch != nil {
		m = c.traced(m)
	}
	err := c.s.deliver(ctx, backend.Inbound{Message: m, Call: c, Context: ctx, Header: header})
	if err != nil {
		c.noteRefusal(&m, err)
		c.s.requests.fail(m.ID, c, failed(err))
	}
}

// Abort answers, with an error of ours, the requests among msgs that the call was
// begun with and that will not be delivered.
func (c *Call) Abort(msgs []jsonrpc.Message, e *jsonrpc.Error) {
	c.disown()
	c.untold().Drop() // its client is told now
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			c.s.requests.fail(msgs[i].ID, c, e)
		}
	}
}

// push queues one entry of the call's stream. c.mu is held.
func (c *Call) push(data []byte, last bool) {
	c.said++
	c.delivery.signalled = false
	c.countBytes(len(data))
	c.s.log.Queue(entry{By: c, Number: c.number, Data: data, Last: last})
}

func (c *Call) wake() {
	if c.changed != nil {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
}

// emit takes a message that is no response. asks says that the client has to
// answer it. It reports whether the message was taken.
func (c *Call) emit(data []byte, asks bool) bool {
	c.mu.Lock()
	if c.sharesStream() {
		c.mu.Unlock()
		return c.s.standalone.emit(data, asks)
	}
	if c.isOver() {
		c.mu.Unlock()
		return false
	}
	if c.isLight() {
		c.promote()
	}
	if asks {
		c.asking++
	}
	c.push(data, false)
	if c.record != nil && c.record.watched != nil {
		c.record.watched.Said(data)
	}
	c.mu.Unlock()
	c.s.log.Flush()
	if asks {
		c.boundAsking()
	}
	c.awaitReader()
	return true
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
	if c.isOver() || !c.takePending(rq) {
		return
	}
	last := len(c.pending) == 0
	c.settle(rq, data)
	if c.isLight() && !c.sharesStream() && !c.holdAnswer(data) {
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
		c.light = append(c.light, data)
		c.answered(rq, data, uint64(len(c.light)))
	default:
		c.push(data, last)
		c.answered(rq, data, c.said)
	}
	if last {
		c.end()
		c.observeLightEnd()
		c.wake()
	}
}

// Retriable reports whether the call was not answered, because its session left this node,
// and may be made again where that is now. What a light one was answered with says
// so too.
func (c *Call) Retriable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recovery != nil && (c.recovery.state == recoveryHandedBack || c.recovery.isSafe() && c.number != 0 && c.s.Moved())
}

// What a light call is told whose session leaves.
var (
	errRetry   = jsonrpc.Errorf(jsonrpc.CodeServer, "not answered: %v; make the request again", ErrMoved)
	errUnknown = outcomeUnknown("%v", ErrMoved)
)

// dropRequest ends a request without a word in the log: the session has left this node, or
// is about to. Who waits for a light answer is told so.
func (c *Call) dropRequest(rq *inflight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isOver() || !c.takePending(rq) {
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
		c.light = append(c.light, jsonrpc.AppendError(nil, []byte(rq.id), e))
	}
	if len(c.pending) > 0 {
		return
	}
	c.end()
	c.observeLeft()
	for f := range c.features {
		f.left(c)
	}
	c.wake()
}

// answered tells features that a request was answered. c.mu is held.
func (c *Call) answered(rq *inflight, response []byte, seq uint64) {
	for f := range c.features {
		f.answered(c, rq, jsonrpc.Field(response, "error") != nil, seq)
	}
}

// takePending takes a request off the pending ones and reports whether it was one.
func (c *Call) takePending(rq *inflight) bool {
	for i := range c.pending {
		if c.pending[i] == rq {
			c.pending = append(c.pending[:i], c.pending[i+1:]...)
			return true
		}
	}
	return false
}

// cancel ends a pending request without a response: its client wants none, unless
// it may come back for the request, and then has to be told.
func (c *Call) cancel(rq *inflight) {
	c.mu.Lock()
	defer c.s.log.Flush()
	defer c.mu.Unlock()
	if c.isOver() || !c.takePending(rq) {
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
		c.observeLightEnd()
		c.wake()
	}
}

// isOverAsking reports whether the call has ended and waited for its client.
func (c *Call) isOverAsking() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isOver() && c.asking > 0
}

// clientAnswered notes that the client answered a request of the call.
func (c *Call) clientAnswered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking > 0 {
		c.asking--
	}
	if c.asking == 0 && c.record != nil {
		stopTimer(c.record.unseen)
	}
}

// AwaitsInput reports whether the call waits for the client to answer a request,
// and how many entries its stream has.
func (c *Call) AwaitsInput() (bool, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asking > 0 && !c.isOver(), c.said
}

// Disconnect asks the call's reader to end its connection, after telling the
// client to wait for retry before it comes back (negative: as long as it was
// told when it connected). The call goes on. It does nothing where nobody is
// connected. (SEP-1699: polling by server-side disconnect.)
func (c *Call) Disconnect(retry time.Duration) {
	if c.s.single { // its reader is the standalone stream's
		c.s.streams.Disconnect(standalone, reading.Disconnect{Retry: retry})
		return
	}
	c.mu.Lock()
	first := c.number == 0
	if c.isLight() {
		c.promote() // who waits for the call may read it before that is in the log
	}
	number, k := c.number, reading.Disconnect{Retry: retry, After: c.said}
	if c.delivery.expected && number != 0 && c.delivery.parked == nil {
		c.delivery.parked = &k
	}
	c.mu.Unlock()
	if first {
		c.s.log.Flush()
		return
	}
	c.s.streams.Disconnect(number, k)
}

// takeDisconnect returns and clears the disconnect that was asked for before there
// was a reader.
func (c *Call) takeDisconnect() *reading.Disconnect {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.delivery.parked
	c.delivery.parked, c.delivery.expected = nil, false
	return k
}

// callOf returns the call of a message that goes to the backend, or nil.
func callOf(in *backend.Inbound) *Call {
	c, _ := in.Call.(*Call) // nobody else makes any
	return c
}
