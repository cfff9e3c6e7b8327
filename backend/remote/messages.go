package remote

import (
	"encoding/json"
	"fmt"
	"sync"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// requests are the requests of the client that the server has not answered. A request whose id
// the server may not write back unchanged is sent under another. Its methods may be
// called concurrently.
type requests struct {
	mu   sync.Mutex
	last int                // of the ids of our own
	open map[string]request // by the key of the id that the server knows
}

// A request is one that the server has not answered.
type request struct {
	call  backend.Call // nil for those of Holdfast itself
	id    []byte       // the client's, if the server knows another; or nil
	opens bool         // it is one with which a client begins

	refused error // how the server has refused the client that made it, or nil
}

// add notes a request, and returns it as it is to be sent.
func (r *requests) add(m jsonrpc.Message, call backend.Call) jsonrpc.Message {
	rq := request{call: call, opens: opens(m.Method)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !protocol.PlainID(m.ID) {
		r.last++
		rq.id = m.ID
		own := fmt.Appendf(nil, `"holdfast-id-%d"`, r.last)
		m.Raw, m.ID = m.WithID(own), own
	}
	if r.open == nil {
		r.open = make(map[string]request)
	}
	r.open[string(jsonrpc.Key(m.ID))] = rq
	return m
}

// refuse notes how the server has refused a request, by the key of the id that the server knows.
func (r *requests) refuse(key string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rq, ok := r.open[key]; ok {
		rq.refused = err
		r.open[key] = rq
	}
}

// call returns the call of a request, by the id that the server knows; nil: there is none.
func (r *requests) call(id []byte) backend.Call {
	if id == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open[string(jsonrpc.Key(id))].call
}

// end forgets a request, by the id that the server knows.
func (r *requests) end(id []byte) (rq request, ok bool) {
	key := string(jsonrpc.Key(id))
	r.mu.Lock()
	defer r.mu.Unlock()
	rq, ok = r.open[key]
	delete(r.open, key)
	return rq, ok
}

// cancelled forgets the request that the client cancels, and returns the cancellation with
// the id that the server knows.
func (r *requests) cancelled(m jsonrpc.Message) jsonrpc.Message {
	id := jsonrpc.Field(m.Params, "requestId")
	if id == nil {
		return m
	}
	key := string(jsonrpc.Key(id))
	r.mu.Lock()
	defer r.mu.Unlock()
	if protocol.PlainID(id) {
		delete(r.open, key)
		return m
	}
	for own, rq := range r.open {
		if rq.id == nil || string(jsonrpc.Key(rq.id)) != key {
			continue
		}
		delete(r.open, own)
		if raw, ok := jsonrpc.Set(m.Raw, []byte(own), "params", "requestId"); ok {
			return parsed(raw, m)
		}
	}
	return m
}

// opener returns the initialize request without what the client can do itself when its
// connection is cut (SEP-975): here Holdfast is the client.
func opener(m jsonrpc.Message) (jsonrpc.Message, error) {
	params, ok := without(m.Params, "capabilities", protocol.CapabilityResumable)
	if !ok {
		return m, nil
	}
	return jsonrpc.Parse(jsonrpc.AppendRequest(nil, m.ID, m.Method, params))
}

// withoutKeys returns the response to the first request without the server's promise to honour
// idempotency keys: that is between the server and this client. Holdfast makes its own.
func withoutKeys(m jsonrpc.Message) jsonrpc.Message {
	result, ok := without(m.Result, "capabilities", "experimental", protocol.MetaIdempotencyKey)
	if !ok {
		return m
	}
	return parsed(jsonrpc.AppendResult(nil, m.ID, result), m)
}

// without returns a JSON object without the member at a path, or false if it has none.
func without(object []byte, path ...string) ([]byte, bool) {
	if jsonrpc.Field(object, path...) == nil {
		return object, false
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		return object, false
	}
	if len(path) == 1 {
		delete(members, path[0])
	} else {
		inner, ok := without(members[path[0]], path[1:]...)
		if !ok {
			return object, false
		}
		members[path[0]] = inner
	}
	changed, err := json.Marshal(members)
	return changed, err == nil
}

// parsed parses a message that was made here. otherwise is returned if it is none.
func parsed(raw []byte, otherwise jsonrpc.Message) jsonrpc.Message {
	if m, err := jsonrpc.Parse(raw); err == nil {
		return m
	}
	return otherwise
}
