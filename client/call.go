package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A call is one request of the host, from the time it is sent until its response is
// given out. [callState] has the states of its life, [call.run] the steps. It has a field
// more than a struct should, as each group of them is a type with rules of its own.
type call struct {
	c *Conn
	request
	origin origin

	ctx    context.Context
	cancel context.CancelCauseFunc
	posted chan struct{} // closed when the server has the request, or never will

	// Changed only by run: transport with mu.
	transport transport
	kind      attemptKind // of the last attempt
	backoff   backoff     // two fields of it need mu
	repeats   repeats     // finds messages without event ids that come again

	mu       sync.Mutex
	state    callState
	session  session // that it runs in
	ways     ways
	turns    turns
	progress progress
	link     link // where it is on a connection that all calls share
}

// A request is what the host asks for, and under which names the server knows it.
type request struct {
	id     []byte // as the host spelled it
	record string // where it is in Conn.calls: the key of its id
	method string
	tool   string // its name, once State has asked for it
	body   []byte // the request, as it is sent; nil where a State told of the call without it
	key    string // idempotency key; "" where the server honours none, or need not

	// Guarded by call.mu.
	wire  []byte // the id that it was last sent under
	sends int    // how often it was sent
}

// origin is where a call comes from. It does not change once the call is on record.
type origin struct {
	answer    chan<- jsonrpc.Message // takes the response where the host did not make the request; nil: it did
	impatient bool                   // who waits would rather know than wait
	foreign   bool                   // it runs in a session that is not the Conn's
	guest     bool                   // it is another Conn's, and so is its id
	unsure    bool                   // nobody knows whether the Conn before has sent it
}

// safe reports whether the call may be made again whatever became of the first time. What
// the server's tools say of themselves is not known here. A subscription is safe to make
// again, but its host has to know that something may have been missed.
func (k *call) safe() bool {
	return protocol.RetrySafe(k.method, nil) && k.method != protocol.MethodSubscriptions
}

// ErrCancelled says that the host wants no answer any more: see [Conn.Resume].
var ErrCancelled = errors.New("cancelled by the host")

// newCall returns a call that is not on record yet.
func newCall(c *Conn, rq request) *call {
	rq.wire, rq.record = rq.id, string(jsonrpc.Key(rq.id))
	return &call{c: c, request: rq, posted: make(chan struct{})}
}

// call takes a request of the host.
func (c *Conn) call(m jsonrpc.Message) error {
	k := newCall(c, request{id: m.ID, method: m.Method, body: m.Raw})
	k.progress.token = tokenOf(m.Raw)
	if m.Method == protocol.MethodInitialize {
		k.body = c.open(m)
	}
	switch err := c.enter(k); {
	case errors.Is(err, errAlike):
		// The host can't know that the id is taken.
		refused, perr := jsonrpc.Parse(jsonrpc.AppendError(nil, k.id, jsonrpc.Errorf(jsonrpc.CodeServer, "not sent: %v", err)))
		if perr != nil || !c.spawn(func() { c.deliver(refused) }) {
			return err
		}
		return nil
	case err != nil:
		return err
	}
	if k.key != "" {
		body := storable(k.body)
		k.mu.Lock()
		k.body = body
		k.mu.Unlock()
	}
	c.changed()
	if !c.start(k) {
		c.leave(k)
		return ErrClosed
	}
	return nil
}

// storable is a request in the spelling that it has after a [State] was written as
// JSON and read again: without white space, and with < > & U+2028 and U+2029 escaped.
// Under its key it must be sent byte by byte as it was sent before.
func storable(body []byte) []byte {
	if text, err := json.Marshal(json.RawMessage(body)); err == nil && body != nil {
		return text
	}
	return body
}

// enter puts a call on record.
func (c *Conn) enter(k *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state != connOpen:
		return ErrClosed
	case c.calls[k.record] != nil:
		return ErrDuplicate
	case c.muxed() && c.alike(k):
		return errAlike
	}
	k.ctx, k.cancel = context.WithCancelCause(c.ctx)
	c.calls[k.record] = k
	if !k.origin.foreign {
		k.session = c.session
	}
	if c.opening.request != nil && c.session.state == sessionNone && k.origin.answer == nil {
		k.origin.impatient = true // nobody has answered initialize
	}
	if k.key == "" && !k.origin.unsure { // what may have been sent without one must not be sent under a new one
		k.keyFor(k.session)
	}
	return nil
}

// alike says whether a call could not be told from one that is in flight, of another
// Conn or for it: over a line all that is known of what comes is its id. c.mu is held.
func (c *Conn) alike(k *call) bool {
	for _, o := range c.calls {
		if (k.origin.guest || o.origin.guest) && o.named(k.id) {
			return true
		}
	}
	return false
}

