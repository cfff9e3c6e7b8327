package mcptest

import (
	"encoding/json"
	"fmt"
	"strings"

	"holdfast/jsonrpc"
)

// Modern is the revision that has no sessions.
const Modern = "2026-07-28"

// Parse parses a message that a test has written.
func Parse(text string) jsonrpc.Message {
	m, err := jsonrpc.Parse([]byte(text))
	if err != nil {
		panic(err)
	}
	return m
}

// Initialized is the notification that a client sends after the answer to initialize.
const Initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// Initialize returns the request that begins a session, with the id 0.
func Initialize(revision, capabilities string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"mcptest","version":"1"}}}`,
		revision, capabilities)
}

// Request returns a request. id is a number or a text; params may be "".
func Request(id any, method, params string) string {
	if params == "" {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q}`, encoded(id), method)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, encoded(id), method, params)
}

// Note returns a notification. params may be "".
func Note(method, params string) string {
	if params == "" {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":%q}`, method)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)
}

// Call returns a call of a tool with arguments. more are further members of the params, as `"_meta":{}`.
func Call(id any, tool, arguments string, more ...string) string {
	members := append([]string{fmt.Sprintf(`"name":%q,"arguments":%s`, tool, arguments)}, more...)
	return Request(id, "tools/call", "{"+strings.Join(members, ",")+"}")
}

// ModernRequest returns a request of revision 2026-07-28. capabilities are those of the client, as an object. more are further members of
// the params, as `"name":"echo"`.
func ModernRequest(id any, method, capabilities string, more ...string) string {
	meta := fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientInfo":{"name":"mcptest","version":"1"},`+
		`"io.modelcontextprotocol/clientCapabilities":%s}`, Modern, capabilities)
	return Request(id, method, "{"+strings.Join(append(more, meta), ",")+"}")
}

// Result returns the response to a request.
func Result(to jsonrpc.Message, result string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, to.ID, result)
}

// Text returns the response to a call: a result with a text.
func Text(to jsonrpc.Message, text string) string {
	return Result(to, `{"content":[{"type":"text","text":`+encoded(text)+`}]}`)
}

// Error returns the response to a request that fails.
func Error(to jsonrpc.Message, code int, message string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}`, to.ID, code, encoded(message))
}

func encoded(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // a test gave a value that has no JSON
	}
	return string(text)
}
