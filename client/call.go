package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A call is one request of the host, from the time it is sent until its answer
// is given out.
type call struct {
	c      *Conn
	id     []byte // as the host spelled it
	at     string // where it is in Conn.calls: the key of its id
	method string
	name   string // of the tool, once State has asked for it
	body   []byte // the request, as it is sent; nil for one that State told of
	key    string // idempotency key; "" where the server honours none, or need not

	ctx    context.Context
	cancel context.CancelCauseFunc
	posted chan struct{} // closed when the server has the request, or never will

	inner chan<- jsonrpc.Message // takes the answer where the host did not ask
	brief bool                   // who waits would rather know than wait

	foreign bool // it runs in a session that is not the Conn's
	guest   bool // it is another Conn's, and so is its id

	// Touched only by run.
	pace  pace
	told  told
	door  door // that the last exchange went through
	left  bool // and its request may have left
	maybe bool // the server may have begun with the request

	mu      sync.Mutex
	session session // that it runs in
	wire    []byte  // the id that it was last sent under
	place   place
	turns   turns
	// progress.token does not change after the call was put on record.
	progress progress
	over     bool // its answer was given out, or nobody wants it any more
	parting  bool // the server is being told that
	dead     doors
	arrived  bool // the server was heard to take it
	unsure   bool // nobody knows whether the Conn before has sent it; it never changes

	// Of a call that goes over a line.
	written  bool      // it has been sent, or is about to be
	resuming bool      // it was asked for by its token, and nothing has come since
	repeated bool      // it was sent again under its key
	stream   string    // the name of its stream, in event ids
	came     time.Time // when anything of it came last; zero: that was not asked yet
}

// place is where a call is in its stream, and how it can be found again.
type place struct {
	stream *url.URL // SEP-1335
	last   string   // event id
	token  string   // SEP-975
	seen   seen

	// before is the event id that came before the first question which the host has
	// not answered: what State says if behind.
	before string
	behind bool
}

// found says whether the server has said where the call is to be found.
func (p *place) found() bool { return p.stream != nil || p.last != "" || p.token != "" }

// A door is a way to a call.
type door int

const (
	doorPost    door = iota // the request
	doorAgain               // the request, which may have arrived before
	doorStream              // its stream URL
	doorLast                // its last event id
	doorToken               // its resume token
	doorAnswers             // its stream URL, with answers
)

// doors are ways to come back to a call; those that are set are shut.
type doors struct{ stream, last, token, again bool }

// safe reports whether the call may be made again whatever became of the first time. What
// the server's tools say of themselves is not known here. A subscription is safe to make
// again, but its host has to know that something may have been missed.
func (k *call) safe() bool {
	return protocol.RetrySafe(k.method, nil) && k.method != protocol.MethodSubscriptions
}

// ErrCancelled says that the host wants no answer any more: see [Conn.Resume].
var ErrCancelled = errors.New("cancelled by the host")