var errAlike = fmt.Errorf("%w: one of another connection, that goes on over the same line", ErrDuplicate)

// keyFor gives the call, which the server does not have yet, an idempotency key if
// it needs one and the server of the session honours them.
func (k *call) keyFor(s session) {
	switch {
	case !s.keys:
		k.key = ""
	case k.key == "" && !k.safe() && k.body != nil:
		k.key = newKey()
	}
}

// keyAnew is keyFor for a call that is on record, in whose session it is not to be
// made after all. k.mu is held.
func (k *call) keyAnew(s session) {
	had := k.key != ""
	k.keyFor(s)
	if !had && k.key != "" {
		k.body = storable(k.body)
	}
}

// leave takes a call off the record.
func (c *Conn) leave(k *call) {
	c.mu.Lock()
	there := c.calls[k.record] == k
	if there {
		delete(c.calls, k.record)
		c.asks.forgetCall(k)
	}
	c.mu.Unlock()
	if there {
		c.changed()
	}
}

// leaveIfOver takes the call off the record when it is over here. One that is in flight
// when the Conn ends is for who goes on from State, and of one that was cancelled the
// server is yet to be told.
func (k *call) leaveIfOver() {
	k.mu.Lock()
	stays := k.state == callCancelling || k.state != callAnswered && k.c.ctx.Err() != nil
	k.mu.Unlock()
	if !stays {
		k.c.leave(k)
	}
}

// run makes one attempt after the other until the call is answered, whatever carries it.
func (k *call) run() {
	defer k.cancel(nil)
	defer k.leaveIfOver()
	defer k.settlePosted()
	k.over(k.c.transport())
	for !k.done() {
		if err := k.step(); err != nil {
			k.fail(err)
			return
		}
	}
}

// over notes what carries the call from now on.
func (k *call) over(t transport) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.transport = t
}

// step makes the next attempt. An error ends the call.
func (k *call) step() error {
	if err := k.transport.ready(k); err != nil {
		return unknownIf(k.mayHaveRun(), err)
	}
	if k.kind = k.choose(); k.kind == attemptNone {
		return unknownIf(k.mayHaveRun() || k.body == nil, k.noWay())
	}
	left, err := k.transport.attempt(k, k.kind)
	var no *refusal
	if left && k.kind != attemptEvents && (!errors.As(err, &no) || !no.certain()) {
		k.happened(eventSent)
		if k.kind == attemptAnswers && err != nil && !errors.Is(err, errNext) {
			k.unsureBatch()
		}
	}
	if k.done() {
		return nil
	}
	if err = k.retry(err, left); err != nil {
		return unknownIf(k.mayHaveRun() || k.body == nil, err)
	}
	return nil
}

// taken notes that the server has the request: who waits to tell it something about the
// request need not wait longer.
func (k *call) taken() {
	k.happened(eventTaken)
	k.settlePosted()
}

// settlePosted notes that the server has the request, or never will.
func (k *call) settlePosted() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.posted:
	default:
		close(k.posted)
	}
}

// deliver gives out the call's answer, once, under the host's id.
func (k *call) deliver(m jsonrpc.Message) {
	if !k.happened(eventAnswered) {
		return
	}
	switch k.method {
	case protocol.MethodInitialize:
		m = k.c.opened(m)
	case protocol.MethodDiscover:
		m = preferSessions(m)
	case protocol.MethodSubscribe, protocol.MethodUnsubscribe, protocol.MethodSetLevel:
		if m.Error == nil && k.origin.answer == nil {
			k.c.remember(k.method, jsonrpc.Field(k.body, "params"))
		}
	}
	if string(m.ID) != string(k.id) {
		m.Raw, m.ID = m.WithID(k.id), k.id
	}
	// The id is free from now on: the host may use it as soon as it has the answer.
	k.c.leave(k)
	if k.origin.answer != nil {
		k.origin.answer <- m
		return
	}
	if !k.c.deliver(m) {
		k.c.reenter(k) // the host did not get it: it is for who goes on from State
	}
}

// reenter takes back that a call was answered.
func (c *Conn) reenter(k *call) {
	k.happened(eventUndelivered)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[k.record] == nil {
		c.calls[k.record] = k
	}
}

// fail answers the call with an error: an [unknownOutcome] where it may have run.
func (k *call) fail(err error) {
	if k.ctx.Err() != nil {
		return // nobody waits
	}
	m, perr := jsonrpc.Parse(jsonrpc.AppendError(nil, k.id, failure(err, k.safe())))
	if perr == nil {
		k.deliver(m)
	}
}

// callNamed returns the call in flight that goes by an id, or nil.
func (c *Conn) callNamed(id []byte) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		if k.named(id) {
			return k
		}
	}
	return nil
}
