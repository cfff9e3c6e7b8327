// Package jsonrpc parses JSON-RPC 2.0 messages without decoding their payload. A gateway
// needs the id, the method, and the bytes of params, result or error; it does not need
// these as Go values.
//
// [Parse] and [ParseBody] read messages, the Append functions write them, and [Field],
// [Each] and [Set] read and change single members of a payload.
//
// All functions are pure and may be called concurrently. A [Message] points into the bytes
// that it was parsed from, which must not be changed while it is in use.
package jsonrpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// A Kind is the kind of a message.
type Kind uint8

// The kinds of message. The zero Kind is no message.
const (
	Request Kind = iota + 1
	Notification
	Response
)

// String returns the name of the kind, for logs.
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

// A Message is one JSON-RPC message, parsed at its top level only. The slices hold JSON
// text and share the memory of Raw.
type Message struct {
	Kind   Kind
	ID     []byte // a string or an integer; nil for a notification
	Method string // of a request or notification
	Params []byte // nil if absent
	Result []byte // of a successful response, else nil
	Error  []byte // of a failed response, else nil
	Raw    []byte // the whole message, without line breaks
}

// ErrParse is the error of malformed JSON (JSON-RPC 2.0, code -32700).
var ErrParse = errors.New("malformed JSON")

// ErrInvalid is the error of well-formed JSON that is not a JSON-RPC 2.0 message (JSON-RPC 2.0,
// code -32600).
var ErrInvalid = errors.New("not a JSON-RPC 2.0 message")

// MaxName is the maximum size of an id, a progress token and a method, in bytes of JSON.
// They are kept in memory while a request is in flight, and longer.
const MaxName = 1 << 10

// Error codes (JSON-RPC 2.0, section 5.1).
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
	// CodeServer is the first of the codes for errors of an implementation. Holdfast's own errors
	// have this code, unless another code fits.
	CodeServer = -32000
)

// An Error is the error member of a response.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Errorf returns an [Error] with a formatted message.
func Errorf(code int, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Parse parses one message. The error wraps [ErrParse] or [ErrInvalid]. Parse replaces line
// breaks between the tokens of data with spaces, in place, so that Raw is one line, as
// stdio and SSE need it. (Inside strings JSON has no line breaks.)
func Parse(data []byte) (Message, error) {
	p := parser{b: data}
	p.space()
	m, err := p.message()
	if errors.Is(err, ErrParse) {
		return Message{}, err
	}
	p.space()
	if p.i != len(p.b) { // malformed JSON outweighs an invalid message
		return Message{}, fmt.Errorf("%w: text after the message at byte %d", ErrParse, p.i)
	}
	return m, err
}

// ParseBody parses the body of a POST: one message, or, in revisions up to 2025-03-26, a batch of
// messages in an array. The errors are those of [Parse]; an empty batch is invalid.
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

// AppendResult appends the successful response to the request with this id to dst. An
// empty result becomes {}.
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

// AppendError appends the error response to the request with this id to dst. A nil id is
// left out, as MCP requires where the request could not be read (revision 2025-06-18,
// Transports, "Sending Messages to the Server").
func AppendError(dst, id []byte, e *Error) []byte {
	dst = append(dst, `{"jsonrpc":"2.0"`...)
	if id != nil {
		dst = append(dst, `,"id":`...)
		dst = append(dst, id...)
	}
	dst = append(dst, `,"error":`...)
	text, err := json.Marshal(e)
	if err != nil { // Data is not JSON: leave it out.
		text, _ = json.Marshal(&Error{Code: e.Code, Message: e.Message})
	}
	dst = append(dst, text...)
	return append(dst, '}')
}

// AppendRequest appends a request to dst, or a notification if the id is nil. Nil params
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

// WithID returns the text of the message with another id. The message must be a request or
// a response.
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

// Key returns an id or a progress token in a canonical form, to be compared or used as the key of a
// map: "a\/b" and "a/b" are the same id, and so are 1 and 1.0. If raw is canonical, Key returns raw
// itself.
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

// Object returns a JSON object with one member, with a string as its value.
func Object(name, value string) []byte {
	dst := append(appendString([]byte{'{'}, name), ':')
	return append(appendString(dst, value), '}')
}

// Quote returns s as a JSON string.
func Quote(s string) []byte { return appendString(nil, s) }
