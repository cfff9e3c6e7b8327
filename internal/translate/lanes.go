package translate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// lanes is a conversation of several callers with a legacy server that may ask them something, and need not say in which
// call. A question finds its call because the call is alone in its lane: once the server was seen to ask, each call in
// which it may ask has a lane, which is another opening of the server, or waits for one. See docs/decisions/0038-lanes.md.
//
// The main lane has all other messages: lists, subscriptions, notifications, and calls as long as the server was not seen to ask.
// The first call of each tool has the lane to itself for a look, if another call comes: until the server has answered a ping that
// came after the first, and a moment more. If the server asks at once, that is known before a question could be another call's.
//
// mu is not held while the server or the sink is called.
type lanes struct {
	sink   backend.Sink
	log    *slog.Logger
	habits *habits
	most   int // how many lanes there may be beside the main one
	// begin opens the server again, because of a message.
	begin  func(ctx context.Context, in backend.Inbound, sink backend.Sink) (backend.Conn, error)
	ids    rpc.OwnIDs
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu         sync.Mutex
	main       *lane
	spares     []*lane
	initialize backend.Inbound // the request, or the zero value
	asks       bool            // the server is initialized, and its client has capabilities to be asked for something
	level      []byte          // the params of the last logging/setLevel
	waiting    []*laneCall     // calls that wait for a lane
	asked      map[string]laneQuestion
	look       *time.Timer // when waiting is looked at again; nil: no look is due
	looks      int         // how many looks were taken
	ping       string      // the key of the id of our ping that the server has not answered, or ""
	pinged     time.Time   // when the ping was sent
	full       time.Time   // until then no process can be had
	closed     bool
	gone       error // why the server of the main lane has ended; nil: it has not
}

// A lane is one opening of the server, and its sink.
type lane struct {
	of  *lanes
	out outbox

	// The rest is guarded by lanes.mu.
	calls map[string]*laneCall // in flight, by the keys of their ids
	held  []*heldQuestion      // questions that may belong to several of the calls
	// Of lanes beside the main one:
	ready   bool // the server is initialized
	over    bool
	ends    bool                 // the server has ended, and the lane is about to be over
	began   string               // the key of the id of our initialize
	answer  chan jsonrpc.Message // takes the response to that request
	ended   chan struct{}        // closed when the lane is over
	why     error                // why the lane is over; read after ended is closed
	last    *backend.Inbound     // the last message to the server before the lane is closed; or nil
	pending []backend.Inbound    // messages that wait until the lane is ready
	idle    *time.Timer          // ends the lane
}

// A laneCall is a request in which the server may ask its client something.
type laneCall struct {
	in     backend.Inbound
	name   string // see [calledName]
	came   time.Time
	since  time.Time // when it got its lane
	looks  int       // how many looks were taken before it came
	quiet  time.Time // when the look at it ends; zero: not known, as no ping after it was answered
	again  bool      // it is made again, after a take-over
	asked  bool
	ghost  bool        // it was cancelled, and the server may not have heard of it yet
	timer  *time.Timer // of a ghost, or of a call that waits
	unsent bool        // no server has it
}

// A laneQuestion is a request of the server in a lane beside the main one. The sink knows it under another id.
type laneQuestion struct {
	lane *lane
	id   []byte // the server's id
}

// A heldQuestion is a question that waits until it is known which call it is for.
type heldQuestion struct {
	m     jsonrpc.Message
	until time.Time
	timer *time.Timer
}

const (
	// lookAfter is how long the first call of a tool stays alone after a ping was answered, to see whether its server asks.
	// longest bounds such a look, and mostLooks for how many looks another call waits.
	lookAfter = 25 * time.Millisecond
	longest   = 500 * time.Millisecond
	mostLooks = 2
	// heldFor bounds how long a question waits until it is known which call it is for.
	heldFor = 10 * time.Second
	// ghostFor is how long a call may still ask after it was cancelled.
	ghostFor = 10 * time.Second
	// idleLane is how long a lane stays without a call.
	idleLane = 10 * time.Second
	// mostLanes bounds how many lanes a conversation has beside the main one, mostWaiting how many calls wait for one, and
	// laneWait for how long.
	mostLanes   = 32
	mostWaiting = 256
	laneWait    = time.Minute
	// placeAgain is the pause before a process is asked for again if too many run.
	placeAgain = 250 * time.Millisecond
)

