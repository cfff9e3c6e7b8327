// Package skim finds the kind and the id of a message that is too large to keep.
package skim

import "holdfast/jsonrpc"

// A Message notes the kind and the id of a message. The text of the message, one JSON object, is written to it.
type Message struct {
	depth int
	text  textState
	value bool // after a colon of the outermost object
	key   []byte
	id    []byte
	kind  kind
}

// A textState is the state of a Message: outside of strings, in a string, or after a backslash in it.
type textState uint8

const (
	outsideString textState = iota
	inString
	afterBackslash
)

// A kind is the kind of message that was found so far.
type kind uint8

const (
	foundNothing  kind = iota
	foundResponse      // a result or an error
	foundMethod        // a request or a notification, with any other members
)

// Bounds of keys and ids, in bytes. Longer keys are not of interest, and a longer id is not used.
const (
	mostKey = 16
	mostID  = 1 << 10
)

// Write implements io.Writer.
func (s *Message) Write(p []byte) (int, error) {
	for _, b := range p {
		s.next(b)
	}
	return len(p), nil
}

// next takes one byte.
func (s *Message) next(b byte) {
	was := s.text
	switch {
	case was == afterBackslash:
		s.text = inString
	case was == inString && b == '\\':
		s.text = afterBackslash
	case was == inString && b == '"':
		s.text = outsideString
	case was == inString:
	case b == '"':
		s.text = inString
	case b == '{', b == '[':
		s.depth++
	case b == '}', b == ']':
		s.depth--
	}
	if s.depth != 1 {
		return
	}
	switch {
	case was == outsideString && b == ',':
		s.key, s.value = nil, false
	case was == outsideString && b == ':':
		s.value = true
		switch string(s.key) {
		case `"method"`:
			s.kind = foundMethod
		case `"result"`, `"error"`:
			s.kind = max(s.kind, foundResponse)
		}
	case s.value && string(s.key) == `"id"` && len(s.id) <= mostID:
		s.id = append(s.id, b)
	case !s.value && (was != outsideString || b == '"') && len(s.key) <= mostKey:
		s.key = append(s.key, b)
	}
}

// Kind returns the kind of the message, as far as it can be told: a message with a method but no usable id is a
// notification. ok is false if the message has no method, result or error.
func (s *Message) Kind() (kind jsonrpc.Kind, ok bool) {
	switch {
	case s.kind == foundResponse:
		return jsonrpc.Response, true
	case s.kind == foundMethod && s.ID() != nil:
		return jsonrpc.Request, true
	}
	return jsonrpc.Notification, s.kind == foundMethod
}

// ID returns the id, or nil if the message has no usable id.
func (s *Message) ID() []byte {
	m, err := jsonrpc.Parse(append(append([]byte(`{"jsonrpc":"2.0","method":"x","id":`), s.id...), '}'))
	if err != nil || len(s.id) > mostID || m.Kind != jsonrpc.Request {
		return nil
	}
	return m.ID
}
