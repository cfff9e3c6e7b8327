package session

import (
	"context"
	"errors"
	"hash/maphash"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/again"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows attaches a request to a stranded call that it makes again. The request begins a call of its own, which no
// backend gets: what the first call says is said in it, under its progress token and its id. So it has a stream, is resumed,
// cancelled, and passes to an heir, like any other, over every transport. See docs/decisions/0053-calls-that-come-again.md.

// strandsWithin is how long a request waits that is like one in flight whose client seems to be connected: its network may tell of the
// end of that connection later than the client, which has made the request again.
const strandsWithin = 50 * time.Millisecond

// mostPause is how long it waits at the most before it looks again.
const mostPause = 10 * time.Millisecond

// settlesWithin is how long it waits where that client is known to have left.
const settlesWithin = 2 * time.Second

// wholeWithin is how long after its connection has broken a modern call is taken for one that its client's HTTP makes again: the default of
// the time that such a call is given.
const wholeWithin = 30 * time.Second

// mostCompared bounds how many requests a new one is compared with. Where there are more in flight, none is waited for.
const mostCompared = 64

// An attachment is a call that says what another one says.
type attachment struct {
	c     *Call
	rq    *inflight
	of    *stranded
	call  *Call     // the other one; nil if it has ended
	id    []byte    // of the request
	came  time.Time // when it came
	safe  bool      // the tool may run twice: that the model asks again is no reason
	twins []twin
	stop  context.CancelFunc
}

// compare gives the call the likeness of its request, and finds another one in flight that is like it. s.mu is held.
func (c *Call) compare(rq *inflight, m *jsonrpc.Message) {
	s := c.s
	if s.single || !s.m.attaches() || c.isHeir() || c.record != nil && c.record.watched != nil || c.isSafeToRepeat(m) {
		return
	}
	id := c.like.Sum // of the one by which a modern client knows it
	if id == 0 {
		id = idSum(m.ID)
	}
	c.like = again.LikenessOf(m, rq.sum+id, s.m.opts.CallIDs)
	if c.like.IsZero() {
		return
	}
	if len(s.inFlight) <= mostCompared {
		for _, other := range s.inFlight {
			if other.call != c {
				c.meets(twin{&other.call.like, other.call.conn, other.call})
			}
		}
	}
	s.m.answered.meet(c)
	c.mayFly()
	c.undecided.Store(true)
}

// A twin is another call that is like one.
type twin struct {
	like *again.Likeness
	conn Connection // nil: it cannot be asked
	call *Call      // nil: it was answered
}

// isUnsettled reports whether the client of the other call has left, and may turn out to have lost it.
func (t twin) isUnsettled() bool {
	conn := t.conn
	if t.call != nil {
		switch conn = t.call.client(); {
		case t.call.late.Load(), t.call.s.m.stranded.isTaken(t.call):
			return false
		case t.call.undecided.Load() && t.call.s.m.stranded.knows(t.call.s, t.call.Number()):
			return true
		}
	}
	return conn != nil && conn.Unsettled()
}

// meets has the call wait for another one that is like it, and whose client may turn out to have lost it.
func (c *Call) meets(other twin) {
	named := other.like.IsNamed(&c.like)
	asked := other.like.Asked == c.like.Asked && (c.s.m.opts.AttachWithin > 0 || other.like.Sum == c.like.Sum) // the latter: whole
	switch {
	case !named && !asked:
	case named && len(c.twins) > 0: // it is looked at first
		c.twins = slices.Insert(c.twins, 0, other)
	default:
		c.twins = append(c.twins, other)
	}
}

// An answeredRing has what was answered last on this node: the network may tell later that a client has left without its answer. Its lock is
// taken last. The zero value is ready to use.
type answeredRing struct {
	mu   sync.Mutex
	all  [mostCompared]answered
	next int
}

// An answered call.
type answered struct {
	s    *Session
	like again.Likeness
	conn Connection
	at   time.Time
}

// add adds a call that leaves the record.
func (t *answeredRing) add(c *Call) {
	conn := c.client()
	if c.like.IsZero() || conn == nil || c.late.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[t.next] = answered{c.s, c.like, conn, time.Now()}
	t.next = (t.next + 1) % len(t.all)
}

// drop forgets a call that was cancelled: its client wants no answer, and an equal request is a new one.
func (t *answeredRing) drop(c *Call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.all {
		if b := &t.all[i]; b.s == c.s && b.like == c.like && b.conn == c.client() {
			*b = answered{}
		}
	}
}

// mostRecent bounds how many of them one call is compared with.
const mostRecent = 8

// meet notes that a call is like some that were answered, and came on another connection: the last ones.
func (t *answeredRing) meet(c *Call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, n := len(t.all), 0; i > 0 && n < mostRecent; i-- {
		b := &t.all[(t.next+i-1)%len(t.all)]
		if b.s == c.s && (b.like.Asked == c.like.Asked || b.like.IsNamed(&c.like)) && b.conn != c.conn && time.Since(b.at) <= resetWithin {
			like := b.like
			c.meets(twin{&like, b.conn, nil})
			n++
		}
	}
}

// idSum stands for an id of a request, in a likeness.
func idSum(id []byte) uint64 { return maphash.Bytes(sums, jsonrpc.Key(id)) * 31 }

// isSafeToRepeat reports whether a call is known to be of a tool that may run twice, and is held in memory alone. s.mu is held.
func (c *Call) isSafeToRepeat(m *jsonrpc.Message) bool {
	s := c.s
	if s.modern != "" || !c.delivery.expected {
		return false
	}
	name := jsonrpc.Field(m.Params, "name")
	return len(name) > 2 && s.tools.safe[string(name[1:len(name)-1])]
}

// mayRepeat reports whether a tool is known to be safe to call again.
func (c *Call) mayRepeat(tool string) (safe bool) {
	locked(c.s, func() { safe = c.s.tools.safe[tool] })
	return safe || c.s.m.safeTool(c.s.Server(), tool)
}

// attach has a request answered by what another call says or has said, if it is that one's made again. It is false if it is to be
// delivered. failed is as in [Call.deliver].
func (c *Call) attach(ctx context.Context, m *jsonrpc.Message, header http.Header, failed func(error) *jsonrpc.Error) bool {
	if c.like.IsZero() {
		return false
	}
	s := c.s
	a := &attachment{c: c, id: m.ID, twins: c.twins, came: time.Now(), safe: c.mayRepeat(toolOf(m))}
	c.twins = nil // which it would keep in memory
	if a.isLate() {
		return true
	}
	c.takeOff(a.safe)
	alike := len(a.twins) > 0
	if !slices.ContainsFunc(a.twins, func(other twin) bool { return !a.isAside(other) }) {
		a.twins = nil
	}
	found := a.find() // also if its twin was settled, and stranded, just now
	far := !found && a.isFar()
	early := !found && !far && len(a.twins) == 0 && a.isEarly()
	if !found && !far && len(a.twins) == 0 && !early {
		ended := alike && a.ends() // the one that has taken the call may be this request made again
		c.undecided.Store(false)
		return ended
	}
	ctx, a.stop = context.WithCancel(context.WithoutCancel(ctx))
	taken := false
	locked(s, func() {
		rq := s.inFlight[string(requestKey(c.guestOf(), m.ID))]
		if taken = rq != nil && rq.call == c && s.m.startWork(); taken {
			a.rq, rq.attached, rq.ours = rq, a, true
		}
	})
	if !taken {
		a.stop()
		return true // it was cancelled, or all calls end now
	}
	msg := *m
	if found {
		c.undecided.Store(false)
	}
	go func() {
		defer s.m.work.Done()
		defer a.stop()
		if early {
			a.awaitFar(ctx)
		}
		alone := !found && (len(a.twins) == 0 || !a.await(ctx))
		if c.late.Load() {
			return
		}
		a.twins = nil
		if alone && (far || a.isFar()) && a.borrow(ctx, &msg) {
			return
		}
		c.undecided.Store(false)
		if alone {
			locked(s, func() { a.rq.attached, a.rq.ours = nil, false })
			c.deliverOne(context.WithoutCancel(ctx), msg, header, failed)
			return
		}
		a.begins()
		a.follow(ctx, jsonrpc.Field(msg.Params, "_meta", "progressToken"))
	}()
	return true
}

// isLate ends the request if its client has left, and there is another call that is like it. Then that client has made its request again, or
// will: if this one began, too, the tool would run twice.
func (a *attachment) isLate() bool {
	c := a.c
	if !c.undecided.Load() || len(a.twins) == 0 && c.s.m.stranded.n.Load() == 0 { // the first: it is that of a node that was lost
		return false
	}
	if len(a.twins) == 0 {
		keys := keysIn(&c.like, c.s)
		if !c.s.m.stranded.has(&keys, c) {
			return false
		}
	}
	return a.ends()
}

// isEarly reports whether the client of the request has left before it begins, and may have made it again at another node, from which nothing was
// heard of that yet.
func (a *attachment) isEarly() bool {
	c := a.c
	return c.flight != nil && !a.safe && c.s.modern != "" && c.conn != nil && !c.conn.IsFar() && !c.s.m.elsewhere.Alone() && a.hasLeft(nil)
}

// awaitFar waits for another node to tell of a call like the request.
func (a *attachment) awaitFar(ctx context.Context) {
	tick := time.NewTicker(mostPause)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < strandsWithin && !a.isFar(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// whenLeft calls do, once, when the client of the request has left. Until stop, which reports whether it did.
func (a *attachment) whenLeft(do func()) (stop func() (did bool)) {
	var left atomic.Bool
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(mostPause)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-over:
				return
			}
			if a.hasLeft(a.c.back.Load()) {
				left.Store(true)
				do()
				return
			}
		}
	}()
	return func() bool {
		close(over)
		<-ended
		return left.Load()
	}
}