// openLanes opens a conversation that several callers share.
func (t *translator) openLanes(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	l := &lanes{sink: sink, log: t.log.With("session", start.Session), habits: &t.habits, most: mostLanes}
	if p, ok := t.inner.(passer); ok && p.PassesLegacy() {
		l.most = 0 // there can be one conversation only
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.main = &lane{of: l, calls: make(map[string]*laneCall), ready: true}
	l.main.out.failed, l.main.out.log = l.main.failed, t.log
	conn, err := openTasks(ctx, t.inner, start, l.main)
	if err != nil {
		l.cancel()
		return nil, err
	}
	start.HTTP = nil
	l.begin = func(ctx context.Context, in backend.Inbound, sink backend.Sink) (backend.Conn, error) {
		start := start
		start.HTTP = requestFor(ctx, in)
		return openTasks(ctx, t.inner, start, sink)
	}
	l.main.out.open(conn)
	return l, nil
}

// requestFor returns the HTTP request with which a server is opened because of a message.
func requestFor(ctx context.Context, in backend.Inbound) *http.Request {
	header := in.Header
	if header == nil {
		header = make(http.Header)
	}
	if in.Context != nil {
		values := context.WithoutCancel(in.Context)
		return (&http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: header}).WithContext(values)
	}
	return (&http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: header}).WithContext(ctx)
}

// Account implements [budget.Accounted].
func (ln *lane) Account() budget.Account { return budget.Of(ln.of.sink) }

// Sessionless reports whether the server keeps no session.
func (l *lanes) Sessionless() bool { return keepsNoSession(l.main.out.conn) }

// Deliver implements [backend.Conn].
func (l *lanes) Deliver(in backend.Inbound) error {
	switch {
	case in.Kind == jsonrpc.Response:
		return l.answered(in)
	case in.Kind == jsonrpc.Notification && in.Method == protocol.MethodCancelled:
		return l.cancelled(in)
	case in.Kind == jsonrpc.Request && in.Call != nil && protocol.TakesInput(in.Method):
		if taken, err := l.take(in); taken {
			return err
		}
	case in.Kind == jsonrpc.Request && in.Method == protocol.MethodInitialize:
		l.mu.Lock()
		l.initialize = in
		l.mu.Unlock()
	case in.Kind == jsonrpc.Request && in.Method == protocol.MethodSetLevel:
		l.mu.Lock()
		l.level = in.Params
		l.mu.Unlock()
		l.tell(func() jsonrpc.Message { return newRequest(l.ids.Next(), in.Method, in.Params) }, in)
	case in.Kind == jsonrpc.Notification && in.Method != protocol.MethodInitialized:
		l.tell(func() jsonrpc.Message { return in.Message }, in)
	}
	return l.main.out.Deliver(in)
}

// tell sends a message to the ready lanes beside the main one. because is the client's message that causes it.
func (l *lanes) tell(message func() jsonrpc.Message, because backend.Inbound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range l.spares {
		if ln.ready {
			ln.out.later(about(because, message()))
		}
	}
}

// A repeated is a [backend.Call] that knows whether it is made again because its node was lost. Several calls are made
// again at a time, and their server's state was lost, too: so each has a lane from the beginning, if there is one.
type repeated interface{ Repeated() bool }

