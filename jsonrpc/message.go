// Package jsonrpc classifies JSON-RPC 2.0 messages without decoding what they
// carry. A gateway needs an id, a method and the place of the payload; it has
// no use for the payload's Go value.
//
// Everything here is pure: bytes in, values out. All of it may run
// concurrently. Nothing is copied: a [Message] points into the bytes it was
// parsed from, which must not change while it is in use.
package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Kind says what a message is.
type Kind uint8

// The three kinds of message. The zero Kind is no message at all.
const (
	Request Kind = iota + 1
	Notification
	Response
)

// String names the kind for logs and test failures.
func (k Kind) String() string {
	switch k {
	case Request:
		return "request"
	case Notification:
		return "notification"
	case Response:
		return "response"
	}
	return "invalid"
}

// A Message is one JSON-RPC message, taken apart at its top level only.
type Message struct {
	Kind   Kind
	ID     []byte // raw JSON: a string or a number; nil for a notification
	Method string // of a request or notification
	Params []byte // raw JSON; nil if absent
	Result []byte // raw JSON of a successful response; nil otherwise
	Error  []byte // raw JSON of a failed response; nil otherwise
	Raw    []byte // the whole message; contains no line break
}

// ErrParse is what malformed JSON gives (JSON-RPC 2.0, -32700).
var ErrParse = errors.New("malformed JSON")

// ErrInvalid is what well-formed JSON gives that is no JSON-RPC 2.0 message
// (-32600).
var ErrInvalid = errors.New("not a JSON-RPC 2.0 message")

// MaxName bounds an id, a progress token and a method, in bytes of JSON: these are
// kept for as long as a request is in flight, and longer.
const MaxName = 1 << 10

// Standard and MCP error codes.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
	// CodeServer is the first of the implementation-defined server errors. What
	// Holdfast itself has to say of a call carries it, as a rule.
	CodeServer = -32000
)

// An Error is the error member of a response.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error makes an *Error a Go error.
func (e *Error) Error() string { return e.Message }

// Errorf makes an [Error] with a formatted message.
func Errorf(code int, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Parse takes one message apart. The error wraps [ErrParse] or [ErrInvalid].
// Line breaks between tokens of data become spaces, in place, so that Raw fits
// on one line of stdio or SSE; inside strings JSON has none.
func Parse(data []byte) (Message, error) {
	p := parser{b: data}
	p.space()
	m, err := p.message()
	if errors.Is(err, ErrParse) {
		return Message{}, err
	}
	p.space()
	if p.i != len(p.b) { // outweighs an invalid message
		return Message{}, fmt.Errorf("%w: text after the message at byte %d", ErrParse, p.i)
	}
	return m, err
}

// ParseBody takes a request body apart: one message, or a batch of them (an
// array, which revision 2025-03-26 and earlier have). Errors are those of
// [Parse]; an empty batch is invalid.
func ParseBody(data []byte) (msgs []Message, batch bool, err error) {
	p := parser{b: data}
	p.space()
	if p.i >= len(p.b) || p.b[p.i] != '[' {
		m, err := Parse(data)
		if err != nil {
			return nil, false, err
		}
		return []Message{m}, false, nil
	}
	// Malformed JSON anywhere outweighs an invalid message somewhere.
	probe := parser{b: data, i: p.i}
	if err := probe.value(0); err != nil {
		return nil, true, err
	}
	probe.space()
	if probe.i != len(data) {
		return nil, true, fmt.Errorf("%w: text after the batch at byte %d", ErrParse, probe.i)
	}
	p.i++
	p.space()
	for p.i < len(p.b) && p.b[p.i] != ']' {
		m, err := p.message()
		if err != nil {
			return nil, true, err
		}
		msgs = append(msgs, m)
		p.space()
		if p.i < len(p.b) && p.b[p.i] == ',' {
			p.i++
			p.space()
		}
	}
	if len(msgs) == 0 {
		return nil, true, fmt.Errorf("%w: empty batch", ErrInvalid)
	}
	return msgs, true, nil
}

// AppendResult appends the response that gives result to the request id.
func AppendResult(dst, id, result []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = append(dst, id...)
	dst = append(dst, `,"result":`...)
	if len(result) == 0 {
		result = []byte("{}")
	}
	dst = append(dst, result...)
	return append(dst, '}')
}

// AppendError appends the response that fails the request id. A nil id is left
// out, as MCP wants it where no request could be made out (revision 2025-06-18,
// Transports, "Sending Messages to the Server").
func AppendError(dst, id []byte, e *Error) []byte {
	dst = append(dst, `{"jsonrpc":"2.0"`...)
	if id != nil {
		dst = append(dst, `,"id":`...)
		dst = append(dst, id...)
	}
	dst = append(dst, `,"error":`...)
	text, err := json.Marshal(e)
	if err != nil { // Data was no JSON: say the rest.
		text, _ = json.Marshal(&Error{Code: e.Code, Message: e.Message})
	}
	dst = append(dst, text...)
	return append(dst, '}')
}

// AppendRequest appends a request, or with a nil id a notification. Nil params
// are left out.
func AppendRequest(dst, id []byte, method string, params []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0"`...)
	if id != nil {
		dst = append(dst, `,"id":`...)
		dst = append(dst, id...)
	}
	dst = append(dst, `,"method":`...)
	dst = appendString(dst, method)
	if len(params) > 0 {
		dst = append(dst, `,"params":`...)
		dst = append(dst, params...)
	}
	return append(dst, '}')
}

func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			text, _ := json.Marshal(s) // a string always marshals
			return append(dst, text...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// WithID returns the message's bytes with another id in the place of its own.
// The message must have one.
func (m *Message) WithID(id []byte) []byte {
	switch {
	case m.Kind == Request:
		return AppendRequest(make([]byte, 0, len(m.Raw)+len(id)), id, m.Method, m.Params)
	case m.Error != nil:
		dst := append(make([]byte, 0, len(m.Raw)+len(id)), `{"jsonrpc":"2.0","id":`...)
		dst = append(dst, id...)
		dst = append(dst, `,"error":`...)
		dst = append(dst, m.Error...)
		return append(dst, '}')
	}
	return AppendResult(make([]byte, 0, len(m.Raw)+len(id)), id, m.Result)
}

// Key returns a raw id, or progress token, in the one spelling that all spellings
// of the same value share: "a\/b" and "a/b" are one id, and so are 1 and 1.0. It
// is raw itself where that is so already.
func Key(raw []byte) []byte {
	if len(raw) == 0 {
		return raw
	}
	if raw[0] == '"' {
		if bytes.IndexByte(raw, '\\') < 0 {
			return raw
		}
		return append(append([]byte{'"'}, String(raw)...), '"')
	}
	if bytes.ContainsAny(raw, ".eE") {
		if f, err := strconv.ParseFloat(string(raw), 64); err == nil {
			return strconv.AppendFloat(nil, f, 'f', -1, 64)
		}
	}
	return raw
}

// Object returns an object with one member, a string.
func Object(name, value string) []byte {
	dst := append(appendString([]byte{'{'}, name), ':')
	return append(appendString(dst, value), '}')
}

// Quote returns a string as JSON.
func Quote(s string) []byte { return appendString(nil, s) }