// ends ends the request, which has not begun, if its client has left, and reports whether it has.
func (a *attachment) ends() bool {
	back := a.c.back.Load()
	return a.hasLeft(back) && a.drop(back)
}

// hasLeft reports whether the client of the request has left, as far as is known. back is the connection on which it has come back for it. A client
// that has a task, waits for a webhook, or comes back with a key or a token, need not stay: it makes no other request in place of this one.
func (a *attachment) hasLeft(back *Connection) bool {
	c := a.c
	elsewhere := false
	locked(c.s, func() {
		r := c.record
		elsewhere = r != nil && (r.untold != nil || r.watched != nil || r.resume != nil || r.key.IsClients())
	})
	if elsewhere {
		return false
	}
	if back != nil {
		return *back != nil && (*back).HasLeft()
	}
	return c.conn != nil && c.conn.HasLeft() || c.s.m.stranded.knows(c.s, c.Number())
}

// drop ends the request, which does not begin. It reports whether it has: not so if its client has come back since, on another connection than back.
func (a *attachment) drop(back *Connection) bool {
	c := a.c
	s, m := c.s, c.s.m
	c.mu.Lock()
	if c.back.Load() != back {
		c.mu.Unlock()
		return false
	}
	c.late.Store(true) // from now on it is not stranded
	c.mu.Unlock()
	m.dropLate(s, c.Number())
	var got *inflight
	locked(s, func() {
		if got = s.takeRequest(a.id, c); got != nil {
			got.ours = true
		}
	})
	if got != nil {
		c.respond(got, jsonrpc.AppendError(nil, a.id, errLate))
		s.requestEnded(got)
	}
	return true
}

