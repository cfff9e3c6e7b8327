package session

import (
	"bytes"
	"fmt"

	"holdfast/backend"
	"holdfast/internal/again"
	"holdfast/internal/flight"
	"holdfast/internal/limit"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// An inflight is one request of a call, from the time it is taken until it is
// answered or given up. Whoever takes it off Session.open is the one to end it.
type inflight struct {
	call *Call
	id   string      // raw, as the client spelled it
	sent bool        // the backend has it, or may have it; guarded by Session.mu
	ours bool        // no backend hears of it: it calls one of our tools
	adds bool        // our tools are added to the response
	list bool        // it asks for the list of tools from its beginning, which has not changed since
	sum  uint64      // of its method and params: see [flight.SumOf]
	size int32       // bytes that are counted as on their way until it is answered
	slot *limit.Slot // what it takes of the calls that may be in flight; nil: nothing
	stop func()      // ends what is done for it besides; nil: nothing is
	late *Late       // what is done if it takes long; nil: nothing is
	// listen is a subscriptions/listen of a carrier, as the backend got it, to be made again; nil: it is another
	// request. Guarded by Session.mu.
	listen *backend.Inbound
	acked  bool // that listen was acknowledged; guarded by Session.mu
}

// Again reports whether the call is that of one request, which is in flight, and m is this request once more; and whether its client has
// lost the connection of the first. conn is that of this one; nil: it cannot be asked. A request that comes late, so that its client has made
// it again since, is not the same.
func (c *Call) Again(m *jsonrpc.Message, conn Connection) (same, lost bool) {
	c.mu.Lock()
	same = len(c.pending) == 1 && c.pending[0].sum == flight.SumOf(m) && string(jsonrpc.Key([]byte(c.pending[0].id))) == string(jsonrpc.Key(m.ID))
	c.mu.Unlock()
	same = same && (conn == nil || !conn.HasLeft())
	if lost = c.s.streams.IsLost(c.Number()); same && lost {
		if !c.standing.CameBack(conn) {
			return true, false // it is about to end
		}
		flightCall{c}.Attached(again.Whole, c.s.Name())
	}
	return same, lost
}

// addRequests puts the requests on record, each with what it takes of the pass. s.mu is held.
func (s *Session) addRequests(c *Call, msgs []jsonrpc.Message, pass *limit.Pass) error {
	if s.isClosed() || s.use.lost.Load() {
		return s.goneError()
	}
	if err := s.checkMemory(msgs); err != nil {
		return err
	}
	for i := range msgs {
		m := &msgs[i]
		if m.Kind != jsonrpc.Request {
			continue
		}
		key := requestKey(c.guestOf(), m.ID)
		token := jsonrpc.Field(m.Params, "_meta", "progressToken")
		if err := checkBounds(m, token); err != nil {
			s.removeCall(c)
			return err
		}
		if s.inFlight[string(key)] != nil {
			s.removeCall(c)
			return ErrDuplicate
		}
		if s.waiting.isCancelled(string(key)) {
			s.removeCall(c)
			return ErrCancelled
		}
		if s.inFlight == nil {
			s.inFlight = make(map[string]*inflight)
		}
		rq := &inflight{call: c, id: string(m.ID), sum: flight.SumOf(m), size: int32(len(m.Raw))} // a copy: the call may live for long, and must not hold the body
		if pass != nil && s.m.isLimited(m) {
			rq.slot = pass.Next()
		}
		s.tenant.held.Add(int64(rq.size))
		s.m.opts.Flight.Add(int64(rq.size))
		if string(key) == rq.id {
			s.inFlight[rq.id] = rq
		} else {
			s.inFlight[string(key)] = rq
		}
		c.pending = append(c.pending, rq)
		if len(msgs) == 1 {
			c.compare(rq, m)
		}
		if c.method == "" {
			c.method = m.Method
		}
		// Of a carrier's clients each may be shown other tools.
		rq.list = m.Method == protocol.MethodToolsList && s.modern == "" && jsonrpc.Field(m.Params, "cursor") == nil
		if m.Method == protocol.MethodInitialize || m.Method == protocol.MethodDiscover {
			s.boundOpening(rq, m.Method)
		}
		if m.Method == protocol.MethodInitialize && (s.backend.initialize == nil || s.taken && s.revision == "") {
			s.backend.initialize = bytes.Clone(m.Raw) // and not the body with it
			s.takeCapabilities(m.Params)
		}
		if !c.isHeir() {
			s.addResumable(c, rq.id, m.Method)
		}
		if token != nil && c.guestOf() == "" {
			c.tokens = append(c.tokens, string(jsonrpc.Key(token)))
		}
		c.tellsBesides(rq.id, m.Params)
		if s.m.waits() {
			s.addLate(c, rq, m)
		}
	}
	if s.m.opts.Observers != nil { // told when all have been taken
		s.watch(c, msgs)
	}
	return nil
}

// checkMemory reports whether there is no room for requests to be held until they are answered:
// what one tenant has in flight leaves as much to the others. s.mu is held.
func (s *Session) checkMemory(msgs []jsonrpc.Message) error {
	size := int64(0)
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			size += int64(len(msgs[i].Raw))
		}
	}
	held, flight := s.tenant.held.Load(), s.m.opts.Flight
	if held > 0 && held+size > flight.Share() || flight.Used()+size > flight.Most() && size > largeBody {
		return fmt.Errorf("%w: a request of %d bytes beside those in flight is more than --memory has room for", ErrBusy, size)
	}
	return nil
}

