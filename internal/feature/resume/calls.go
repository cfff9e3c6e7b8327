package resume

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// The states of a request (SEP-975, GetRequestStatusResult).
const (
	Processing = "processing"
	Completed  = "completed"
	Failed     = "failed" // its response is an error
)

// A Status is the state of a request, without its messages. As JSON it is the result of requests/getStatus.
type Status struct {
	RequestID         json.RawMessage `json:"requestId"` // as its client spelled it
	Status            string          `json:"status"`
	HasPendingMessage bool            `json:"hasPendingMessage"` // a message was written to no client
	HasInputRequest   bool            `json:"hasInputRequest"`   // the client was asked, and has not answered
}

// A Listed is a request in the list of all requests of a client.
type Listed struct {
	Status
	ResumeToken string `json:"resumeToken"`
	Method      string `json:"method"`
}

// An Owner is a call of the session, as this package asks about it. Its methods are called without a lock.
type Owner interface {
	// Look calls do, with a lock held, with the state of the call, which does not change meanwhile: whether a message was written to no
	// client, whether the client was asked and has not answered, and whether a client reads the stream.
	Look(do func(pending, asks, isRead bool))
	// Told notes that the client was told the entries of the stream up to seq. The call has ended.
	Told(seq uint64)
	// IsKept reports whether the stream is kept, or still written to.
	IsKept() bool
	// Cancel ends the requests of the call that are in flight, and tells their client why.
	Cancel(ids []string, why string)
}

// A Session has the calls of a session with a client that can resume requests; nil: it cannot. Its methods may be called
// concurrently, and, but for Status, Told and Sweep, with locks of the owners held.
type Session struct {
	tickets  ticket.Maker
	opts     *Options
	eventIDs bool

	mu    sync.Mutex
	calls map[uint64]*Call // by their streams, which are kept, or were until the last sweep
	crowd int              // the number of calls beyond which a sweep is due
	swept time.Time
}

const (
	crowd      = 1 << 10          // how many calls stay without a sweep for calls that are not kept
	sweepEvery = 10 * time.Minute // how often calls are swept otherwise
)

// Session returns the calls of a session. params are those of initialize. It returns nil if they don't say that the client can resume
// requests.
func (o *Options) Session(tickets ticket.Maker, params []byte) *Session {
	says := jsonrpc.Field(params, "capabilities", "resumableRequests")
	if len(says) == 0 || says[0] != '{' {
		return nil
	}
	return &Session{
		tickets: tickets, opts: o, eventIDs: string(jsonrpc.Field(says, "eventIds")) == "true",
		calls: make(map[uint64]*Call), crowd: crowd, swept: time.Now(),
	}
}

// EventIDs reports whether the client wants event ids on transports without them.
func (s *Session) EventIDs() bool { return s != nil && s.eventIDs }

// Token returns the secret that is enough to resume a request, if the client can resume requests. number is the stream of the request's
// call; id is raw JSON.
func (s *Session) Token(number uint64, id []byte) (token string, ok bool) {
	if s == nil {
		return "", false
	}
	return s.tickets.Make(seal, number, id), true
}

// Len returns how many calls are known.
func (s *Session) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// A Call has the requests of a call that can be resumed, also after its end. Fields that change are guarded by Session.mu.
type Call struct {
	of       *Session
	owner    Owner
	number   uint64      // of its stream; never changes once the stream exists
	requests []request   // not added to once the call has begun
	seen     time.Time   // when its client was last connected, or asked for it
	timer    *time.Timer // cancels the call if the client is away for too long; nil without a bound, and while no request is in flight
}

type request struct{ id, method, status string } // id is raw

// Begin adds a request of a call that begins, and returns the call. c is the call with its other requests, or nil.
func (s *Session) Begin(c *Call, owner Owner, id, method string) *Call {
	if c == nil {
		c = &Call{of: s, owner: owner}
	}
	c.requests = append(c.requests, request{id, method, Processing})
	return c
}

// Len returns how many requests the call has.
func (c *Call) Len() int { return len(c.requests) }

