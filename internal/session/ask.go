package session

import (
	"bytes"
	"encoding/json"
	"fmt"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows keeps a backend from asking a modern client what the revision does not have, or
// what the client has not declared (2026-07-28, Multi Round-Trip Requests). Some libraries
// leave that to their users.

// capabilitiesOf returns the capabilities of a client as [Manager.Carrier] gets it: what it says
// of itself, a comma, and its capabilities. It is nil if there are none.
func capabilitiesOf(client []byte) []byte {
	if !bytes.HasPrefix(client, []byte(",")) {
		d := json.NewDecoder(bytes.NewReader(client))
		var info json.RawMessage
		if d.Decode(&info) != nil {
			return nil
		}
		client = client[d.InputOffset():]
	}
	capabilities, ok := bytes.CutPrefix(client, []byte(","))
	if !ok {
		return nil
	}
	return bytes.Clone(capabilities)
}

// mayNotAsk says why a backend must not ask the client of a call something, or "". What is
// known of the clients of a carrier does not go with it to another node: there they refuse
// what they do not know.
func (s *Session) mayNotAsk(c *Call, m *jsonrpc.Message) string {
	if s.modern == "" || c == s.standalone {
		return ""
	}
	if !protocol.TakesInput(c.method) {
		return fmt.Sprintf("revision %s has no input for %s", s.modern, c.method)
	}
	if s.carrier == nil || s.carrier.capabilities == nil {
		return ""
	}
	if _, err := protocol.MayAsk(s.carrier.capabilities, m.Method, m.Params); err != nil {
		return err.Message
	}
	return ""
}

// checkInput returns the response in the place of a modern backend's, if that asks the client
// for what it has not declared, or nil. id is the request's.
func (s *Session) checkInput(id, result []byte) (refusal []byte) {
	if s.carrier == nil || s.carrier.capabilities == nil || !bytes.Contains(result, []byte(protocol.ResultInputRequired)) ||
		jsonrpc.String(jsonrpc.Field(result, "resultType")) != protocol.ResultInputRequired {
		return nil
	}
	known := make(map[protocol.Question]bool) // the kinds of questions that it may ask: they are few
	jsonrpc.Each(jsonrpc.Field(result, "inputRequests"), func(_, value []byte) {
		if refusal != nil {
			return
		}
		method := jsonrpc.String(jsonrpc.Field(value, "method"))
		kind := protocol.QuestionOf(method, jsonrpc.Field(value, "params"))
		if known[kind] {
			return
		}
		required, err := kind.MayAsk(s.carrier.capabilities)
		if err == nil {
			known[kind] = true
			return
		}
		e := jsonrpc.Errorf(protocol.CodeMissingCapability, "the server asks the client for %.100s: %s", method, err.Message)
		e.Data = json.RawMessage(`{"requiredCapabilities":` + required + `}`)
		refusal = jsonrpc.AppendError(nil, id, e)
	})
	return refusal
}
