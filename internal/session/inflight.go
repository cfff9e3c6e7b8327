package session

import (
	"bytes"
	"slices"
	"sync"

	"holdfast/backend"
	"holdfast/internal/again"
	"holdfast/internal/likeness"
	"holdfast/internal/limit"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// requests are the requests in flight in a session, by [requestKey]. The lock guards the fields of each, too, unless they say otherwise. A
// request is added, or passed to another call, only with Session.mu held, too.
type requests struct {
	mu  sync.Mutex
	all map[string]*inflight
}

// locked calls do with the lock held.
func (q *requests) locked(do func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	do()
}

// each calls yield for each request. yield must not take or add requests.
func (q *requests) each(yield func(*inflight) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, rq := range q.all {
		if !yield(rq) {
			return
		}
	}
}

// len returns the number of requests in flight.
func (q *requests) len() (n int) {
	q.locked(func() { n = len(q.all) })
	return n
}

// at returns the request with the id that came from the session guest ("": this one), or nil.
func (q *requests) at(guest stream.SessionKey, id []byte) *inflight {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all[string(requestKey(guest, id))]
}

// with calls do for the call's request with the id, and returns the request; nil: it is not in flight, or has passed to an heir.
func (q *requests) with(c *Call, id []byte, do func(*inflight)) *inflight {
	q.mu.Lock()
	defer q.mu.Unlock()
	rq := q.of(c, id)
	if rq == nil || rq.call != c {
		return nil
	}
	do(rq)
	return rq
}

// of returns the request with the id that the call (nil: any call) or its heir has, or nil. q.mu is held.
func (q *requests) of(c *Call, id []byte) *inflight {
	rq := q.all[string(requestKey(c.guestOf(), id))]
	if rq == nil || c != nil && rq.call != c && (!rq.call.isHeir() || rq.call.record.inherits.of != c) {
		return nil
	}
	return rq
}

// take removes and returns the request with the id that the call (nil: any call) or its heir has; nil: it is not in flight.
func (q *requests) take(id []byte, c *Call) *inflight {
	q.mu.Lock()
	defer q.mu.Unlock()
	rq := q.of(c, id)
	if rq == nil {
		return nil
	}
	delete(q.all, string(requestKey(c.guestOf(), id)))
	rq.lands()
	return rq
}

// takeIf removes and returns the requests for which is returns true.
func (q *requests) takeIf(is func(*inflight) bool) (taken []*inflight) {
	q.locked(func() { taken = q.takeIfLocked(is) })
	return taken
}

// takeIfLocked is takeIf with q.mu held.
func (q *requests) takeIfLocked(is func(*inflight) bool) (taken []*inflight) {
	for key, rq := range q.all {
		if is(rq) {
			taken = append(taken, rq)
			delete(q.all, key)
			rq.lands()
		}
	}
	return taken
}

// takeCall removes and returns all requests of a call.
func (q *requests) takeCall(c *Call) []*inflight {
	return q.takeIf(func(rq *inflight) bool { return rq.call == c })
}

// deliver notes that a request is about to be handed to the backend, and returns it; nil: in is no request of a call. It is not ok if the request has ended meanwhile.
func (q *requests) deliver(in *backend.Inbound) (rq *inflight, ok bool) {
	c := callOf(in)
	if c == nil {
		return nil, true
	}
	rq = q.with(c, in.ID, (*inflight).delivered)
	if rq != nil && len(in.Raw) > largeBody {
		in.ID = bytes.Clone(in.ID) // a copy: a backend keeps the id until it answers, and must not hold the body
	}
	return rq, rq != nil
}

// answer answers a request of the call, if it is still unanswered.
func (q *requests) answer(id []byte, c *Call, data []byte) {
	if rq := q.take(id, c); rq != nil {
		rq.answer(data)
	}
}

// fail answers a request of the call with an error of ours, if it is still unanswered.
func (q *requests) fail(id []byte, c *Call, e *jsonrpc.Error) {
	if rq := q.take(id, c); rq != nil {
		rq.fail(e)
	}
}

// withToken returns a call with a token for which is returns true, or nil. If several calls have one it returns any of them, or, if one is set, nil.
func (q *requests) withToken(one bool, is func(token string) bool) (found *Call) {
	var looked *Call // the call of a batch has many requests, and the tokens of all
	for rq := range q.each {
		if rq.call == looked {
			continue
		}
		looked = rq.call
		switch {
		case !slices.ContainsFunc(looked.tokens, is):
		case !one:
			return looked
		case found != nil && found != looked:
			return nil
		default:
			found = looked
		}
	}
	return found
}

// An inflight is one request of a call, from the time it is taken until it is answered or given up. The
// goroutine that removes it from [requests] ends it.
type inflight struct {
	call  *Call
	id    string      // raw, as the client spelled it
	sent  bool        // the backend has it, or may have it
	ours  bool        // no backend gets it: one of our tools answers it, or another call does
	adds  bool        // our tools are added to the response
	acked bool        // of a subscriptions/listen: it was acknowledged; guarded by Session.mu
	sum   uint64      // of its method and params: see [again.SumOf]
	size  int32       // bytes that are counted as on their way until it is answered
	list  int32       // of a tools/list from the beginning of the list: the [tools.List.Version] at that time; 0: it is another request
	slot  *limit.Slot // its part of the limits on calls in flight; nil: it has none
	stop  func()      // ends the work for it on another goroutine; nil: there is none
	late  *Late       // for the case that it takes long; nil: nothing is done then
	// listen is a subscriptions/listen of a carrier, as the backend got it, to be made again; nil for other requests. Guarded by Session.mu.
	listen *backend.Inbound
}

// Again reports whether m is the call's only request, which is in flight, made again (same), and whether the client has lost the connection
// of the first (lost). conn is the connection of m; nil: it cannot be asked. If the client of conn has left, m is not the same: it came late,
// and the client may have made it again since.
func (c *Call) Again(m *jsonrpc.Message, conn Connection) (same, lost bool) {
	c.mu.Lock()
	same = len(c.pending) == 1 && c.pending[0].sum == again.SumOf(m) && string(jsonrpc.Key([]byte(c.pending[0].id))) == string(jsonrpc.Key(m.ID))
	c.mu.Unlock()
	same = same && (conn == nil || !conn.HasLeft())
	if lost = c.s.streams.IsLost(c.Number()); same && lost {
		if !c.standing.CameBack(conn) {
			return true, false // the call is about to end
		}
		flightCall{c}.Attached(likeness.Whole, c.s.Name())
	}
	return same, lost
}

// delivered notes that the backend has the request, or may have it: from now on the session's next owner could only make it again.
func (rq *inflight) delivered() {
	rq.sent = true
	if k := rq.call.recovery; k != nil {
		rq.call.mu.Lock()
		k.become(recoveryDelivered)
		rq.call.mu.Unlock()
	}
}

// lands gives back the limits and memory that a request has taken, and stops the work for it, as it is removed from [requests]. q.mu is held.
func (rq *inflight) lands() {
	rq.slot.Release()
	if rq.stop != nil {
		rq.stop()
	}
	s := rq.call.s
	s.m.flights.Ended(flightCall{rq.call})
	s.tenant.held.Add(-int64(rq.size))
	s.m.opts.Flight.Add(-int64(rq.size))
}

// answer answers a request that was removed from [requests].
func (rq *inflight) answer(data []byte) {
	rq.call.respond(rq, data)
	rq.ended()
}

// fail is answer with an error of ours.
func (rq *inflight) fail(e *jsonrpc.Error) { rq.answer(jsonrpc.AppendError(nil, []byte(rq.id), e)) }

// cancel ends a request that was removed from [requests], as its client wants no response.
func (rq *inflight) cancel() {
	rq.call.cancel(rq)
	rq.ended()
}

// ended is called for each request that was removed from [requests], after its call was told.
func (rq *inflight) ended() {
	s := rq.call.s
	if rq.call.IsOver() && (s.single || rq.call.client.isOpen()) { // in a single session the standalone stream counts the open questions
		s.asked.refuseOf(rq.call)
	}
	rq.call.untold().Flush()
	s.m.dismiss(s, 1)
	if !rq.sent && s.use.calls.Load() == 0 {
		s.m.processes.Break(processOwner{s})
	}
}

// failAll answers requests that were removed from [requests] with an error of ours.
func failAll(lost []*inflight, e *jsonrpc.Error) {
	for _, rq := range lost {
		rq.fail(e)
	}
}

// addRequests adds the requests among msgs to those in flight, each with a slot of the pass, or, on an error, none. s.mu is held.
func (s *Session) addRequests(c *Call, msgs []jsonrpc.Message, pass *limit.Pass) error {
	if s.isClosed() || s.use.lost.Load() {
		return s.goneError()
	}
	restored := s.taken && s.state() == sessionOpening // they have begun, and are not refused
	if err := s.tenant.checkMemory(s.m.opts.Flight, msgs); err != nil && !restored {
		return err
	}
	q := &s.requests
	q.mu.Lock()
	defer q.mu.Unlock()
	refuse := func(err error) error {
		q.takeIfLocked(func(rq *inflight) bool { return rq.call == c })
		return err
	}
	for m := range protocol.Requests(msgs) {
		key := requestKey(c.guestOf(), m.ID)
		token := protocol.ProgressToken(m.Params)
		if err := checkBounds(m, token); err != nil {
			return refuse(err)
		}
		if q.all[string(key)] != nil {
			return refuse(ErrDuplicate)
		}
		if s.waiting.isCancelled(string(key)) {
			return refuse(ErrCancelled)
		}
		if q.all == nil {
			q.all = make(map[string]*inflight)
		}
		rq := &inflight{call: c, id: string(m.ID), sum: again.SumOf(m), size: int32(len(m.Raw))} // a copy: the call may live for long, and must not hold the body
		if pass != nil && s.m.Gate.IsLimited(m) {
			rq.slot = pass.Next()
		}
		s.tenant.held.Add(int64(rq.size))
		s.m.opts.Flight.Add(int64(rq.size))
		if string(key) == rq.id {
			q.all[rq.id] = rq
		} else {
			q.all[string(key)] = rq
		}
		c.pending = append(c.pending, rq)
		if len(msgs) == 1 {
			c.compare(rq, m)
		}
		if c.method == "" {
			c.method = m.Method
		}
		// Each client of a carrier may be shown other tools.
		if m.Method == protocol.MethodToolsList && s.modern == "" && jsonrpc.Field(m.Params, "cursor") == nil {
			rq.list = s.Tools.Version()
		}
		if protocol.Opens(m.Method) {
			rq.boundOpening(m.Method)
		}
		if m.Method == protocol.MethodInitialize && (s.backend.initialize == nil || s.revision == "") { // one that has failed counts no more
			s.held.keepsInitialize(len(m.Raw))
			s.takeInitialize(bytes.Clone(m.Raw), m.Params) // a copy: the session must not hold the body
		}
		c.begins(rq.id, m)
		if token != nil && c.guestOf() == "" {
			c.tokens = append(c.tokens, string(jsonrpc.Key(token)))
		}
		if s.m.waits() {
			s.addLate(c, rq, m)
		}
	}
	if s.events.areTold() { // once all requests were added
		s.events.watch(c, msgs, s.revision, restored)
	}
	return nil
}

// MaxInitialize bounds an initialize request, in bytes: it is kept for as long as its
// session.
const MaxInitialize = 64 << 10

// largeBody is the size of a request, in bytes, over which small parts that are kept are copied, so that they do not hold the rest.
const largeBody = 8 << 10

// checkBounds refuses a request with a part that is too large to be kept. The error is a [jsonrpc.Error].
func checkBounds(m *jsonrpc.Message, token []byte) error {
	switch {
	case len(token) > jsonrpc.MaxName:
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "progressToken is longer than %d bytes", jsonrpc.MaxName)
	case m.Method == protocol.MethodInitialize && len(m.Raw) > MaxInitialize:
		return ErrInitialize
	case protocol.NamesLongURI(m):
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "%s: a URI is longer than %d bytes", m.Method, protocol.MaxURI)
	}
	return nil
}