// take gives a call a lane, or makes it wait for one. It reports false, and does neither, if the client cannot be asked anything.
func (l *lanes) take(in backend.Inbound) (taken bool, _ error) {
	now := time.Now()
	l.mu.Lock()
	if why := l.gone; why != nil || !l.asks || l.closed {
		l.mu.Unlock()
		return why != nil, why
	}
	c := &laneCall{in: in, name: calledName(&in.Message), came: now, looks: l.looks, unsent: true}
	if of, ok := in.Call.(repeated); ok {
		c.again = of.Repeated()
	}
	if len(l.waiting) >= mostWaiting {
		l.mu.Unlock()
		l.notTaken(in, errLanesFull)
		return true, nil
	}
	if len(l.waiting) > 0 {
		l.wait(c)
		l.mu.Unlock()
		return true, nil
	}
	ln := l.pick(c, now)
	switch ln {
	case nil:
		l.wait(c)
	case l.main:
		ln.assign(c, now)
		l.mu.Unlock()
		err := ln.out.Deliver(in)
		if err != nil {
			l.mu.Lock()
			delete(ln.calls, key(in.ID))
			ln.free()
			l.mu.Unlock()
		}
		return true, err
	default:
		ln.send(c, now)
	}
	l.mu.Unlock()
	return true, nil
}

var (
	errLanesFull = fmt.Errorf("%d calls wait for others of this server, which asks its callers: it has not begun, make it again later", mostWaiting)
	errLaneLate  = fmt.Errorf("it has waited %v for others of this server, which asks its callers: it has not begun, make it again later", laneWait)
)

// wait makes a call wait for a lane. l.mu is held.
func (l *lanes) wait(c *laneCall) {
	l.waiting = append(l.waiting, c)
	c.timer = time.AfterFunc(time.Until(c.came.Add(laneWait)), func() {
		l.mu.Lock()
		waits := l.unqueue(key(c.in.ID)) == c
		l.mu.Unlock()
		if waits {
			l.notTaken(c.in, errLaneLate)
		}
	})
}

// unqueue removes the call with an id from those that wait, and returns it, or nil. l.mu is held.
func (l *lanes) unqueue(id string) *laneCall {
	at := slices.IndexFunc(l.waiting, func(c *laneCall) bool { return key(c.in.ID) == id })
	if at < 0 {
		return nil
	}
	c := l.waiting[at]
	l.waiting = slices.Delete(l.waiting, at, at+1)
	stopTimer(c.timer)
	return c
}

// pick returns the lane for a call, or nil if the call has to wait until the next look. l.mu is held.
func (l *lanes) pick(c *laneCall, now time.Time) *lane {
	known := l.habits.known()
	if !known && !c.again {
		return l.pickMain(c, now)
	}
	if len(l.main.calls) == 0 {
		return l.main
	}
	for _, ln := range l.spares {
		if len(ln.calls) == 0 && !ln.ends {
			return ln
		}
	}
	until := l.full.Sub(now)
	if !known && (until > 0 || len(l.spares) >= l.most) {
		return l.main
	}
	if until > 0 {
		l.lookAgain(until)
	}
	if until > 0 || len(l.spares) >= l.most {
		return nil
	}
	ln := &lane{of: l, calls: make(map[string]*laneCall), answer: make(chan jsonrpc.Message, 1), ended: make(chan struct{})}
	ln.out.failed, ln.out.log = ln.failed, l.log
	l.spares = append(l.spares, ln)
	l.work.Go(func() { ln.begin(c) })
	return ln
}

// pickMain returns the main lane, or nil if the call has to wait, as another call there may be the first that asks. l.mu is held.
func (l *lanes) pickMain(c *laneCall, now time.Time) *lane {
	if l.looks-c.looks >= mostLooks {
		return l.main
	}
	for _, other := range l.main.calls {
		if l.habits.proven(other.name) {
			continue
		}
		if left := l.leftOfLook(other, now); left > 0 {
			l.lookAgain(left)
			return nil
		}
		l.habits.prove(other.name)
		l.looks++
	}
	return l.main
}