// errLate ends a request whose client had left before it began. Nobody waits for that.
var errLate = jsonrpc.Errorf(jsonrpc.CodeServer, "not delivered: its client had left before it began, and there is a call like it; make the request again")

// isAside reports whether the request need not wait for a twin: that was answered, or is another client's in a carrier, and its connection is
// settled. So it was read, or is stranded by now, or its client is there as far as is known.
func (a *attachment) isAside(other twin) bool {
	c := a.c
	if other.call != nil && (c.s.modern == "" || other.like.IsNamed(&c.like) || c.s.m.stranded.isLent(other.call)) {
		return false
	}
	return !other.isUnsettled()
}

// begins notes that the request is as good as delivered: it may pass to an heir, and the session's next owner does not make it again.
func (a *attachment) begins() {
	s := a.c.s
	locked(s, func() {
		if s.inFlight[string(requestKey(a.c.guestOf(), a.id))] != a.rq {
			return // it has ended
		}
		a.rq.sent = true
		if k := a.c.recovery; k != nil {
			a.c.mu.Lock()
			k.become(recoveryDelivered)
			a.c.mu.Unlock()
		}
	})
}

// find takes the stranded call that the request makes again.
func (a *attachment) find() bool {
	c := a.c
	m := c.s.m
	if m.stranded.n.Load() == 0 { // as a rule
		return false
	}
	of, call, reason := m.takeStranded(keysIn(&c.like, c.s), a.safe, a.came, c)
	if of == nil {
		return false
	}
	a.of, a.call = of, call
	c.tellAttached(reason, of.s.Name())
	return true
}

