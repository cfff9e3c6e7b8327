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

// What follows keeps a backend from asking a client what its revision does not have, or what the
// client has not declared (2026-07-28, Multi Round-Trip Requests; 2025-11-25, Lifecycle, "Capability Negotiation"). Some
// libraries leave that to their users. The client may be away, and then the backend would wait in vain.

// parseClient returns the clientInfo and the capabilities in what a client says of itself, as [Manager.Carrier] gets it: one, a comma, and
// the others. What is not there is nil.
func parseClient(says string) (info, capabilities json.RawMessage) {
	if d := json.NewDecoder(strings.NewReader(says)); d.Decode(&info) == nil {
		says = says[d.InputOffset():]
	}
	if text, ok := strings.CutPrefix(says, ","); ok {
		capabilities = []byte(text)
	}
	return info, capabilities
}

// doesNotKnow refuses a method that no client knows. initialize is what the client has sent, or nil.
func (k *kind) doesNotKnow(initialize []byte, method string) *jsonrpc.Error {
	if k.modern != "" {
		return protocol.DoesNotKnow(nil, method) // its extensions add no requests to clients
	}
	return protocol.DoesNotKnow(k.capabilities(initialize), method)
}

// capabilities returns those that the client has declared, as JSON; nil: they are not known. Those of the clients of a
// carrier do not go with it to another node: there they refuse what they do not know.
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

// mayNotAsk says why a backend must not ask the client something in a call of a method, or nil.
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

// checkInput returns the response in the place of a backend's to a modern client, if that asks the client
// for what it has not declared, or has failed for that, or nil. id is the request's.
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
		required, err := kind.MayAsk(c.capabilities)
		if err == nil {
			known[kind] = true
			return
		}
		refusal = missesCapability(id, fmt.Sprintf("the server asks the client for %.100s: %s", method, err.Message), required)
	})
	return refusal
}

// missesCapability returns the error of a request whose client has not declared what its server needs.
func missesCapability(id []byte, text, required string) []byte {
	e := jsonrpc.Errorf(protocol.CodeMissingCapability, "%s", text)
	e.Data = json.RawMessage(`{"requiredCapabilities":` + required + `}`)
	return jsonrpc.AppendError(nil, id, e)
}

// What servers of older revisions say, in an error or in the result of a tool that has failed, if the client has not
// declared what they need: ours ([protocol.Question.MayAsk]), and, of those that look for themselves, the official SDKs'.
var (
	missingTexts = [][]byte{[]byte("the client has not declared "), []byte("lient does not support ")}
	missingText  = regexp.MustCompile(`(?:the client has not declared|[Cc]lient does not support) (?:listing )?(?:\\*"?(form|url)\\*"? )?(elicitation|sampling|roots)(?:\.(url|form|tools)| (tools))?`)
)

// missing returns the capability for want of which a call has failed, as requiredCapabilities has it, or "". One that the
// client has declared is not missing, whatever the server says.
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

// failureText returns what the failure of a call says, or "".
func failureText(m *jsonrpc.Message) string {
	if m.Error != nil {
		return jsonrpc.String(jsonrpc.Field(m.Error, "message"))
	}
	if string(jsonrpc.Field(m.Result, "isError")) != "true" {
		return ""
	}
	var content []struct{ Text string }
	_ = json.Unmarshal(jsonrpc.Field(m.Result, "content"), &content) // else there is none
	var all []string
	for _, c := range content {
		all = append(all, c.Text)
	}
	return strings.Join(all, " ")
}
