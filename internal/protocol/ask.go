package protocol

import (
	"strings"

	"holdfast/jsonrpc"
)

// The requests of a server to a client. Since revision 2026-07-28 an InputRequiredResult carries
// them.
const (
	MethodElicit    = "elicitation/create"
	MethodSample    = "sampling/createMessage"
	MethodListRoots = "roots/list"
)

// TakesInput reports whether a server may ask its client for input during a request of a method
// (2026-07-28, Multi Round-Trip Requests, "Supported Requests").
func TakesInput(method string) bool {
	return method == MethodCallTool || method == MethodGetPrompt || method == MethodReadResource
}

// AsksClient reports whether a method is one of the requests that a server makes to a client with the capability for it.
func AsksClient(method string) bool {
	return method == MethodElicit || method == MethodSample || method == MethodListRoots
}

// DoesNotKnow returns an error if a client of revision 2025-11-25 or earlier with these capabilities does not know a
// method, or else nil. A client that has declared an extension may know the extension's methods.
func DoesNotKnow(capabilities []byte, method string) *jsonrpc.Error {
	switch {
	case AsksClient(method), method == MethodPing:
		return nil
	case strings.HasPrefix(method, "tasks/") && jsonrpc.Field(capabilities, "tasks") != nil:
		return nil // of tasks that the client runs for the server
	case declares(capabilities, "extensions") || declares(capabilities, "experimental"):
		return nil
	}
	return jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "method not found: the client has declared nothing that has %.100s", method)
}

// declares reports whether a capability exists, and is not empty.
func declares(capabilities []byte, name string) (some bool) {
	jsonrpc.Each(jsonrpc.Field(capabilities, name), func(_, _ []byte) { some = true })
	return some
}

// MayAsk returns an error if a client with these capabilities must not be sent a request, and the
// capability that it has not declared; or else nil (2026-07-28, Multi Round-Trip Requests).
func MayAsk(capabilities []byte, method string, params []byte) (required string, _ *jsonrpc.Error) {
	return QuestionOf(method, params).MayAsk(capabilities)
}

// A Question has the facts about a request to a client that decide whether the client may be asked.
type Question struct {
	method     string
	url, tools bool // the request is about a URL; it has tools
}

// QuestionOf returns the question of a request.
func QuestionOf(method string, params []byte) Question {
	q := Question{method: method}
	switch method {
	case MethodElicit:
		q.url = jsonrpc.String(jsonrpc.Field(params, "mode")) == "url"
	case MethodSample:
		q.tools = jsonrpc.Field(params, "tools") != nil || jsonrpc.Field(params, "toolChoice") != nil
	}
	return q
}

// MayAsk is the function [MayAsk] for a question.
func (q Question) MayAsk(capabilities []byte) (required string, _ *jsonrpc.Error) {
	has := func(path ...string) bool { return jsonrpc.Field(capabilities, path...) != nil }
	refused := func(code int, what, required string) (string, *jsonrpc.Error) {
		return required, jsonrpc.Errorf(code, "the client has not declared %s", what)
	}
	switch q.method {
	case MethodElicit:
		switch {
		case !has("elicitation"):
			return refused(jsonrpc.CodeMethodNotFound, "elicitation", `{"elicitation":{}}`)
		case q.url && !has("elicitation", "url"):
			return refused(jsonrpc.CodeInvalidParams, "elicitation.url", `{"elicitation":{"url":{}}}`)
		case !q.url && has("elicitation", "url") && !has("elicitation", "form"): // {} stands for forms
			return refused(jsonrpc.CodeInvalidParams, "elicitation.form", `{"elicitation":{"form":{}}}`)
		}
	case MethodSample:
		switch {
		case !has("sampling"):
			return refused(jsonrpc.CodeMethodNotFound, "sampling", `{"sampling":{}}`)
		case q.tools && !has("sampling", "tools"):
			return refused(jsonrpc.CodeInvalidParams, "sampling.tools", `{"sampling":{"tools":{}}}`)
		}
	case MethodListRoots:
		if !has("roots") {
			return refused(jsonrpc.CodeMethodNotFound, "roots", `{"roots":{}}`)
		}
	default:
		return `{}`, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "revision %s has no such request to a client", V20260728)
	}
	return "", nil
}