// takeStranded takes a stranded call, which is not known as such any more; nil: there is none. The call is nil if it has ended. safe says
// that the tool may run twice, and came when the request came. by is the call that makes it again, or nil.
func (m *Manager) takeStranded(keys again.Keys, safe bool, came time.Time, by *Call) (*stranded, *Call, again.Reason) {
	now := time.Now()
	of, reason := m.stranded.take(keys, func(of *stranded, reason again.Reason) bool {
		switch {
		case of.number == 0:
		case by != nil && of.s == by.s && of.number == by.Number(), of.s.isClosed(), of.s.streams.IsBlind(of.number):
			return false
		}
		if !of.told.IsZero() && of.told.Before(came) {
			return false
		}
		age := now.Sub(of.since)
		var good bool
		switch reason {
		case again.Whole:
			good = of.s.modern == "" || age <= max(m.opts.AttachWithin, wholeWithin) // ids of two runs of a program may be the same
		case again.Named:
			good = !of.doubtful
		default:
			good = !of.doubtful && !safe && age <= m.opts.AttachWithin
		}
		if !good || of.number == 0 {
			return good
		}
		other := of.s.CallAt(of.number)
		switch {
		case other == nil:
			return true
		case other.undecided.Load(), other.late.Load(): // it may be found to be another call itself, or not begin
			return false
		case by != nil:
			other.taken = by.follows(other) || other.taken
			return by.following == other
		}
		other.lent = true
		return true
	})
	if of == nil {
		return nil, nil, 0
	}
	m.tellTaken(of)
	if of.number == 0 {
		return of, nil, reason
	}
	call := of.s.CallAt(of.number)
	of.s.streams.Found(of.number)
	return of, call, reason
}

// follows has the call wait for what another one says. It is false if that one waits for this one, by itself or through others: then
// neither would end. m.stranded.mu is held.
func (c *Call) follows(other *Call) bool {
	for o := other; o != nil; o = o.following {
		if o == c {
			return false
		}
	}
	c.following = other
	return true
}

// tellAttached says in the log and to observers that the call has been attached, or was attached to by its own request, to one of a session.
func (c *Call) tellAttached(reason again.Reason, to string) {
	c.s.m.logger.Info("a request came again after its connection broke: its client gets the result of the first one",
		"reason", reason.String(), "session", c.s.Name(), "first", to, "method", c.method)
	if c.watch != nil {
		c.watch.Happened(observe.Attached{Reason: reason.String()})
	}
}

