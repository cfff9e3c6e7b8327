package session

import (
	"bytes"
	"encoding/json"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows keeps a backend from asking a client what its revision does not have, or what the
// client has not declared (2026-07-28, Multi Round-Trip Requests; 2025-11-25, Lifecycle, "Capability Negotiation"). Some
// libraries leave that to their users. The client may be away, and then the backend would wait in vain.

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

// doesNotKnow refuses a method that no client knows. One that has declared an extension may know methods of that.
func (s *Session) doesNotKnow(method string) *jsonrpc.Error {
	capabilities := s.capabilities()
	switch {
	case protocol.AsksClient(method):
		return nil
	case s.modern == "" && strings.HasPrefix(method, "tasks/") && jsonrpc.Field(capabilities, "tasks") != nil:
		return nil // of what the backend has asked the client
	case s.modern == "" && (declares(capabilities, "extensions") || declares(capabilities, "experimental")):
		return nil
	}
	return jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "method not found: the client has declared nothing that has %.100s", method)
}

// declares reports whether a capability is there, and is not empty.
func declares(capabilities []byte, name string) (some bool) {
	jsonrpc.Each(jsonrpc.Field(capabilities, name), func(_, _ []byte) { some = true })
	return some
}

// capabilities returns those that the client has declared, as JSON; nil: they are not known. Those of the clients of a
// carrier do not go with it to another node: there they refuse what they do not know.
func (s *Session) capabilities() []byte {
	if s.carrier != nil {
		return s.carrier.capabilities
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capabilitiesLocked()
}

func (s *Session) capabilitiesLocked() []byte {
	switch {
	case s.carrier != nil:
		return s.carrier.capabilities
	case s.modern != "" || s.backend.initialize == nil:
		return nil
	}
	if declared := jsonrpc.Field(s.backend.initialize, "params", "capabilities"); declared != nil {
		return declared
	}
	return []byte("{}")
}

// mayNotAsk says why a backend must not ask the client of a call something, or nil. s.mu is held.
func (s *Session) mayNotAsk(c *Call, m *jsonrpc.Message) *jsonrpc.Error {
	if s.modern != "" && c != s.standalone && !protocol.TakesInput(c.method) {
		return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%s: revision %s has no input for %s", m.Method, s.modern, c.method)
	}
	capabilities := s.capabilitiesLocked()
	if capabilities == nil || !protocol.AsksClient(m.Method) {
		return nil
	}
	_, refusal := protocol.MayAsk(capabilities, m.Method, m.Params)
	if refusal != nil {
		refusal.Message = m.Method + ": " + refusal.Message
	}
	return refusal
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