// request takes a request of the host.
func (c *Conn) request(m jsonrpc.Message) error {
	k := &call{c: c, id: m.ID, wire: m.ID, method: m.Method, body: m.Raw, posted: make(chan struct{})}
	k.progress.token = tokenOf(m.Raw)
	if m.Method == protocol.MethodInitialize {
		k.body = c.opening(m)
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
	if k.at == "" {
		k.at = string(jsonrpc.Key(k.id))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case c.calls[k.at] != nil:
		return ErrDuplicate
	case (c.line != nil || c.opts.Transport >= SSE) && c.alike(k):
		return errAlike
	}
	k.ctx, k.cancel = context.WithCancelCause(c.ctx)
	c.calls[k.at] = k
	if !k.foreign {
		k.session = c.session
	}
	if c.opener != nil && c.session.revision == "" && !c.session.lost && k.inner == nil {
		k.brief = true // nobody has answered initialize
	}
	if k.key == "" && !k.unsure { // what may have been sent without one must not be sent under a new one
		k.keyFor(k.session)
	}
	return nil
}

// alike says whether a call could not be told from one that is in flight, of another
// Conn or for it: over a line all that is known of what comes is its id. c.mu is held.
func (c *Conn) alike(k *call) bool {
	for _, o := range c.calls {
		if (k.guest || o.guest) && o.named(k.id) {
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
	there := c.calls[k.at] == k
	if there {
		delete(c.calls, k.at)
		c.forgetAll(k)
	}
	c.mu.Unlock()
	if there {
		c.changed()
	}
}

// part takes the call off the record when it is over here. One that is in flight when
// the Conn ends is for who goes on from State, and of one that was cancelled the server
// is yet to be told.
func (k *call) part() {
	k.mu.Lock()
	stays := k.parting || !k.over && k.c.ctx.Err() != nil
	k.mu.Unlock()
	if !stays {
		k.c.leave(k)
	}
}

// run does what it takes to answer the call.
func (k *call) run() {
	defer k.cancel(nil)
	defer k.part()
	defer k.arrive(false)
	c := k.c
	if err := k.admit(); err != nil {
		k.fail(unknownIf(k.maybe, err))
		return
	}
	if c.single() {
		k.overLine()
		return
	}
	for !k.done() {
		var sent atomic.Bool
		x, ok := k.next(&sent)
		if !ok {
			k.fail(unknownIf(k.maybe || k.body == nil, k.noDoor()))
			return
		}
		resp, err := c.do(k.ctx, x)
		if err == nil {
			err = k.take(resp)
		}
		var no *refusal
		k.left = sent.Load()
		if k.left && k.door != doorLast && (!errors.As(err, &no) || !no.certain()) {
			k.maybe = true
			if k.door == doorAnswers && err != nil && !errors.Is(err, errNext) {
				k.doubt()
			}
		}
		if k.done() {
			return
		}
		if err = k.heed(err); err != nil {
			k.fail(unknownIf(k.maybe || k.body == nil, err))
			return
		}
	}
}

// admit sees to it that there is a session for the call to run in.
func (k *call) admit() error {
	if !k.session.lost || k.method == protocol.MethodInitialize || k.early() || k.c.single() {
		return nil // a line waits for the session by itself
	}
	return k.lost(k.session)
}

// arrive notes that the server has the request, or never will: who waits to tell
// it something about the request need not wait longer.
func (k *call) arrive(taken bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.arrived = k.arrived || taken
	select {
	case <-k.posted:
	default:
		close(k.posted)
	}
}

// deliver gives out the call's answer, once, under the host's id.
func (k *call) deliver(m jsonrpc.Message) {
	k.mu.Lock()
	first := !k.over
	k.over = true
	k.mu.Unlock()
	if !first {
		return
	}
	switch k.method {
	case protocol.MethodInitialize:
		m = k.c.opened(m)
	case protocol.MethodDiscover:
		m = preferSessions(m)
	case protocol.MethodSubscribe, protocol.MethodUnsubscribe, protocol.MethodSetLevel:
		if m.Error == nil && k.inner == nil {
			k.c.setting(k.method, jsonrpc.Field(k.body, "params"))
		}
	}
	if string(m.ID) != string(k.id) {
		m.Raw, m.ID = m.WithID(k.id), k.id
	}
	// The id is free from now on: the host may use it as soon as it has the answer.
	k.c.leave(k)
	if k.inner != nil {
		k.inner <- m
		return
	}
	if !k.c.deliver(m) {
		k.c.reenter(k) // the host did not get it: it is for who goes on from State
	}
}

// reenter takes back that a call was answered.
func (c *Conn) reenter(k *call) {
	k.mu.Lock()
	k.over = false
	k.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[k.at] == nil {
		c.calls[k.at] = k
	}
}

// done says whether the call has been answered, or is waited for no longer.
func (k *call) done() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.over || k.ctx.Err() != nil
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

// noDoor says why a call can't be gone on with.
func (k *call) noDoor() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.pace.last != nil:
		return k.pace.last
	case k.place.stream != nil, k.place.last != "", k.place.token != "", k.dead.again:
		return errForgotten
	case k.arrived:
		return errors.New("the connection ended before the answer, and the server offers no way to ask again")
	}
	return errors.New("the connection was lost before the server answered, and the request may have arrived")
}