// remove takes a request off the record. s.mu is held.
func (s *Session) remove(key string, rq *inflight) {
	delete(s.inFlight, key)
	rq.slot.Release()
	if rq.stop != nil {
		rq.stop()
	}
	s.m.flights.Ended(flightCall{rq.call})
	s.tenant.held.Add(-int64(rq.size))
	s.m.opts.Flight.Add(-int64(rq.size))
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

// removeCall takes back what enter did. s.mu is held.
func (s *Session) removeCall(c *Call) {
	for key, rq := range s.inFlight {
		if rq.call == c {
			s.remove(key, rq)
		}
	}
}

// takeRequest takes a request off the record, if it is there and the call's (nil: of any
// call). s.mu is held.
func (s *Session) takeRequest(id []byte, c *Call) *inflight {
	key := requestKey(c.guestOf(), id)
	rq := s.inFlight[string(key)]
	if rq == nil || c != nil && rq.call != c && !rq.call.goesOn(c) {
		return nil
	}
	s.remove(string(key), rq)
	return rq
}

// markDelivered reports whether a request is to be handed to the backend now: not so if it
// has been ended meanwhile. s.mu is held.
func (s *Session) markDelivered(in *backend.Inbound) bool {
	c := callOf(in)
	if c == nil {
		return true
	}
	rq := s.inFlight[string(requestKey(c.guestOf(), in.ID))]
	if rq == nil || rq.call != c {
		return false
	}
	rq.delivered()
	s.keepListen(rq, in)
	if len(in.Raw) > largeBody {
		in.ID = bytes.Clone(in.ID) // which a backend keeps until it answers, and not the body with it
	}
	return true
}

// delivered notes that the backend has a request, or may have it. Session.mu is held.
func (rq *inflight) delivered() {
	rq.sent = true
	if k := rq.call.recovery; k != nil {
		rq.call.mu.Lock()
		k.become(recoveryDelivered)
		rq.call.mu.Unlock()
	}
}

// fail answers a request of the call with an error of ours, if it is still
// unanswered.
func (s *Session) fail(c *Call, id []byte, e *jsonrpc.Error) {
	s.mu.Lock()
	rq := s.takeRequest(id, c)
	s.mu.Unlock()
	if rq != nil {
		s.failAll([]*inflight{rq}, e)
	}
}

// failCall answers all requests of the call that are unanswered.
func (s *Session) failCall(c *Call, e *jsonrpc.Error) {
	var lost []*inflight
	s.mu.Lock()
	for key, rq := range s.inFlight {
		if rq.call == c {
			lost = append(lost, rq)
			s.remove(key, rq)
		}
	}
	s.mu.Unlock()
	s.failAll(lost, e)
}

// failAll answers requests that were taken off the record.
func (s *Session) failAll(lost []*inflight, e *jsonrpc.Error) {
	for _, rq := range lost {
		rq.call.respond(rq, jsonrpc.AppendError(nil, []byte(rq.id), e))
		s.requestEnded(rq)
	}
}

// cancel ends a request, also one that waits for its turn. The backend is told by the one who calls, if it is to know, and
// whatever it still says of it is dropped. Of a request that passed to an heir nothing is cancelled, and neither is initialize.
func (s *Session) cancel(id []byte) (tell bool) {
	s.mu.Lock()
	rq := s.inFlight[string(jsonrpc.Key(id))]
	switch {
	case rq == nil:
		s.waiting.cancel(string(jsonrpc.Key(id)))
		s.mu.Unlock()
		return false
	case rq.call.method == protocol.MethodInitialize || rq.call.isHeir(): // the first must not be cancelled (2025-11-25, Cancellation)
		s.mu.Unlock()
		return false
	}
	rq = s.takeRequest(id, nil)
	ours := rq.ours
	s.mu.Unlock()
	rq.call.cancel(rq)
	s.requestEnded(rq)
	return !ours
}

// requestEnded is called for each request that was taken off the record, after its call
// knows.
func (s *Session) requestEnded(rq *inflight) {
	if rq.call.isOverAsking() {
		s.mu.Lock()
		open := s.asked.dropCall(rq.call)
		s.mu.Unlock()
		for _, r := range open { // or the backend would wait for an answer for ever
			s.refuse(r.link, jsonrpc.Message{ID: r.id, Method: r.method}, "the call that it belonged to is over")
		}
	}
	rq.call.untold().Flush()
	s.m.dismiss(s, 1)
	if !rq.sent && s.use.calls.Load() == 0 {
		s.m.breakPromise(s)
	}
}

// takeInFlight takes all requests in flight off the record, or only those that the
// backend may have. s.mu is held.
func (s *Session) takeInFlight(unsent bool) []*inflight {
	var lost []*inflight
	if unsent {
		s.patience.rest()
	}
	for key, rq := range s.inFlight {
		if rq.sent || unsent {
			lost = append(lost, rq)
			s.remove(key, rq)
		}
	}
	return lost
}
