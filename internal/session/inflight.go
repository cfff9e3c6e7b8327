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

// requests are those in flight in a session, by [requestKey]. Its lock guards what changes of them, too, unless it is said otherwise. None is
// added, or becomes another call's, without Session.mu: while that is held there are no more.
type requests struct {
	mu  sync.Mutex
	all map[string]*inflight
}

// locked does something while no request changes.
func (q *requests) locked(do func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	do()
}

// each calls yield for each request. It must not take or add one.
func (q *requests) each(yield func(*inflight) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, rq := range q.all {
		if !yield(rq) {
			return
		}
	}
}

// len returns how many there are.
func (q *requests) len() (n int) {
	q.locked(func() { n = len(q.all) })
	return n
}

// at returns the request with the id that came from a session ("": this one), or nil.
func (q *requests) at(guest stream.SessionKey, id []byte) *inflight {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all[string(requestKey(guest, id))]
}

// with calls do for the call's request with the id, if there is one, which it returns.
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

// take takes a request off the record, if it is there and the call's (nil: of any call).
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

// takeIf takes those off the record that are as is asked for.
func (q *requests) takeIf(is func(*inflight) bool) (taken []*inflight) {
	q.locked(func() { taken = q.takeIfLocked(is) })
	return taken
}

// takeIfLocked is takeIf for who holds q.mu.
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

// takeCall takes all of a call off the record.
func (q *requests) takeCall(c *Call) []*inflight {
	return q.takeIf(func(rq *inflight) bool { return rq.call == c })
}

