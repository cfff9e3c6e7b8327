package session

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/protocol"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// What follows is SEP-975, requests that can be resumed over any transport, for
// clients that have the capability resumableRequests. The first that a stored
// call says is its policy, with a token that is enough to come back to it: from
// another connection, session or process of the same principal.
// docs/decisions/0008-resuming-everything.md says how a client finds all its calls.

// ErrBadToken stands for a resume token that is wrong, or not of this request or
// principal, and for a request that is not kept any more: nobody is told which.
var ErrBadToken = errors.New("there is no such request to resume")

// The states of a request (SEP-975, GetRequestStatusResult).
const (
	StatusProcessing = "processing"
	StatusCompleted  = "completed"
	StatusFailed     = "failed" // its response is an error
)

// A RequestStatus is what can be said of a request without what it said. As JSON
// it is the result of requests/getStatus.
type RequestStatus struct {
	RequestID         json.RawMessage `json:"requestId"` // as its client spelled it
	Status            string          `json:"status"`
	HasPendingMessage bool            `json:"hasPendingMessage"` // something was said that was written to no client
	HasInputRequest   bool            `json:"hasInputRequest"`   // the client was asked, and has not answered
}

// A ResumableRequest is one of all those of a client.
type ResumableRequest struct {
	RequestStatus
	ResumeToken string `json:"resumeToken"`
	Method      string `json:"method"`
}

// resumes is what a session has whose client has the capability.
type resumes struct {
	eventIDs bool

	mu    sync.Mutex       // taken last
	calls map[uint64]*Call // whose streams are kept, or were not long ago
	crowd int              // how many of them are worth looking through
	swept time.Time
}

// callsCrowd is how many calls are not looked through for those that are not kept
// any more.
const callsCrowd = 1 << 10

// resume is what is known of a call that can be resumed. Guarded by Call.mu.
type resume struct {
	requests []resumable
	seen     time.Time   // when its client was last there, or asked for it
	timer    *time.Timer // for the client that is away for too long; nil where there is no bound
}

// resumable is one request of a call, also after its end.
type resumable struct {
	id     string // raw
	method string
	status string
}

// resume returns what is known of a call that can be resumed; nil for others.
func (c *Call) resume() *resume {
	if c.record == nil {
		return nil
	}
	return c.record.resume
}

// Resumable reports whether the session's client can resume requests (SEP-975).
func (s *Session) Resumable() bool { return s.resumes.Load() != nil }

// EventIDs reports whether the session's client wants to be told event ids on
// transports that have none.
func (s *Session) EventIDs() bool {
	r := s.resumes.Load()
	return r != nil && r.eventIDs
}

// takeCapabilities takes in what the client says of itself in initialize. s.mu is held.
func (s *Session) takeCapabilities(params []byte) {
	s.patience.know(s, params)
	says := jsonrpc.Field(params, "capabilities", "resumableRequests")
	if len(says) == 0 || says[0] != '{' || s.single || s.m.opts.Stateless || s.resumes.Load() != nil {
		return
	}
	s.resumes.Store(&resumes{
		eventIDs: string(jsonrpc.Field(says, "eventIds")) == "true",
		calls:    make(map[uint64]*Call),
		crowd:    callsCrowd,
		swept:    time.Now(),
	})
	s.m.resumer(s)
}

// addResumable puts a request of a new call on record, if it can be resumed. s.mu is
// held.
func (s *Session) addResumable(c *Call, id, method string) {
	if s.resumes.Load() == nil || method == protocol.MethodInitialize || c.deferred() != nil {
		return
	}
	if c.recorded().resume == nil {
		c.record.resume = &resume{}
	}
	r := c.record.resume
	r.requests = append(r.requests, resumable{id: id, method: method, status: StatusProcessing})
}

// stored implements [feature]: it says how the call can be resumed, as the first that the
// call says, and has it found from now on.
func (r *resume) stored(c *Call) {
	for i := range r.requests {
		c.push(c.s.policy(c.number, r.requests[i].id), false)
	}
	all := c.s.resumes.Load()
	all.mu.Lock()
	all.calls[c.number] = c
	all.mu.Unlock()
	r.seen = time.Now()
	if most := c.s.m.opts.MaxWait; most > 0 {
		r.timer = time.AfterFunc(most, c.cancelIfAway)
	}
}

