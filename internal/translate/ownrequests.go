package translate

import (
	"sync"
	"time"

	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// ownRequests are our own requests to the server. Its methods may be called concurrently.
type ownRequests struct {
	ids rpc.OwnIDs

	mu      sync.Mutex
	waiting map[string]ownRequest // by their ids
	over    bool
}

// An ownRequest is a request that the server has not answered.
type ownRequest struct {
	answered func(jsonrpc.Message)
	timer    *time.Timer // see [ownRequests.bound]; or nil
}

func newOwnRequests() *ownRequests { return &ownRequests{waiting: make(map[string]ownRequest)} }

// add puts a request on record and returns its id. answered is called with the response; it may be nil.
func (o *ownRequests) add(answered func(jsonrpc.Message)) (id []byte) {
	id = o.newID()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting[string(id)] = ownRequest{answered: answered}
	return id
}

// newID returns an id that no other request has.
func (o *ownRequests) newID() []byte { return o.ids.Next() }

// bound makes a request fail if it is not answered within [answerTimeout]: otherwise a server that never answers would keep it
// for ever. late is called before it fails; it may be nil.
func (o *ownRequests) bound(id []byte, late func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	rq, ok := o.waiting[string(id)]
	if !ok || o.over {
		return
	}
	stopTimer(rq.timer)
	rq.timer = time.AfterFunc(answerTimeout, func() {
		o.mu.Lock()
		_, open := o.waiting[string(id)]
		o.mu.Unlock()
		if !open {
			return
		}
		if late != nil {
			late()
		}
		o.answer(newError(id, jsonrpc.CodeServer, "not answered within %v", answerTimeout))
	})
	o.waiting[string(id)] = rq
}

// answer reports whether a response is to one of these requests, and hands it over.
func (o *ownRequests) answer(m jsonrpc.Message) bool {
	rq, ok := o.take(m.ID)
	if rq.answered != nil {
		rq.answered(m)
	}
	return ok
}

func (o *ownRequests) take(id []byte) (rq ownRequest, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	rq, ok = o.waiting[string(id)]
	delete(o.waiting, string(id))
	stopTimer(rq.timer)
	return rq, ok
}

// fail is answer for a request that the server has not taken.
func (o *ownRequests) fail(id []byte, why error) bool {
	return o.answer(newError(id, jsonrpc.CodeServer, "not delivered: %v", why))
}

// drop forgets a request: its response is not wanted.
func (o *ownRequests) drop(id []byte) { o.take(id) }

// end stops the timers of all requests: the conversation is over.
func (o *ownRequests) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	for _, rq := range o.waiting {
		stopTimer(rq.timer)
	}
}

// stopTimer stops a timer, which may be nil.
func stopTimer(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}