// Stored notes that the call has a stream, and can be found from now on. It returns the first notifications of the stream, unless the call
// has ended: they tell the client how to resume each request. said is how many entries the stream has.
func (c *Call) Stored(number, said uint64) (policies [][]byte) {
	s := c.of
	s.mu.Lock()
	defer s.mu.Unlock()
	c.number, c.seen = number, time.Now()
	s.calls[number] = c
	if len(c.inFlight()) == 0 {
		return nil
	}
	if s.opts.MaxWait > 0 {
		c.timer = time.AfterFunc(s.opts.MaxWait, c.cancelIfAway)
	}
	for i := int(said); i < len(c.requests); i++ {
		id := []byte(c.requests[i].id)
		token, _ := s.Token(number, id)
		policies = append(policies, Policy(id, token, s.opts.MinWait, s.opts.promisedWait()))
	}
	return policies
}

// Policy returns the notification that tells a client how to resume its request.
func Policy(id []byte, token string, minWait, maxWait time.Duration) []byte {
	params := append([]byte(`{"requestId":`), id...)
	params = append(params, `,"resumeToken":"`...)
	params = append(params, token...)
	params = append(params, '"')
	seconds := func(name string, d time.Duration) {
		if d > 0 {
			params = strconv.AppendFloat(append(params, name...), d.Seconds(), 'f', -1, 64)
		}
	}
	seconds(`,"minWait":`, minWait)
	seconds(`,"maxWait":`, maxWait)
	return jsonrpc.AppendRequest(nil, nil, protocol.MethodResumePolicy, append(params, '}'))
}

// End notes how a request ended.
func (c *Call) End(id string, failed bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	status := Completed
	if failed {
		status = Failed
	}
	for i := range c.requests {
		if c.requests[i].id == id {
			c.requests[i].status = status
		}
	}
	if len(c.inFlight()) == 0 {
		c.stop()
	}
}

// inFlight returns the ids of the requests that have not ended. Session.mu is held.
func (c *Call) inFlight() (ids []string) {
	for i := range c.requests {
		if c.requests[i].status == Processing {
			ids = append(ids, c.requests[i].id)
		}
	}
	return ids
}

// call returns the call of a stream, running or ended, or nil.
func (s *Session) call(number uint64) *Call {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[number]
}

// Told notes that the client was told the entries of an ended call up to seq, for the status of its requests.
func (s *Session) Told(number, seq uint64) {
	if c := s.call(number); c != nil {
		c.owner.Told(seq)
	}
}

// Status returns the status of a request of a stream's call. The error is [ErrBadToken].
func (s *Session) Status(number uint64, id []byte) (Status, error) {
	c := s.call(number)
	if c == nil {
		return Status{}, ErrBadToken
	}
	key := string(jsonrpc.Key(id))
	all := c.list(nil)
	i := slices.IndexFunc(all, func(r Listed) bool { return string(jsonrpc.Key(r.RequestID)) == key })
	if i < 0 {
		return Status{}, ErrBadToken
	}
	return all[i].Status, nil
}

// list appends the requests of the call.
func (c *Call) list(all []Listed) []Listed {
	s := c.of
	c.owner.Look(func(pending, asks, _ bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range c.requests {
			r := &c.requests[i]
			id := json.RawMessage(r.id)
			token, _ := s.Token(c.number, id)
			all = append(all, Listed{Status{id, r.status, pending, asks}, token, r.method})
		}
	})
	return all
}

// kept returns the calls that can be resumed, oldest first, and forgets the others.
func (s *Session) kept() []*Call {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	calls := slices.SortedFunc(maps.Values(s.calls), func(a, b *Call) int { return cmp.Compare(a.number, b.number) })
	s.mu.Unlock()
	known := len(calls)
	calls = slices.DeleteFunc(calls, func(c *Call) bool {
		if c.owner.IsKept() {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calls, c.number)
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.swept, s.crowd = time.Now(), 2*len(s.calls)+crowd
	if len(s.calls) < known/2 { // a map does not shrink by itself
		fewer := make(map[uint64]*Call, len(s.calls))
		maps.Copy(fewer, s.calls)
		s.calls = fewer
	}
	return calls
}

// Sweep forgets calls that can't be resumed any more, if there are many calls, or a sweep is due.
func (s *Session) Sweep(now time.Time) {
	if s == nil {
		return
	}
	s.mu.Lock()
	due := len(s.calls) > s.crowd || len(s.calls) > 0 && now.Sub(s.swept) >= sweepEvery
	if due {
		s.crowd = math.MaxInt // until this sweep is done, no other one is due
	}
	s.mu.Unlock()
	if due {
		s.kept()
	}
}