// deliver notes that a request is about to be handed to the backend, and returns it; nil: it is no request of a call. It is false if the request
// has been ended meanwhile.
func (q *requests) deliver(in *backend.Inbound) (rq *inflight, ok bool) {
	c := callOf(in)
	if c == nil {
		return nil, true
	}
	rq = q.with(c, in.ID, (*inflight).delivered)
	if rq != nil && len(in.Raw) > largeBody {
		in.ID = bytes.Clone(in.ID) // which a backend keeps until it answers, and not the body with it
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

// withToken returns the call one of whose tokens is as is asked for, or nil; of several, one, or nil if there must be one only.
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

// An inflight is one request of a call, from the time it is taken until it is
// answered or given up. Whoever takes it off the record is the one to end it.
type inflight struct {
	call  *Call
	id    string      // raw, as the client spelled it
	sent  bool        // the backend has it, or may have it
	ours  bool        // no backend hears of it: it calls one of our tools
	adds  bool        // our tools are added to the response
	acked bool        // its listen was acknowledged; guarded by Session.mu
	sum   uint64      // of its method and params: see [again.SumOf]
	size  int32       // bytes that are counted as on their way until it is answered
	list  int32       // the [tools.List.Version] that it asks for, from the beginning of the list; 0: it asks for something else
	slot  *limit.Slot // what it takes of the calls that may be in flight; nil: nothing
	stop  func()      // ends what is done for it besides; nil: nothing is
	late  *Late       // what is done if it takes long; nil: nothing is
	// listen is a subscriptions/listen of a carrier, as the backend got it, to be made again; nil: it is another
	// request. Guarded by Session.mu.
	listen *backend.Inbound
}

// Again reports whether the call is that of one request, which is in flight, and m is this request once more; and whether its client has
// lost the connection of the first. conn is that of this one; nil: it cannot be asked. A request that comes late, so that its client has made
// it again since, is not the same.
func (c *Call) Again(m *jsonrpc.Message, conn Connection) (same, lost bool) {
	c.mu.Lock()
	same = len(c.pending) == 1 && c.pending[0].sum == again.SumOf(m) && string(jsonrpc.Key([]byte(c.pending[0].id))) == string(jsonrpc.Key(m.ID))
	c.mu.Unlock()
	same = same && (conn == nil || !conn.HasLeft())
	if lost = c.s.streams.IsLost(c.Number()); same && lost {
		if !c.standing.CameBack(conn) {
			return true, false // it is about to end
		}
		flightCall{c}.Attached(likeness.Whole, c.s.Name())
	}
	return same, lost
}

// delivered notes that the backend has the request, or may have it: from now on the session's next owner does not make it for the first time.
func (rq *inflight) delivered() {
	rq.sent = true
	if k := rq.call.recovery; k != nil {
		rq.call.mu.Lock()
		k.become(recoveryDelivered)
		rq.call.mu.Unlock()
	}
}

// lands ends what is done for a request which is taken off the record.
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

// answer answers a request that was taken off the record.
func (rq *inflight) answer(data []byte) {
	rq.call.respond(rq, data)
	rq.ended()
}

// fail is answer with an error of ours.
func (rq *inflight) fail(e *jsonrpc.Error) { rq.answer(jsonrpc.AppendError(nil, []byte(rq.id), e)) }

// cancel ends a request that was taken off the record, as its client wants no response.
func (rq *inflight) cancel() {
	rq.call.cancel(rq)
	rq.ended()
}

// ended is called for each request that was taken off the record, after its call knows.
func (rq *inflight) ended() {
	s := rq.call.s
	if rq.call.IsOver() && rq.call.client.isOpen() {
		for _, r := range s.asked.dropCall(rq.call) { // or the backend would wait for an answer for ever
			r.link.refuse(jsonrpc.Message{ID: r.id, Method: r.method}, "the call that it belonged to is over")
		}
	}
	rq.call.untold().Flush()
	s.m.dismiss(s, 1)
	if !rq.sent && s.use.calls.Load() == 0 {
		s.m.processes.Break(processOwner{s})
	}
}

// failAll answers requests that were taken off the record with an error of ours.
func failAll(lost []*inflight, e *jsonrpc.Error) {
	for _, rq := range lost {
		rq.fail(e)
	}
}

// addRequests puts the requests on record, each with what it takes of the pass. s.mu is held.
func (s *Session) addRequests(c *Call, msgs []jsonrpc.Message, pass *limit.Pass) error {
	if s.isClosed() || s.use.lost.Load() {
		return s.goneError()
	}
	if err := s.tenant.checkMemory(s.m.opts.Flight, msgs); err != nil {
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
		token := jsonrpc.Field(m.Params, "_meta", "progressToken")
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
		// Of a carrier's clients each may be shown other tools.
		if m.Method == protocol.MethodToolsList && s.modern == "" && jsonrpc.Field(m.Params, "cursor") == nil {
			rq.list = s.Tools.Version()
		}
		if protocol.Opens(m.Method) {
			rq.boundOpening(m.Method)
		}
		if m.Method == protocol.MethodInitialize && (s.backend.initialize == nil || s.taken && s.revision == "") {
			s.takeInitialize(bytes.Clone(m.Raw), m.Params) // and not the body with it
		}
		c.begins(rq.id, m)
		if token != nil && c.guestOf() == "" {
			c.tokens = append(c.tokens, string(jsonrpc.Key(token)))
		}
		if s.m.waits() {
			s.addLate(c, rq, m)
		}
	}
	if s.events.areTold() { // when all have been taken
		s.events.watch(c, msgs, s.revision, s.taken && s.state() == sessionOpening)
	}
	return nil
}

// MaxInitialize bounds an initialize request, in bytes: it is kept for as long as its
// session.
const MaxInitialize = 64 << 10

// largeBody is how large a request is, in bytes, of which nothing small that is kept
// may hold the rest.
const largeBody = 8 << 10

// checkBounds says what is too large to be kept of a request. The error is a
// [jsonrpc.Error].
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

// cancel ends a request, also one that waits for its turn. The backend is told by the one who calls, if it is to know, and
// whatever it still says of it is dropped. Of a request that passed to an heir nothing is cancelled, and neither is initialize.
func (s *Session) cancel(id []byte) (tell bool) {
	s.mu.Lock()
	rq := s.requests.at("", id)
	switch {
	case rq == nil:
		s.waiting.cancel(string(jsonrpc.Key(id)))
	case rq.call.method == protocol.MethodInitialize || rq.call.isHeir(): // the first must not be cancelled (2025-11-25, Cancellation)
		rq = nil
	default:
		rq = s.requests.take(id, nil)
	}
	s.mu.Unlock()
	if rq == nil {
		return false
	}
	ours := rq.ours
	rq.cancel()
	return !ours
}