// ErrInitialize refuses an initialize request over [MaxInitialize].
var ErrInitialize = jsonrpc.Errorf(jsonrpc.CodeInvalidRequest,
	"the initialize request is larger than %d bytes, which is all that is kept of a client", MaxInitialize)

// ErrClient refuses a modern request whose clientInfo and clientCapabilities are together longer than [MaxInitialize].
var ErrClient = jsonrpc.Errorf(jsonrpc.CodeInvalidRequest,
	"what params._meta says of the client is larger than %d bytes, which is all that is kept of a client", MaxInitialize)

// cancel ends a request of the session's client, also one that waits for its turn, but not initialize, nor one that has passed
// to an heir. tell says that the caller has to tell the backend. The backend's later messages about the request are dropped.
func (s *Session) cancel(id []byte) (tell bool) {
	s.mu.Lock()
	rq := s.requests.at("", id)
	switch {
	case rq == nil:
		s.waiting.cancel(string(jsonrpc.Key(id)))
	case rq.call.method == protocol.MethodInitialize || rq.call.isHeir(): // initialize must not be cancelled (2025-11-25, Cancellation)
		rq = nil
	default:
		rq = s.requests.take(id, nil)
	}
	s.mu.Unlock()
	if rq == nil {
		return false
	}
	tell = rq.sent && !rq.ours
	rq.cancel()
	return tell
}