// leftOfLook returns how long a call of the main lane must still be alone. The answer to a ping says that the server has taken the
// call: a server that is busy, or on a slow machine, is late with both. l.mu is held.
func (l *lanes) leftOfLook(c *laneCall, now time.Time) time.Duration {
	switch {
	case !c.quiet.IsZero():
	case l.habits.answersNoPing():
		c.quiet = c.since.Add(lookAfter)
	case now.Sub(c.since) >= longest:
		l.habits.noPing()
		return 0
	case l.ping == "":
		id := l.ids.Next()
		l.ping, l.pinged = key(id), now
		l.main.out.later(about(c.in, newRequest(id, protocol.MethodPing, nil)))
		fallthrough
	default:
		return longest - now.Sub(c.since)
	}
	return c.quiet.Sub(now)
}

// ponged takes the answer to our ping: the server has taken the calls that were sent before it. l.mu is held.
func (l *lanes) ponged() {
	now := time.Now()
	took := now.Sub(l.pinged)
	for _, c := range l.main.calls {
		if c.quiet.IsZero() && !c.since.After(l.pinged) {
			c.quiet = now.Add(lookAfter + 3*took) // a machine that takes its time for a ping takes it for a question, too
			if last := c.since.Add(longest); c.quiet.After(last) {
				c.quiet = last
			}
		}
	}
	l.ping = ""
	stopTimer(l.look)
	l.look = nil
	l.goOn()
}

// lookAgain calls goOn after a time, if no look is due yet. l.mu is held.
func (l *lanes) lookAgain(after time.Duration) {
	if l.look != nil || l.closed {
		return
	}
	l.look = time.AfterFunc(after, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.look = nil
		l.goOn()
	})
}

// goOn gives the calls that wait lanes, as far as there are any. l.mu is held.
func (l *lanes) goOn() {
	now := time.Now()
	for len(l.waiting) > 0 && !l.closed && l.gone == nil {
		c := l.waiting[0]
		ln := l.pick(c, now)
		if ln == nil {
			return
		}
		l.unqueue(key(c.in.ID))
		ln.send(c, now)
	}
}

// assign puts a call in the lane. lanes.mu is held.
func (ln *lane) assign(c *laneCall, now time.Time) {
	c.since, c.unsent = now, false
	ln.calls[key(c.in.ID)] = c
	stopTimer(ln.idle)
}

// send assigns a call to the lane, and sends it when the lane is ready. lanes.mu is held.
func (ln *lane) send(c *laneCall, now time.Time) {
	ln.assign(c, now)
	if !ln.ready {
		c.unsent = true
		ln.pending = append(ln.pending, c.in)
		return
	}
	ln.out.later(c.in)
}

// notTaken answers a call that no server has.
func (l *lanes) notTaken(in backend.Inbound, why error) {
	if of, ok := in.Call.(notTaken); ok {
		of.NotTaken()
	}
	l.sink.Emit(in.Call, newError(in.ID, jsonrpc.CodeServer, "%s: %v", in.Method, why))
}

// failed answers a request that was put off, and that the server then did not take.
func (ln *lane) failed(in backend.Inbound, why error) {
	l := ln.of
	if in.Kind == jsonrpc.Response {
		l.log.Warn("the server has not taken an answer of its client", "error", why)
	}
	if in.Kind != jsonrpc.Request { // the id of an answer is the server's, and may be that of a call, too
		return
	}
	l.mu.Lock()
	delete(ln.calls, key(in.ID))
	ln.free()
	l.mu.Unlock()
	if in.Call != nil {
		l.notTaken(in, fmt.Errorf("not delivered: %w", why))
	}
}

// free notes that a call has left the lane. lanes.mu is held.
func (ln *lane) free() {
	if len(ln.calls) > 0 {
		return
	}
	if ln != ln.of.main && !ln.over {
		stopTimer(ln.idle)
		ln.idle = time.AfterFunc(idleLane, func() {
			ln.of.mu.Lock()
			defer ln.of.mu.Unlock()
			if len(ln.calls) == 0 {
				ln.end(errLaneIdle)
			}
		})
	}
	ln.of.goOn()
}

