package translate

import (
	"crypto/rand"
	"encoding/binary"
	"strconv"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A meta has the members of a modern request's _meta that are about its client and its wishes, as JSON.
type meta struct {
	clientInfo   []byte
	capabilities []byte
	logLevel     []byte
	token        []byte // progressToken
}

// readMeta returns the meta of a modern request.
func readMeta(params []byte) (m meta) {
	jsonrpc.Each(jsonrpc.Field(params, "_meta"), func(name, value []byte) {
		switch string(name) {
		case protocol.MetaClientInfo:
			m.clientInfo = value
		case protocol.MetaClientCapabilities:
			m.capabilities = value
		case protocol.MetaLogLevel:
			m.logLevel = value
		case progressToken:
			if string(value) != "null" { // as some libraries write it for none
				m.token = value
			}
		}
	})
	return m
}

const progressToken = "progressToken"

// legacyParams returns the params of a modern request as a legacy server knows them: its _meta has
// no members of the modern era, and has the token, if that is not nil, in the place of the client's.
func legacyParams(params, token []byte) []byte {
	old := jsonrpc.Field(params, "_meta")
	if old == nil {
		return params
	}
	kept := pick(old, func(name string) bool {
		switch name {
		case protocol.MetaProtocolVersion, protocol.MetaClientInfo, protocol.MetaClientCapabilities, protocol.MetaLogLevel:
			return false
		}
		return true
	})
	if token != nil {
		kept, _ = jsonrpc.Set(kept, token, progressToken)
	}
	return withMeta(params, kept)
}

// withMeta returns an object with another _meta, or, if that is empty, without one.
func withMeta(object, meta []byte) []byte {
	if string(meta) == "{}" {
		return pick(object, func(name string) bool { return name != "_meta" })
	}
	object, _ = jsonrpc.Set(object, meta, "_meta")
	return object
}

// pick returns the object with those of its members that keep wants. Their values stay as
// they are.
func pick(object []byte, keep func(name string) bool) []byte {
	dst := append(make([]byte, 0, len(object)), '{')
	jsonrpc.Each(object, func(name, value []byte) {
		if keep(string(name)) {
			dst = protocol.AppendMember(dst, string(name), value)
		}
	})
	return append(dst, '}')
}

// cacheable are the requests with results that say how long they may be kept (2026-07-28, Caching).
var cacheable = []string{
	protocol.MethodDiscover, "tools/list", "prompts/list", "resources/list", "resources/templates/list", protocol.MethodReadResource,
}

// modernError returns the error of a legacy server as a modern server gives it. uri is the
// URI of the resource that was asked for, as JSON, or nil.
func modernError(failure, uri []byte) []byte {
	if string(jsonrpc.Field(failure, "code")) != "-32002" { // resource not found
		return failure
	}
	failure, _ = jsonrpc.Set(failure, []byte("-32602"), "code")
	if uri == nil || jsonrpc.Field(failure, "data", "uri") != nil {
		return failure
	}
	with, ok := jsonrpc.Set(failure, uri, "data", "uri")
	if !ok { // data is no object
		with, _ = jsonrpc.Set(failure, append(append([]byte(`{"uri":`), uri...), '}'), "data")
	}
	return with
}

// newRequest returns a request, or a notification if the id is nil.
func newRequest(id []byte, method string, params []byte) jsonrpc.Message {
	m := jsonrpc.Message{Kind: jsonrpc.Request, ID: id, Method: method, Params: params}
	if id == nil {
		m.Kind = jsonrpc.Notification
	}
	m.Raw = jsonrpc.AppendRequest(make([]byte, 0, len(params)+len(id)+len(method)+48), id, method, params)
	return m
}

// newResult returns a successful response. A nil result becomes {}.
func newResult(id, result []byte) jsonrpc.Message {
	if result == nil {
		result = []byte("{}")
	}
	return jsonrpc.Message{
		Kind: jsonrpc.Response, ID: id, Result: result,
		Raw: jsonrpc.AppendResult(make([]byte, 0, len(result)+len(id)+40), id, result),
	}
}

// newFailure returns a failed response with an error that is JSON.
func newFailure(id, failure []byte) jsonrpc.Message {
	m := jsonrpc.Message{Kind: jsonrpc.Response, ID: id, Error: failure}
	m.Raw = m.WithID(id)
	return m
}

// newError returns a failed response.
func newError(id []byte, code int, format string, args ...any) jsonrpc.Message {
	raw := jsonrpc.AppendError(nil, id, jsonrpc.Errorf(code, format, args...))
	return jsonrpc.Message{Kind: jsonrpc.Response, ID: id, Error: jsonrpc.Field(raw, "error"), Raw: raw}
}

// about returns a message of our own for the server, with the context and the header of the
// client's message that caused it.
func about(in backend.Inbound, m jsonrpc.Message) backend.Inbound {
	return backend.Inbound{Message: m, Context: in.Context, Header: in.Header}
}

// NewToken returns a progress token for a request of a client that shares a conversation with others. Clients
// cannot guess it: some make a server send progress with a token that they choose, by means that Holdfast
// does not know. It is an integer that fits a float64.
func NewToken() []byte {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return strconv.AppendUint(nil, binary.BigEndian.Uint64(b[:])>>11|1<<52, 10)
}

// key returns an id or a token as the key of a map.
func key(raw []byte) string { return string(jsonrpc.Key(raw)) }
