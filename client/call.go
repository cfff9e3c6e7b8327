package client

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A call is one request of the host, from [Conn.Send] until its response is delivered.
// [callState] has the states of its life, and [call.run] the steps. It has more fields
// than a struct should: each of its parts that has rules is a type of its own.
type call struct {
	c *Conn
	request
	origin origin

	ctx     context.Context
	cancel  context.CancelCauseFunc
	reached chan struct{} // closed when the server has the request, or never will; another one in each round, guarded by mu
	attempts
	modernCall

	mu       sync.Mutex
	state    callState
	session  session // in which the call runs
	ways     ways
	turns    turns
	progress progress
	link     link // the call's place on a mux
}

// attempts describe the attempts that a call has made. Only run changes them, and transport only with call.mu held.
type attempts struct {
	transport transport
	kind      attemptKind // of the last attempt
	accepted  bool        // a subscription that the server has acknowledged
	backoff   backoff
	failures  failures
	repeats   repeats
	ran       bool // the request may have run before the last attempt
	spoken    bool // the server has sent a request or a notification of the call
}

// A request is the request of a call, and the names that it has at the server.
type request struct {
	id     []byte // as the host spelled it
	record string // its key in inFlight
	method string
	tool   string // the tool's name, once State was called
	body   []byte // the request, as it is sent; nil where a State had the call without it
	key    string // idempotency key; "" where the server honours none, or none is needed
	// revision is the modern revision of a request in an HTTP exchange of its own; "" for
	// others. It does not change once the call is registered.
	revision string

	// Guarded by call.mu.
	wire  []byte // the id under which it was last sent
	sends int    // how often it was sent
}

// A modernCall is the state that only modern calls have. Only run changes it.
type modernCall struct {
	next        func() error // the next step, in place of an attempt; nil: none
	drivesTasks bool         // the Conn follows its task, and not the host
	declared    bool         // the request says that its client resumes calls
	task        *task        // the task that the call has become, or nil; guarded by call.mu
	rounds      int          // how often the server has asked for input
	unsent      bool         // the server is done with the request, and the host is asked for input; guarded by call.mu
	first       []byte       // the request of the first round; nil: there was only one
}

// origin is where a call comes from. It does not change once the call is registered.
type origin struct {
	sent         context.Context        // the context of the host's Send; nil: the host has not sent it
	response     chan<- jsonrpc.Message // takes the response in place of the host; nil: the host gets it
	failFast     bool                   // it fails soon if the server is out of reach
	otherSession bool                   // it runs in another session than the Conn's
	once         bool                   // it is made in one attempt, in the session that is given with it
	resumed      bool                   // it was another Conn's call, with that Conn's id ([Conn.Resume])
	maybeSent    bool                   // it is not known whether the Conn before has sent it
}

// safe reports whether the request is retry-safe. The hints of the server's tools are not known
// here. subscriptions/listen is retry-safe where the host is told what may have changed meanwhile.
func (k *call) safe() bool {
	return protocol.RetrySafe(k.method, nil) && (k.method != protocol.MethodSubscriptions || k.subscribes())
}

// ErrCancelled is the cause of a context that cancels a call: see [Conn.Resume].
var ErrCancelled = errors.New("cancelled by the host")

// newCall returns a call that is not registered yet.
func newCall(c *Conn, rq request) *call {
	rq.wire, rq.record, rq.revision = rq.id, string(jsonrpc.Key(rq.id)), revisionOf(rq.body)
	return &call{c: c, request: rq, reached: make(chan struct{})}
}

// call begins a call with a request of the host.
func (c *Conn) call(ctx context.Context, m jsonrpc.Message) error {
	if e := c.wrongEra(m.Method); e != nil {
		return c.refuseHost(m.ID, e)
	}
	k := newCall(c, request{id: m.ID, method: m.Method, body: m.Raw})
	k.origin.sent = ctx
	k.progress.token = tokenOf(m.Raw)
	k.body, k.drivesTasks = c.declareTasks(m)
	k.body, k.declared = c.declareResume(k.body, m.Method)
	if m.Method == protocol.MethodInitialize {
		k.body = c.open(m)
	}
	switch err := c.register(k); {
	case errors.Is(err, errAmbiguous):
		// The host can't know that the id is taken.
		return c.refuseHost(k.id, jsonrpc.Errorf(jsonrpc.CodeServer, "not sent: %v", err))
	case err != nil:
		return err
	}
	if k.key != "" {
		body := canonical(k.body)
		k.mu.Lock()
		k.body = body
		k.mu.Unlock()
	}
	c.changed()
	if !c.start(k) {
		c.unregister(k)
		return ErrClosed
	}
	return nil
}

// refuseHost answers a request of the host with an error. The server gets nothing.
func (c *Conn) refuseHost(id []byte, e *jsonrpc.Error) error {
	refused, err := jsonrpc.Parse(jsonrpc.AppendError(nil, id, e))
	if err == nil && !c.spawn(func() { c.deliver(nil, refused) }) {
		err = ErrClosed
	}
	return err
}