var (
	errLaneIdle      = errors.New("it had no call")
	errLaneCancelled = errors.New("its call was cancelled")
)

// begin opens a lane for a call, and closes it when it is over.
func (ln *lane) begin(c *laneCall) {
	l := ln.of
	freePlace, ok := rpc.TakePlace(l.sink)
	if !ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.full = time.Now().Add(placeAgain)
		for _, c := range ln.calls { // else it was cancelled
			if l.closed {
				break
			}
			l.wait(c)
			last := len(l.waiting) - 1 // the call was the first
			l.waiting = slices.Insert(l.waiting[:last:last], 0, c)
		}
		clear(ln.calls)
		ln.end(nil)
		return
	}
	defer freePlace()
	ctx, stop := context.WithTimeout(l.ctx, handshakeTimeout)
	conn, err := l.begin(ctx, c.in, ln)
	if err == nil {
		ln.out.open(conn)
		err = ln.initialized(ctx, c.in)
	}
	stop()
	if err != nil {
		l.mu.Lock()
		ln.end(fmt.Errorf("another process of the server did not begin: %w", err))
		l.mu.Unlock()
	}
	<-ln.ended
	ln.lose()
	if ln.last != nil {
		_ = ln.out.Deliver(*ln.last) // the lane is closed anyway
	}
	ln.out.stop()
	if conn != nil {
		_ = conn.Close()
	}
}

// initialized brings a lane into the state of the main one, and sends the messages that have waited for it.
func (ln *lane) initialized(ctx context.Context, in backend.Inbound) error {
	l := ln.of
	id := l.ids.Next()
	l.mu.Lock()
	ln.began = key(id)
	params := l.initialize.Params
	l.mu.Unlock()
	if err := ln.out.Deliver(about(in, newRequest(id, protocol.MethodInitialize, params))); err != nil {
		return err
	}
	select {
	case m := <-ln.answer:
		if m.Error != nil {
			return errors.New(jsonrpc.String(jsonrpc.Field(m.Error, "message")))
		}
	case <-ctx.Done():
		return ctx.Err()
	case <-ln.ended:
		return ln.why
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln.over { // just now
		return ln.why
	}
	ln.out.later(about(in, newRequest(nil, protocol.MethodInitialized, nil)))
	if l.level != nil {
		ln.out.later(about(in, newRequest(l.ids.Next(), protocol.MethodSetLevel, l.level)))
	}
	ln.ready = true
	for _, c := range ln.calls {
		c.unsent = false
	}
	ln.out.later(ln.pending...)
	ln.pending = nil
	return nil
}

// end ends a lane beside the main one. lanes.mu is held.
func (ln *lane) end(why error) {
	if ln.over {
		return
	}
	l := ln.of
	ln.ends, ln.over, ln.why = true, true, why
	stopTimer(ln.idle)
	l.spares = slices.DeleteFunc(l.spares, func(one *lane) bool { return one == ln })
	for id, q := range l.asked {
		if q.lane == ln {
			delete(l.asked, id)
		}
	}
	for _, q := range ln.held {
		q.timer.Stop()
	}
	ln.held = nil
	close(ln.ended)
	l.goOn()
}

// lose answers the calls of a lane that is over.
func (ln *lane) lose() {
	l := ln.of
	l.mu.Lock()
	lost := ln.calls
	ln.calls = make(map[string]*laneCall)
	if l.closed {
		lost = nil // the session knows
	}
	l.mu.Unlock()
	for _, c := range lost {
		switch {
		case c.ghost:
			c.timer.Stop()
		case c.unsent:
			l.notTaken(c.in, ln.why)
		default:
			l.sink.Emit(c.in.Call, newError(c.in.ID, protocol.CodeOutcomeUnknown, "%s: %v", protocol.TextOutcomeUnknown, ln.why))
		}
	}
}

// cancelled passes a cancellation on to the lane that has the request.
func (l *lanes) cancelled(in backend.Inbound) error {
	id := key(jsonrpc.Field(in.Params, "requestId"))
	l.mu.Lock()
	if l.unqueue(id) != nil {
		l.goOn()
		l.mu.Unlock()
		return nil
	}
	for _, ln := range l.spares {
		c := ln.calls[id]
		if c == nil {
			continue
		}
		defer l.mu.Unlock()
		delete(ln.calls, id)
		if c.unsent {
			ln.pending = slices.DeleteFunc(ln.pending, func(p backend.Inbound) bool { return key(p.ID) == id })
			ln.free()
			return nil
		}
		// The server may go on with the call, and ask: so no other call gets the lane.
		ln.last = &in
		ln.end(errLaneCancelled)
		return nil
	}
	if c := l.main.calls[id]; c != nil && !c.ghost {
		c.ghost = true
		c.timer = time.AfterFunc(ghostFor, func() {
			l.mu.Lock()
			if l.main.calls[id] == c {
				delete(l.main.calls, id)
			}
			settled := l.main.settle()
			l.main.free()
			l.mu.Unlock()
			settled()
		})
	}
	l.mu.Unlock()
	return l.main.out.Deliver(in)
}

// answered passes on the client's response to a question.
func (l *lanes) answered(in backend.Inbound) error {
	l.mu.Lock()
	q, ok := l.asked[key(in.ID)]
	delete(l.asked, key(in.ID))
	l.mu.Unlock()
	if !ok {
		return l.main.out.Deliver(in)
	}
	known := key(in.ID)
	in.Raw = in.WithID(q.id)
	in.ID = q.id
	err := q.lane.out.Deliver(in)
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !q.lane.over { // so that it can be answered again
			l.asked[known] = q
		}
	}
	return err
}

