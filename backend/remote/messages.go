package remote

import (
	"encoding/json"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A request is a request that the server has not answered.
type request struct {
	call  backend.Call // nil for requests of Holdfast itself
	opens bool         // it is a request with which a client begins

	refused error // how the server has refused the client that made it, or nil
}

// opener returns the initialize request without the client's capability to resume requests
// (SEP-975): here Holdfast is the client.
func opener(m jsonrpc.Message) (jsonrpc.Message, error) {
	params, ok := without(m.Params, "capabilities", protocol.CapabilityResumable)
	if !ok {
		return m, nil
	}
	return jsonrpc.Parse(jsonrpc.AppendRequest(nil, m.ID, m.Method, params))
}

// withoutKeys returns the response to the first request without the server's promise to honour
// idempotency keys: the server promises that to Holdfast, which makes a promise of its own.
func withoutKeys(m jsonrpc.Message) jsonrpc.Message {
	result, ok := without(m.Result, "capabilities", "experimental", protocol.MetaIdempotencyKey)
	if !ok {
		return m
	}
	return protocol.Parsed(jsonrpc.AppendResult(nil, m.ID, result), m)
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
