package protocol

import (
	"bytes"

	"holdfast/jsonrpc"
)

// MaxURI bounds a URI of a resource in a request, in bytes: subscriptions, and the server of each resource, are
// kept for as long as a session.
const MaxURI = 8 << 10

// NamesLongURI reports whether a request of one of the methods with URIs has a URI longer than [MaxURI].
func NamesLongURI(m *jsonrpc.Message) bool {
	if len(m.Params) <= MaxURI {
		return false
	}
	switch m.Method {
	case MethodReadResource, MethodSubscribe, MethodUnsubscribe:
		return isLongURI(jsonrpc.Field(m.Params, "uri"))
	case "completion/complete":
		return isLongURI(jsonrpc.Field(m.Params, "ref", "uri"))
	case MethodSubscriptions:
		return hasLongURI(jsonrpc.Field(m.Params, "notifications", "resourceSubscriptions"))
	}
	return false
}

// isLongURI reports whether a URI, as raw JSON, is too long. A value that is not a string counts with its length as JSON.
func isLongURI(raw []byte) bool {
	return len(raw) > MaxURI+2 && (raw[0] != '"' || len(jsonrpc.String(raw)) > MaxURI)
}

// hasLongURI reports whether a list, as raw JSON, has a string that is too long for a URI.
func hasLongURI(list []byte) bool {
	for len(list) > MaxURI {
		from := bytes.IndexByte(list, '"')
		if from < 0 {
			return false
		}
		to := from + 1
		for ; to < len(list) && list[to] != '"'; to++ {
			if list[to] == '\\' {
				to++
			}
		}
		to = min(to+1, len(list))
		if isLongURI(list[from:to]) {
			return true
		}
		list = list[to:]
	}
	return false
}