// Close implements [backend.Conn].
func (l *lanes) Close() error {
	l.mu.Lock()
	l.closed = true
	stopTimer(l.look)
	for _, c := range l.waiting {
		stopTimer(c.timer)
	}
	for _, c := range l.main.calls {
		stopTimer(c.timer)
	}
	for _, q := range l.main.held {
		q.timer.Stop()
	}
	l.waiting = nil
	for _, ln := range slices.Clone(l.spares) {
		ln.end(errOver)
	}
	l.mu.Unlock()
	l.cancel()
	err := l.main.out.Close()
	l.work.Wait()
	return err
}

// takeUnsent returns the calls that no server has, and forgets them. l.mu is held.
func (l *lanes) takeUnsent() (all []backend.Inbound) {
	for _, c := range l.waiting {
		stopTimer(c.timer)
		all = append(all, c.in)
	}
	l.waiting = nil
	for _, ln := range l.spares {
		for id, c := range ln.calls {
			if c.unsent {
				delete(ln.calls, id)
				all = append(all, c.in)
			}
		}
		ln.pending = nil
	}
	return all
}

// A serverEnding is a [backend.Sink] that is told that its server has ended before it gets the answers to calls which that server has not begun:
// with each answer there is room for another call.
type serverEnding interface{ serverEnding(why error) }

// serverEnding implements [serverEnding]: no more calls get the lane. If it is the main one, those that wait are answered.
func (ln *lane) serverEnding(why error) {
	l := ln.of
	l.mu.Lock()
	ln.ends = true
	var unsent []backend.Inbound
	if ln == l.main && l.gone == nil {
		l.gone, unsent = overBecause(why), l.takeUnsent()
	}
	l.mu.Unlock()
	for _, in := range unsent {
		l.notTaken(in, why)
	}
}

// Closed implements [backend.Sink].
func (ln *lane) Closed(why error, reopen bool) {
	if ln == ln.of.main {
		ln.of.sink.Closed(why, reopen)
		return
	}
	ln.of.mu.Lock()
	defer ln.of.mu.Unlock()
	ln.end(why)
}

// EmitUnrelated implements [backend.Sink].
func (ln *lane) EmitUnrelated(m jsonrpc.Message) { ln.Emit(nil, m) }

