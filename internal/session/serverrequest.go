package session

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"holdfast/internal/caller"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// A serverRequest is a request of the backend, on its way to the client or with it.
type serverRequest struct {
	link   *link
	id     []byte // the backend's own
	method string
	call   *Call // it went to the stream of this one
	// guessed says that the backend named no call, and that several were in flight.
	guessed bool

	// Of a question of a modern backend to the client of a task.
	round *round // nil for others
	name  string // of the question
}

// serverRequests are the requests that the client has not answered, by the ids that
// it knows. Session.mu is held when one is added.
type serverRequests struct {
	mu      sync.Mutex // taken after Session.mu and Call.mu
	pending map[int64]serverRequest
	count   int64 // how many there have been
}

// mostServerRequests bounds how many requests of the backend wait for the client.
const mostServerRequests = 1000

// len returns how many there are.
func (q *serverRequests) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending)
}

// has reports whether a request waits.
func (q *serverRequests) has(id int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.pending[id]
	return ok
}

// add puts a request on record and returns its id. The lease's epoch keeps it apart from ids that other
// owners of the session give.
func (q *serverRequests) add(r serverRequest, epoch uint64) int64 {
	q.mu.Lock()
	q.count++
	id := int64(epoch-1)<<32 + q.count
	q.mu.Unlock()
	q.put(id, r)
	return id
}

func (q *serverRequests) put(id int64, r serverRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending == nil {
		q.pending = make(map[int64]serverRequest)
	}
	q.pending[id] = r
}

// take takes a request off the record.
func (q *serverRequests) take(id int64) (serverRequest, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r, ok := q.pending[id]
	delete(q.pending, id)
	return r, ok
}

// takeCancelled takes a request off the record that the backend cancels by its own id,
// and returns the id that the client knows it by.
func (q *serverRequests) takeCancelled(l *link, id []byte) (int64, *Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ours, r := range q.pending {
		if r.link == l && r.round == nil && string(jsonrpc.Key(r.id)) == string(jsonrpc.Key(id)) {
			delete(q.pending, ours)
			return ours, r.call
		}
	}
	return 0, nil
}

// dropCall forgets the requests of a call that is over, and returns those that the backend still waits for. Requests
// that were guessed to be of this call may be of another, and can still be answered.
func (q *serverRequests) dropCall(c *Call) (open []serverRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, r := range q.pending {
		if r.call == c && !r.guessed {
			delete(q.pending, id)
			if r.round == nil {
				open = append(open, r)
			}
		}
	}
	return open
}

// refuseOf refuses the requests of a call that is over: else the backend would wait for an answer for ever.
func (q *serverRequests) refuseOf(c *Call) {
	for _, r := range q.dropCall(c) {
		r.link.refuse(jsonrpc.Message{ID: r.id, Method: r.method}, "the call that it belonged to is over")
	}
}

// takeAll forgets all of them, and returns those that the backend still waits for.
func (q *serverRequests) takeAll() (open []serverRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.pending {
		if r.round == nil {
			open = append(open, r)
		}
	}
	q.pending = nil
	return open
}

// redirect passes a request on to the client of another call, and returns the call that it was passed on from; nil: the request does not wait any more.
func (q *serverRequests) redirect(id int64, to *Call) (from *Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r, ok := q.pending[id]
	if !ok {
		return nil
	}
	from, r.call = r.call, to
	q.pending[id] = r
	return from
}

// Answer takes a client's answer to a request of a backend, from any connection or
// session of the same principal, if the request's id names the session that it was
// made in: taken says so. Else the answer may be for the session that it came in.
// The error is that of [Session.Send], or a [*Redirect].
func (m *Manager) Answer(ctx context.Context, principal caller.Principal, msg jsonrpc.Message, header http.Header) (taken bool, err error) {
	if msg.Kind != jsonrpc.Response || len(msg.ID) == 0 || msg.ID[0] != '"' {
		return false, nil
	}
	t, ok := ticket.Parse(jsonrpc.String(msg.ID))
	if !ok {
		return false, nil
	}
	s, err := m.findSealed(t, askedSeal, nil, principal)
	switch {
	case errors.Is(err, ErrNotFound):
		return false, nil
	case err != nil:
		return true, err
	case s.Resumes() == nil && s.offers.Load() == 0:
		return false, nil
	}
	s.use.touch()
	return true, s.answer(ctx, msg, header)
}