// answered implements [feature].
func (r *resume) answered(c *Call, rq *inflight, failed bool, _ uint64) { r.end(c, rq.id, failed) }

// cancelled implements [feature].
func (r *resume) cancelled(c *Call, rq *inflight) { r.end(c, rq.id, true) }

// refused implements [feature].
func (r *resume) refused(c *Call, ids [][]byte, _ uint64) {
	for _, id := range ids {
		r.end(c, string(id), true)
	}
}

// left implements [feature]: its client is waited for elsewhere.
func (r *resume) left(*Call) {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// end notes how a request ended.
func (r *resume) end(c *Call, id string, failed bool) {
	for i := range r.requests {
		if r.requests[i].id == id {
			r.requests[i].status = StatusCompleted
			if failed {
				r.requests[i].status = StatusFailed
			}
		}
	}
	if len(c.pending) == 0 && r.timer != nil {
		r.timer.Stop()
	}
}

// policy returns the notification that tells a client how to resume its request.
func (s *Session) policy(number uint64, id string) []byte {
	params := append([]byte(`{"requestId":`), id...)
	params = append(params, `,"resumeToken":"`...)
	params = append(params, s.token(number, []byte(id))...)
	params = append(params, '"')
	seconds := func(name string, d time.Duration) {
		if d > 0 {
			params = append(params, name...)
			params = strconv.AppendFloat(params, d.Seconds(), 'f', -1, 64)
		}
	}
	seconds(`,"minWait":`, s.m.opts.MinWait)
	seconds(`,"maxWait":`, s.m.promisedWait())
	return jsonrpc.AppendRequest(nil, nil, protocol.MethodResumePolicy, append(params, '}'))
}

// promisedWait is how long clients are told that they may stay away from a call: what
// has ended must still be there then. 0 stands for no bound.
func (m *Manager) promisedWait() time.Duration {
	if m.opts.MaxWait < 0 {
		return 0
	}
	d := min(m.opts.MaxWait, m.opts.TTL)
	if m.opts.Keep > 0 {
		d = min(d, m.opts.Keep)
	}
	return d
}

// clientSeen notes that the call's client is there, or asked for it.
func (c *Call) clientSeen() {
	c.s.Touch()
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.resume(); r != nil {
		r.seen = time.Now()
	}
}

// call returns the call of a stream that can be resumed, running or ended, or
// nil. all may be nil.
func (all *resumes) call(number uint64) *Call {
	if all == nil {
		return nil
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.calls[number]
}

// request returns what is known of a request of the call, or nil. Call.mu is held.
func (r *resume) request(id []byte) *resumable {
	i := slices.IndexFunc(r.requests, func(q resumable) bool {
		return string(jsonrpc.Key([]byte(q.id))) == string(jsonrpc.Key(id))
	})
	if i < 0 {
		return nil
	}
	return &r.requests[i]
}

// FindResumable returns where a request can be resumed from: its session, and the
// number of its stream, which may have ended. id is the request's, as raw JSON.
// That counts as a sign of its client.
//
// The error is [ErrBadToken], whatever the reason, a [*Redirect] if the token is
// good and its session not on this node, or that of a store which can't tell.
func (m *Manager) FindResumable(token string, id []byte, principal caller.Principal) (*Session, uint64, error) {
	t, ok := ticket.Parse(token)
	if !ok {
		return nil, 0, ErrBadToken
	}
	for {
		s, err := m.findSealed(t, tokenSeal, id, principal)
		if errors.Is(err, ErrNotFound) {
			return nil, 0, ErrBadToken
		}
		if err != nil {
			return nil, 0, err
		}
		if c := s.resumes.Load().call(t.Number); c != nil && m.holder(s.key, t.Number) != nil {
			c.clientSeen()
			s.streams.Asked(t.Number)
			return s, t.Number, nil
		}
		switch err := s.checkOwner(m.ctx); {
		case err == nil:
			return nil, 0, ErrBadToken
		case !errors.Is(err, ErrMoved): // else it is looked for where it is by now
			return nil, 0, err
		}
	}
}

// RequestStatus returns the status of a request that [Manager.FindResumable] finds. Its errors are those of that.
func (m *Manager) RequestStatus(token string, id []byte, principal caller.Principal) (RequestStatus, error) {
	s, number, err := m.FindResumable(token, id, principal)
	if err != nil {
		return RequestStatus{}, err
	}
	return s.resumes.Load().status(number, id)
}

// status returns the status of a request of the call of a stream. The error is [ErrBadToken].
func (all *resumes) status(number uint64, id []byte) (RequestStatus, error) {
	c := all.call(number)
	if c == nil {
		return RequestStatus{}, ErrBadToken
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.resume().request(id)
	if q == nil {
		return RequestStatus{}, ErrBadToken
	}
	return c.statusOf(q), nil
}

// statusOf returns the status of a request of the call. c.mu is held.
func (c *Call) statusOf(q *resumable) RequestStatus {
	return RequestStatus{
		RequestID:         json.RawMessage(q.id),
		Status:            q.status,
		HasPendingMessage: c.said > c.delivery.told,
		HasInputRequest:   c.asking > 0 && !c.isOver(),
	}
}

// SessionsOf returns the sessions of a named principal on this node that are in a range, and whose calls are looked for together,
// in the order of their names.
func (m *Manager) SessionsOf(principal caller.Principal, in Range) []*Session {
	of := m.resumersOf(principal, in)
	slices.SortFunc(of, func(a, b *Session) int { return strings.Compare(a.Name(), b.Name()) })
	return of
}

// AllResumable returns the requests that can be resumed in the sessions of a named principal, or, for nobody in particular, in the
// one that asks, which may be nil: as [Manager.SessionsOf] has these, and within a session as they were stored. That counts as a
// sign of their clients.
func (m *Manager) AllResumable(_ context.Context, principal caller.Principal, own *Session, in Range) []ResumableRequest {
	of := m.SessionsOf(principal, in)
	if principal.IsAnonymous() && own != nil {
		of = []*Session{own}
	}
	all := []ResumableRequest{}
	for _, s := range of {
		s.Touch()
		for _, c := range s.resumes.Load().kept(s) {
			c.mu.Lock()
			c.resume().seen = time.Now()
			for i := range c.resume().requests {
				q := &c.resume().requests[i]
				all = append(all, ResumableRequest{
					RequestStatus: c.statusOf(q),
					ResumeToken:   s.token(c.number, []byte(q.id)),
					Method:        q.method,
				})
			}
			c.mu.Unlock()
		}
	}
	return all
}

// kept returns the session's calls that can be resumed, oldest first, and forgets
// those that can't any more. all may be nil.
func (all *resumes) kept(s *Session) []*Call {
	if all == nil {
		return nil
	}
	all.mu.Lock()
	numbers := make([]uint64, 0, len(all.calls))
	for number := range all.calls {
		numbers = append(numbers, number)
	}
	all.mu.Unlock()
	slices.Sort(numbers)
	calls := make([]*Call, 0, len(numbers))
	for _, number := range numbers {
		kept := s.m.holder(s.key, number) != nil
		all.mu.Lock()
		if c := all.calls[number]; c != nil && kept {
			calls = append(calls, c)
		} else {
			delete(all.calls, number)
		}
		all.mu.Unlock()
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	all.swept, all.crowd = time.Now(), 2*len(all.calls)+callsCrowd
	if len(all.calls) < len(numbers)/2 { // a map does not shrink by itself
		fewer := make(map[uint64]*Call, len(all.calls))
		maps.Copy(fewer, all.calls)
		all.calls = fewer
	}
	return calls
}

// sweep forgets calls of the session that can't be resumed any more, where there are many, or it
// is time for it. all may be nil.
func (all *resumes) sweep(s *Session, now time.Time) {
	if all == nil {
		return
	}
	all.mu.Lock()
	due := len(all.calls) > all.crowd || len(all.calls) > 0 && now.Sub(all.swept) >= idempotency.SweepEvery
	if due {
		all.crowd = math.MaxInt // until it is done, others need not begin
	}
	all.mu.Unlock()
	if due {
		all.kept(s)
	}
}