// await waits for a call like this one to be stranded. One that the host gives the same id of its own need not be: it is one call.
func (a *attachment) await(ctx context.Context) bool {
	c := a.c
	if a.isTwin() {
		return true
	}
	// In a carrier there are many clients that know nothing of each other. They do not wait, but for what is not settled.
	patience := time.Duration(0)
	if slices.ContainsFunc(a.twins, func(other twin) bool {
		return other.call != nil && (c.s.modern == "" || c.s.m.stranded.isLent(other.call))
	}) {
		patience = strandsWithin
	}
	pause := time.Millisecond
	for began := time.Now(); time.Since(began) < settlesWithin; pause = min(2*pause, mostPause) {
		if time.Since(began) >= patience && !a.isUnsettled() {
			// It may have been settled, and the call stranded, since it was looked for.
			found := a.find()
			if !found {
				a.ends() // the one that has taken the call may be this request made again
			}
			return found
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if a.ends() {
			return false
		}
		if a.isTwin() || a.find() {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
	}
	return false
}

// isUnsettled reports whether the client of a twin has left, and may turn out to have lost it.
func (a *attachment) isUnsettled() bool {
	return slices.ContainsFunc(a.twins, twin.isUnsettled)
}

// isTwin has the request be one with its twin, if that is in flight and the host gives both the same id.
func (a *attachment) isTwin() bool {
	c := a.c
	if len(a.twins) == 0 {
		return false
	}
	call := a.twins[0].call
	if call == nil || !a.twins[0].like.IsNamed(&c.like) || call.isOver() {
		return false
	}
	call.Promote()
	number := call.Number()
	if number == 0 || call.isOver() {
		return false
	}
	m := c.s.m
	m.stranded.mu.Lock()
	good := c.follows(call)
	m.stranded.mu.Unlock()
	if !good {
		return false
	}
	a.of, a.call = &stranded{s: c.s, number: number}, call
	c.tellAttached(again.Named, c.s.Name())
	return true
}

// follow says what the other call says, to its end. token is the progress token of the request, or nil.
func (a *attachment) follow(ctx context.Context, token []byte) {
	of := a.of
	defer a.left()
	if a.call != nil {
		a.call.followers.Add(1)
		defer a.call.followers.Add(-1)
		a.call.Returned()
	}
	if of.number == 0 {
		a.end(of.answer)
		return
	}
	over, err := of.follow(ctx, a.call, func(e *stream.Entry) bool { return a.say(e, token) })
	switch {
	case over:
	case err != nil:
		a.end(nil)
	default:
		a.given()
	}
}

// left notes that the request does not wait for the other call any more.
func (a *attachment) left() {
	m := a.c.s.m
	m.stranded.mu.Lock()
	defer m.stranded.mu.Unlock()
	a.c.following = nil // which it would keep in memory
}

// follow calls say for what a stranded call says, until that reports that it is over, or ctx ends. The call is nil if it had ended. The
// error says that its end is not known.
func (of *stranded) follow(ctx context.Context, call *Call, say func(*stream.Entry) (over bool)) (over bool, err error) {
	number := stream.ID{Session: of.s.key, Number: of.number}
	ready := make(chan struct{}, 1)
	unwatch, err := of.s.m.store.Watch(number, ready)
	if err != nil {
		return false, err
	}
	defer unwatch()
	var by reading.Call
	if call != nil {
		by = writer{call}
	}
	r := of.s.streams.Peek(ctx, of.number, by)
	buf := make([]stream.Entry, 0, 16)
	for ctx.Err() == nil {
		entries, err := r.Next(ctx, buf[:0])
		for i := range entries {
			if say(&entries[i]) {
				return true, nil
			}
		}
		switch {
		case len(entries) > 0:
			continue
		case err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF):
			of.s.m.logger.Warn("what an attached call has said cannot be read", "session", of.s.Name(), "error", err)
			return false, err
		case err != nil && ctx.Err() == nil:
			return false, err
		}
		select {
		case <-ready:
		case <-ctx.Done():
		}
	}
	return false, nil
}

// say says one entry, and reports whether that is the last.
func (a *attachment) say(e *stream.Entry, token []byte) (over bool) {
	data := slices.Clone(e.Data)
	method, id := jsonrpc.Field(data, "method"), jsonrpc.Field(data, "id")
	switch {
	case len(data) == 0: // it was cancelled
	case method == nil:
		a.end(data)
		return true
	case id != nil:
		a.ask(data, id)
	case jsonrpc.String(method) == protocol.MethodResumePolicy: // of the other request
	case jsonrpc.String(method) != protocol.MethodProgress:
		a.target().emit(data, false)
	case token != nil:
		data, _ = jsonrpc.Set(data, token, "params", "progressToken")
		a.target().emit(data, false)
	}
	if e.Last {
		a.end(nil)
	}
	return e.Last
}

// target returns the call that says it: the request's own, or its heir.
func (a *attachment) target() (c *Call) {
	locked(a.c.s, func() { c = a.rq.call })
	return c
}

// ask has the client be asked what the backend asks in the other call, if it can answer: in the session in which that is asked.
func (a *attachment) ask(data, id []byte) {
	s := a.of.s
	if s != a.c.s || !s.Asks(id) {
		return
	}
	to := a.target()
	number, _ := s.parseAskedID(id)
	var from *Call
	ok := false
	locked(s, func() {
		var r serverRequest
		if r, ok = s.asked.pending[number]; !ok {
			return
		}
		from = r.call
		r.call = to
		s.asked.pending[number] = r
	})
	if !ok {
		return
	}
	if from != to {
		from.clientAnswered()
	}
	to.emit(data, true)
}

// end answers the request with the response of the other call; nil: nobody knows it.
func (a *attachment) end(response []byte) {
	s, id := a.c.s, []byte(a.rq.id)
	data, ok := response, false
	if response != nil {
		data, ok = jsonrpc.Set(response, id, "id")
	}
	if !ok {
		data = jsonrpc.AppendError(nil, id, outcomeUnknown("this call was made again after its connection had broken, and what became of it is not kept"))
	}
	var got *inflight
	locked(s, func() { got = s.takeRequest(id, a.c) })
	if got != nil {
		got.call.respond(got, data)
		s.requestEnded(got)
	}
}

// textWithdrawn is why a call ends that a client does not want any more which had made its request again.
const textWithdrawn = "its client cancelled the request that was made again"

// given is called when the request was taken off the record before the other call has ended. If its client wants no answer any more
// that one is cancelled, too, unless another client waits for it.
func (a *attachment) given() {
	c := a.call
	if c == nil || a.c.s.isClosed() || c.followers.Load() > 1 || c.s.streams.IsRead(a.of.number) {
		return
	}
	c.Withdraw(textWithdrawn)
}