// canonical returns a request as json.Marshal spells it: without white space, and with
// < > & U+2028 and U+2029 escaped. A [State] that was stored as JSON has it like this, and
// under its key a request must be the same to the byte each time that it is sent.
func canonical(body []byte) []byte {
	if text, err := json.Marshal(json.RawMessage(body)); err == nil && body != nil {
		return text
	}
	return body
}

// register adds a call to those in flight.
func (c *Conn) register(k *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != connOpen {
		return ErrClosed
	}
	muxed := c.muxed()
	k.ctx, k.cancel = context.WithCancelCause(sentWith(c.ctx, k.origin.sent))
	switch {
	case muxed:
		k.revision = "" // each message names its revision, and one connection carries all
		fallthrough
	case !k.isModern():
		if !k.origin.otherSession && !k.origin.once {
			k.session = c.session
		}
	default:
		k.session = session{revision: k.revision, keys: c.modern.keys || k.key != ""}
	}
	if c.opening.request != nil && c.session.state == sessionNone && k.origin.response == nil {
		k.origin.failFast = true // initialize is not answered yet
	}
	if k.key == "" && !k.origin.maybeSent { // a request that may have been sent without a key gets no new one
		k.keyFor(k.session)
	}
	err := c.calls.add(k, muxed)
	if err != nil {
		k.cancel(nil)
	}
	return err
}

// keyFor sets the idempotency key of a call that the server does not have yet: a new one
// if the call needs a key and the server of the session honours keys.
func (k *call) keyFor(s session) {
	switch {
	case !s.keys:
		k.key = ""
	case k.key == "" && !k.safe() && k.body != nil:
		k.key = newKey()
	}
}

// keyAnew is keyFor for a registered call that is made in another session after all. k.mu
// is held.
func (k *call) keyAnew(s session) {
	had := k.key != ""
	k.keyFor(s)
	if !had && k.key != "" {
		k.body = canonical(k.body)
	}
}

// unregister removes a call from those in flight.
func (c *Conn) unregister(k *call) {
	if c.calls.remove(k) {
		c.requests.forgetCall(k)
		c.changed()
	}
}

// unregisterIfOver removes the call from those in flight if it has ended. A call in flight
// when the Conn ends stays in State. A cancelled call stays until the server was told.
func (k *call) unregisterIfOver() {
	k.mu.Lock()
	stays := k.state == callCancelling || k.state != callAnswered && k.c.ctx.Err() != nil
	k.mu.Unlock()
	if !stays {
		k.c.unregister(k)
	}
}

// run makes one attempt after the other until the call is answered.
func (k *call) run() {
	defer k.cancel(nil)
	defer k.unregisterIfOver()
	defer k.settleReached()
	k.setTransport(k.c.transport())
	for !k.done() {
		if err := k.step(); err != nil {
			k.fail(err)
			return
		}
	}
}

// setTransport sets the transport of the call's next attempts.
func (k *call) setTransport(t transport) {
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
	k.ran = k.mayHaveRun()
	left, err := k.attempt()
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

// attempt makes an attempt of k.kind, as [transport] has it.
func (k *call) attempt() (left bool, err error) {
	if next := k.next; k.kind == attemptNext {
		k.next = nil
		return false, next()
	}
	return k.transport.attempt(k, k.kind)
}

// taken notes that the server has the request.
func (k *call) taken() {
	k.happened(eventTaken)
	k.settleReached()
}

// settleReached notes that the server has the request, or never will have it. A
// cancellation waits for this.
func (k *call) settleReached() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.reached:
	default:
		close(k.reached)
	}
}

// deliver passes the response to the host, once, under the host's id.
func (k *call) deliver(m jsonrpc.Message) {
	if !k.happened(eventAnswered) {
		return
	}
	switch k.method {
	case protocol.MethodInitialize:
		if !k.origin.once {
			m = k.c.opened(m)
		}
	case protocol.MethodDiscover:
		m = k.discovered(m)
	case protocol.MethodToolsList:
		if k.isModern() {
			m = k.c.listed(m)
		}
	case protocol.MethodSubscribe, protocol.MethodUnsubscribe, protocol.MethodSetLevel:
		if m.Error == nil && k.origin.response == nil {
			k.c.remember(k.method, jsonrpc.Field(k.body, "params"))
		}
	}
	if string(m.ID) != string(k.id) {
		m.Raw, m.ID = m.WithID(k.id), k.id
	}
	// The id is free from now on: the host may use it as soon as it has the response.
	k.c.unregister(k)
	if k.origin.response != nil {
		k.origin.response <- m
		return
	}
	if !k.c.deliver(k, m) { // a Conn that continues from State gets the response
		k.happened(eventUndelivered)
		k.c.calls.putBack(k)
	}
}

// fail delivers an error response: err is an [unknownOutcome] where the request may have
// run.
func (k *call) fail(err error) {
	if k.ctx.Err() != nil {
		return // no caller waits for the response
	}
	m, perr := jsonrpc.Parse(jsonrpc.AppendError(nil, k.id, k.failure(err)))
	if perr == nil {
		k.deliver(m)
	}
}
