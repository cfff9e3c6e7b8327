package session

import (
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// ownRequests are our own requests to the backend. No client sees their answers. Guarded by Session.mu.
type ownRequests struct {
	waiting map[string]chan jsonrpc.Message // by their ids
	ids     rpc.OwnIDs
}

// add puts a request on record. answer gets its response, and is closed if there will be none.
func (o *ownRequests) add() (id []byte, answer chan jsonrpc.Message) {
	id = o.ids.Next()
	if o.waiting == nil {
		o.waiting = make(map[string]chan jsonrpc.Message)
	}
	answer = make(chan jsonrpc.Message, 1)
	o.waiting[string(id)] = answer
	return id, answer
}

// answer reports whether a response is to a request of ours, and hands it over.
func (o *ownRequests) answer(m *jsonrpc.Message) bool {
	answer := o.waiting[string(m.ID)]
	if answer == nil {
		return false
	}
	o.drop(m.ID)
	answer <- *m
	return true
}

// drop forgets a request.
func (o *ownRequests) drop(id []byte) {
	delete(o.waiting, string(id))
	if len(o.waiting) == 0 {
		o.waiting = nil
	}
}

// endAll ends all requests: they get no response.
func (o *ownRequests) endAll() {
	for _, answer := range o.waiting {
		close(answer)
	}
	o.waiting = nil
}