// Emit implements [backend.Sink].
func (ln *lane) Emit(of backend.Call, m jsonrpc.Message) {
	if ln.isOver() {
		return
	}
	switch m.Kind {
	case jsonrpc.Response:
		ln.responded(of, m)
	case jsonrpc.Request:
		ln.question(of, m)
	default:
		ln.notified(of, m)
	}
}

func (ln *lane) isOver() bool {
	ln.of.mu.Lock()
	defer ln.of.mu.Unlock()
	return ln.over
}

// responded takes a response of the server.
func (ln *lane) responded(of backend.Call, m jsonrpc.Message) {
	l, id := ln.of, key(m.ID)
	l.mu.Lock()
	c := ln.calls[id]
	switch {
	case c != nil:
		delete(ln.calls, id)
		stopTimer(c.timer)
		if !c.asked && m.Error == nil { // an error may be our own
			l.habits.prove(c.name)
		}
	case ln == l.main && id == l.ping:
		l.ponged()
		l.mu.Unlock()
		return
	case ln != l.main:
		if id == ln.began {
			select {
			case ln.answer <- m:
			default:
			}
		}
		l.mu.Unlock()
		return // the response is to a request of ours
	case l.initialize.ID != nil && id == key(l.initialize.ID) && m.Result != nil:
		l.asks = mayBeAsked(jsonrpc.Field(l.initialize.Params, "capabilities"))
	}
	l.mu.Unlock()
	l.sink.Emit(of, m)
	if c == nil {
		return
	}
	l.mu.Lock()
	settled := ln.settle()
	ln.free()
	l.mu.Unlock()
	settled()
}

// mayBeAsked reports whether a client has capabilities to be asked for something.
func mayBeAsked(capabilities []byte) bool {
	return slices.ContainsFunc([]string{"elicitation", "sampling", "roots"}, func(name string) bool { return jsonrpc.Field(capabilities, name) != nil })
}

// question takes a request of the server. If the backend does not say which call it is for, it is for the only call of the lane.
func (ln *lane) question(of backend.Call, m jsonrpc.Message) {
	l := ln.of
	l.mu.Lock()
	if of != nil || !l.asks || !l.mayAsk(m) { // a question that the client cannot be asked is answered at once
		if c := ln.only(); of == nil && c != nil {
			of = c.in.Call
		}
		m = ln.known(m)
		l.mu.Unlock()
		l.sink.Emit(of, m)
		return
	}
	if len(ln.calls) > 0 {
		if !l.habits.known() {
			l.log.Info("the server asks its callers, and does not say in which call: its calls get a conversation each", "method", m.Method)
		}
		l.habits.ask()
		l.goOn()
	}
	if len(ln.calls) > 1 {
		q := &heldQuestion{m: m, until: time.Now().Add(heldFor)}
		q.timer = time.AfterFunc(heldFor, func() { ln.giveUp(q) })
		ln.held = append(ln.held, q)
		l.mu.Unlock()
		return
	}
	c := ln.only()
	if c == nil {
		l.mu.Unlock()
		ln.refuse(m, "no one call in flight that this belongs to, and revision "+protocol.V20260728+" asks clients nothing else")
		return
	}
	c.asked = true
	m = ln.known(m)
	l.mu.Unlock()
	l.sink.Emit(c.in.Call, m)
}

// mayAsk reports whether the client of the conversation can be asked a question. l.mu is held.
func (l *lanes) mayAsk(m jsonrpc.Message) bool {
	_, refusal := protocol.MayAsk(jsonrpc.Field(l.initialize.Params, "capabilities"), m.Method, m.Params)
	return protocol.AsksClient(m.Method) && refusal == nil
}

// only returns the only call of the lane, or nil. lanes.mu is held.
func (ln *lane) only() *laneCall {
	if len(ln.calls) != 1 {
		return nil
	}
	for _, c := range ln.calls {
		if !c.ghost {
			return c
		}
	}
	return nil
}

