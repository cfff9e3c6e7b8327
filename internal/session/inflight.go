package session

import (
	"bytes"
	"fmt"

	"holdfast/backend"
	"holdfast/jsonrpc"
)

// An inflight is one request of a call, from the time it is taken until it is
// answered or given up. Whoever takes it off Session.open is the one to end it.
type inflight struct {
	call *Call
	id   string // raw, as the client spelled it
	sent bool   // the backend has it, or may have it; guarded by Session.mu
	size int32  // bytes that are counted as on their way until it is answered
}

// enter puts the requests on record. s.mu is held.
func (s *Session) enter(c *Call, msgs []jsonrpc.Message) error {
	if s.isClosed() {
		return s.goneError()
	}
	if err := s.weighs(msgs); err != nil {
		return err
	}
	for i := range msgs {
		m := &msgs[i]
		if m.Kind != jsonrpc.Request {
			continue
		}
		key := jsonrpc.Key(m.ID)
		token := jsonrpc.Field(m.Params, "_meta", "progressToken")
		if err := bounds(m, token); err != nil {
			s.leave(c)
			return err
		}
		if s.open[string(key)] != nil {
			s.leave(c)
			return ErrDuplicate
		}
		if s.open == nil {
			s.open = make(map[string]*inflight)
		}
		rq := &inflight{call: c, id: string(m.ID), size: int32(len(m.Raw))} // a copy: the call may live for long, and must not hold the body
		s.tenant.held.Add(int64(rq.size))
		s.m.opts.Flight.Add(int64(rq.size))
		if string(key) == rq.id {
			s.open[rq.id] = rq
		} else {
			s.open[string(key)] = rq
		}
		c.pending = append(c.pending, rq)
		if c.method == "" {
			c.method = m.Method
		}
		if m.Method == "initialize" && (s.backend.initialize == nil || s.taken && s.revision == "") {
			s.backend.initialize = bytes.Clone(m.Raw) // and not the body with it
			s.able(m.Params)
		}
		s.remember(c, rq.id, m.Method)
		if token != nil {
			c.tokens = append(c.tokens, string(jsonrpc.Key(token)))
		}
		s.watch(c, rq, m)
	}
	return nil
}

// weighs says whether there is no room for requests to be held until they are answered:
// what one tenant has in flight leaves as much to the others. s.mu is held.
func (s *Session) weighs(msgs []jsonrpc.Message) error {
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

// strike takes a request off the record. s.mu is held.
func (s *Session) strike(key string, rq *inflight) {
	delete(s.open, key)
	s.tenant.held.Add(-int64(rq.size))
	s.m.opts.Flight.Add(-int64(rq.size))
}

// MaxInitialize bounds an initialize request, in bytes: it is kept for as long as its
// session.
const MaxInitialize = 64 << 10

// largeBody is how large a request is, in bytes, of which nothing small that is kept
// may hold the rest.
const largeBody = 8 << 10

// bounds says what is too large to be kept of a request. The error is a
// [jsonrpc.Error].
func bounds(m *jsonrpc.Message, token []byte) error {
	switch {
	case len(token) > jsonrpc.MaxName:
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "progressToken is longer than %d bytes", jsonrpc.MaxName)
	case m.Method == "initialize" && len(m.Raw) > MaxInitialize:
		return ErrInitialize
	}
	return nil
}

// ErrInitialize refuses an initialize request over [MaxInitialize].
var ErrInitialize = jsonrpc.Errorf(jsonrpc.CodeInvalidRequest,
	"the initialize request is larger than %d bytes, which is all that is kept of a client", MaxInitialize)

// leave takes back what enter did. s.mu is held.
func (s *Session) leave(c *Call) {
	for key, rq := range s.open {
		if rq.call == c {
			s.strike(key, rq)
		}
	}
}

// take takes a request off the record, if it is there and the call's (nil: of any
// call). s.mu is held.
func (s *Session) take(id []byte, c *Call) *inflight {
	key := jsonrpc.Key(id)
	rq := s.open[string(key)]
	if rq == nil || c != nil && rq.call != c {
		return nil
	}
	s.strike(string(key), rq)
	return rq
}

// begin says whether a request is to be handed to the backend now: not so if it
// has been ended meanwhile. s.mu is held.
func (s *Session) begin(in *backend.Inbound) bool {
	c := callOf(in)
	if c == nil {
		return true
	}
	rq := s.open[string(jsonrpc.Key(in.ID))]
	if rq == nil || rq.call != c {
		return false
	}
	rq.sent = true
	if len(in.Raw) > largeBody {
		in.ID = bytes.Clone(in.ID) // which a backend keeps until it answers, and not the body with it
	}
	if k := rq.call.recovery; k != nil {
		rq.call.mu.Lock()
		k.become(recoveryDelivered)
		rq.call.mu.Unlock()
	}
	return true
}

// fail answers a request of the call with an error of ours, if it is still
// unanswered.
func (s *Session) fail(c *Call, id []byte, e *jsonrpc.Error) {
	s.mu.Lock()
	rq := s.take(id, c)
	s.mu.Unlock()
	if rq != nil {
		s.failAll([]*inflight{rq}, e)
	}
}

// failCall answers all requests of the call that are unanswered.
func (s *Session) failCall(c *Call, e *jsonrpc.Error) {
	var lost []*inflight
	s.mu.Lock()
	for key, rq := range s.open {
		if rq.call == c {
			lost = append(lost, rq)
			s.strike(key, rq)
		}
	}
	s.mu.Unlock()
	s.failAll(lost, e)
}

// failAll answers requests that were taken off the record.
func (s *Session) failAll(lost []*inflight, e *jsonrpc.Error) {
	for _, rq := range lost {
		rq.call.respond(rq, jsonrpc.AppendError(nil, []byte(rq.id), e))
		s.ended(rq)
	}
}

// cancel ends a request. The backend is told by the one who calls, and whatever
// it still says of it is dropped.
func (s *Session) cancel(id []byte) {
	s.mu.Lock()
	if rq := s.open[string(jsonrpc.Key(id))]; rq == nil || rq.call.method == "initialize" {
		s.mu.Unlock()
		return
	}
	rq := s.take(id, nil)
	s.mu.Unlock()
	rq.call.cancel(rq)
	s.ended(rq)
}

// ended is called for each request that was taken off the record, after its call
// knows.
func (s *Session) ended(rq *inflight) {
	if rq.call.over() {
		s.mu.Lock()
		s.asked.dropCall(rq.call)
		s.mu.Unlock()
	}
	if s.single && rq.call.hooks() != nil {
		s.dispatch(standalone, s.standalone.hooks())
	}
	s.m.dismiss(s, 1)
}

// takeOpen takes all requests in flight off the record, or only those that the
// backend may have. s.mu is held.
func (s *Session) takeOpen(unsent bool) []*inflight {
	var lost []*inflight
	for key, rq := range s.open {
		if rq.sent || unsent {
			lost = append(lost, rq)
			s.strike(key, rq)
		}
	}
	return lost
}
