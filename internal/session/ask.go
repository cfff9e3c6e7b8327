package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file keeps a backend from sending a client requests that its revision does not have, or that need a capability which
// the client has not declared (2026-07-28, Multi Round-Trip Requests; 2025-11-25, Lifecycle, "Capability Negotiation").
// Some libraries leave that check to their users. The client may be away, and the backend would wait in vain.

// parseClient splits the text with which a client describes itself, as [Manager.Carrier] gets it: the clientInfo, a comma, and the capabilities. An absent part is nil.
func parseClient(says string) (info, capabilities json.RawMessage) {
	if d := json.NewDecoder(strings.NewReader(says)); d.Decode(&info) == nil {
		says = says[d.InputOffset():]
	}
	if text, ok := strings.CutPrefix(says, ","); ok {
		capabilities = []byte(text)
	}
	return info, capabilities
}

// doesNotKnow returns the error for a request with a method that the client does not know, or nil. initialize is the client's request, or nil.
func (k *kind) doesNotKnow(initialize []byte, method string) *jsonrpc.Error {
	if k.modern != "" {
		return protocol.DoesNotKnow(nil, method) // its extensions add no requests to clients
	}
	return protocol.DoesNotKnow(k.capabilities(initialize), method)
}

// capabilities returns the capabilities that the client has declared, as JSON; nil: they are not known. A carrier that
// goes to another node loses those of its clients, which then refuse requests themselves.
func (k *kind) capabilities(initialize []byte) []byte {
	switch {
	case k.carrier != nil:
		return k.carrier.capabilities
	case k.modern != "" || initialize == nil:
		return nil
	}
	if declared := jsonrpc.Field(initialize, "params", "capabilities"); declared != nil {
		return declared
	}
	return []byte("{}")
}

// mayNotAsk returns the error for m, a request to the client that the backend must not make in a call of a method, or nil.
func (k *kind) mayNotAsk(initialize []byte, method string, m *jsonrpc.Message) *jsonrpc.Error {
	if k.modern != "" && !protocol.TakesInput(method) {
		return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%s: revision %s has no input for %s", m.Method, k.modern, method)
	}
	capabilities := k.capabilities(initialize)
	if capabilities == nil || !protocol.AsksClient(m.Method) {
		return nil
	}
	_, refusal := protocol.MayAsk(capabilities, m.Method, m.Params)
	if refusal != nil {
		refusal.Message = m.Method + ": " + refusal.Message
	}
	return refusal
}

// checkInput returns the error for a modern client in the place of the backend's response m, if m asks for input that needs
// a capability which the client has not declared, or failed for want of one; else nil. id is the id of the client's request.
func (c *carrier) checkInput(id []byte, m *jsonrpc.Message) (refusal []byte) {
	if c == nil || c.capabilities == nil {
		return nil
	}
	result := m.Result
	if required := missing(c.capabilities, m); required != "" {
		return missesCapability(id, failureText(m), required)
	}
	if !bytes.Contains(result, []byte(protocol.ResultInputRequired)) ||
		jsonrpc.String(jsonrpc.Field(result, "resultType")) != protocol.ResultInputRequired {
		return nil
	}
	known := make(map[protocol.Question]bool) // the kinds of questions that the backend may ask: they are few
	jsonrpc.Each(jsonrpc.Field(result, "inputRequests"), func(_, value []byte) {
		if refusal != nil {
			return
		}
		method := jsonrpc.String(jsonrpc.Field(value, "method"))
		kind := protocol.QuestionOf(method, jsonrpc.Field(value, "params"))
		if known[kind] {
			return
		}
		required, err := kind.MayAsk(c.capabilities)
		if err == nil {
			known[kind] = true
			return
		}
		refusal = missesCapability(id, fmt.Sprintf("the server asks the client for %.100s: %s", method, err.Message), required)
	})
	return refusal
}

// missesCapability returns the error response to a request that needs a capability which its client has not declared.
func missesCapability(id []byte, text, required string) []byte {
	e := jsonrpc.Errorf(protocol.CodeMissingCapability, "%s", text)
	e.Data = json.RawMessage(`{"requiredCapabilities":` + required + `}`)
	return jsonrpc.AppendError(nil, id, e)
}

// Texts of servers of older revisions, in an error or in the result of a tool that has failed, for a capability that the
// client has not declared: ours ([protocol.Question.MayAsk]), and those of the official SDKs that check it themselves.
var (
	missingTexts = [][]byte{[]byte("the client has not declared "), []byte("lient does not support ")}
	missingText  = regexp.MustCompile(`(?:the client has not declared|[Cc]lient does not support) (?:listing )?(?:\\*"?(form|url)\\*"? )?(elicitation|sampling|roots)(?:\.(url|form|tools)| (tools))?`)
)

// missing returns the capability for want of which a call has failed, in the form of requiredCapabilities, or "". A
// capability that the client has declared is not missing, whatever the server says.
func missing(capabilities []byte, m *jsonrpc.Message) (required string) {
	where := m.Result
	if m.Error != nil {
		where = m.Error
	}
	if !bytes.Contains(where, missingTexts[0]) && !bytes.Contains(where, missingTexts[1]) {
		return ""
	}
	text := failureText(m)
	found := missingText.FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	q := protocol.Question{}
	switch found[2] {
	case "elicitation":
		params := `{}`
		if found[1] == "url" || found[3] == "url" {
			params = `{"mode":"url"}`
		}
		q = protocol.QuestionOf(protocol.MethodElicit, []byte(params))
	case "sampling":
		params := `{}`
		if found[3] == "tools" || found[4] == "tools" {
			params = `{"tools":[]}`
		}
		q = protocol.QuestionOf(protocol.MethodSample, []byte(params))
	case "roots":
		q = protocol.QuestionOf(protocol.MethodListRoots, nil)
	}
	required, err := q.MayAsk(capabilities)
	if err == nil {
		return ""
	}
	return required
}

// failureText returns the text of an error, or of the result of a tool that has failed; else "".
func failureText(m *jsonrpc.Message) string {
	if m.Error != nil {
		return jsonrpc.String(jsonrpc.Field(m.Error, "message"))
	}
	if string(jsonrpc.Field(m.Result, "isError")) != "true" {
		return ""
	}
	var content []struct{ Text string }
	_ = json.Unmarshal(jsonrpc.Field(m.Result, "content"), &content) // without content there is no text
	var all []string
	for _, c := range content {
		all = append(all, c.Text)
	}
	return strings.Join(all, " ")
}