// known returns a request of the server under an id that no other lane uses. lanes.mu is held.
func (ln *lane) known(m jsonrpc.Message) jsonrpc.Message {
	l := ln.of
	if ln == l.main {
		return m
	}
	id := l.ids.Next()
	if l.asked == nil {
		l.asked = make(map[string]laneQuestion)
	}
	l.asked[key(id)] = laneQuestion{ln, m.ID}
	m.Raw = m.WithID(id)
	m.ID = id
	return m
}

// settle returns a function that passes on or refuses the questions that wait, if there is at most one call that they may
// be for. lanes.mu is held; the function is called without it.
func (ln *lane) settle() func() {
	if len(ln.held) == 0 || len(ln.calls) > 1 {
		return func() {}
	}
	held, c := ln.held, ln.only()
	ln.held = nil
	for _, q := range held {
		q.timer.Stop()
	}
	if c == nil {
		return func() {
			for _, q := range held {
				ln.refuse(q.m, "the call that it belongs to is over")
			}
		}
	}
	c.asked = true
	return func() {
		for _, q := range held {
			ln.of.sink.Emit(c.in.Call, q.m)
		}
	}
}

// giveUp refuses a question that has waited too long. As a rule the refusal ends its call: so the other questions wait again.
func (ln *lane) giveUp(q *heldQuestion) {
	l := ln.of
	l.mu.Lock()
	at := slices.Index(ln.held, q)
	if now := time.Now(); at >= 0 && now.Before(q.until) {
		at = -1
	} else if at >= 0 {
		ln.held = slices.Delete(ln.held, at, at+1)
		for _, other := range ln.held {
			other.until = now.Add(heldFor)
			other.timer.Reset(heldFor)
		}
	}
	n := len(ln.calls)
	l.mu.Unlock()
	if at < 0 {
		return
	}
	l.log.Warn("question of the server refused: nobody knows which call it is for", "method", q.m.Method, "calls", n)
	ln.refuse(q.m, fmt.Sprintf("no one call in flight that this belongs to: %d may be meant. From now on calls of this server have a conversation each: the call can be made again", n))
}

// refuse answers a request of the server with an error.
func (ln *lane) refuse(m jsonrpc.Message, why string) {
	ln.of.log.Debug("request of the server refused", "method", m.Method, "error", why)
	ln.out.later(backend.Inbound{Message: newError(m.ID, jsonrpc.CodeInvalidRequest, "%s: %s", m.Method, why)})
}

// notified takes a notification of the server. It drops notifications about lists and resources of lanes beside
// the main one: no client has asked for them there.
func (ln *lane) notified(of backend.Call, m jsonrpc.Message) {
	l := ln.of
	l.mu.Lock()
	c := ln.only()
	switch m.Method {
	case protocol.MethodCancelled:
		id := jsonrpc.Field(m.Params, "requestId")
		if at := slices.IndexFunc(ln.held, func(q *heldQuestion) bool { return key(q.m.ID) == key(id) }); at >= 0 {
			ln.held[at].timer.Stop()
			ln.held = slices.Delete(ln.held, at, at+1)
			l.mu.Unlock()
			return
		}
		for known, q := range l.asked {
			if q.lane == ln && key(q.id) == key(id) {
				delete(l.asked, known)
				params, _ := jsonrpc.Set(m.Params, []byte(known), "requestId")
				m = newRequest(nil, m.Method, params)
			}
		}
	case protocol.MethodToolsListChanged, protocol.MethodPromptsListChanged, protocol.MethodResourcesListChanged, protocol.MethodResourceUpdated:
		if ln != l.main {
			l.mu.Unlock()
			return
		}
	case protocol.MethodProgress:
	default:
		if of == nil && c != nil && (ln != l.main || len(l.spares) > 0) {
			of = c.in.Call
		}
		if of == nil && ln != l.main {
			l.mu.Unlock()
			return
		}
	}
	l.mu.Unlock()
	l.sink.Emit(of, m)
}
