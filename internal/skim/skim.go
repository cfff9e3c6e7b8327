// Package skim finds out what a message is that is too large to be kept.
package skim

import "holdfast/jsonrpc"

// A Message is written the text of a message, which is one JSON object, and notes its kind and its id.
type Message struct {
	depth int
	text  textState
	value bool // after a colon of the outermost object
	key   []byte
	id    []byte
	kind  kind
}

// A textState is where a Message is: outside of strings, in one, or after a backslash in it.
type textState uint8

const (
	outsideString textState = iota
	inString
	afterBackslash
)

// A kind is what has been found so far.
type kind uint8

const (
	foundNothing  kind = iota
	foundResponse      // a result or an error
	foundMethod        // a request or a notification, whatever else is in it
)

// A longer key is not looked for, and a longer id is not used.
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

// Kind returns the kind of the message, as far as it can be told: a notification is one that has no usable id. ok is
// false if it has neither a method nor a result or an error.
func (s *Message) Kind() (kind jsonrpc.Kind, ok bool) {
	switch {
	case s.kind == foundResponse:
		return jsonrpc.Response, true
	case s.kind == foundMethod && s.ID() != nil:
		return jsonrpc.Request, true
	}
	return jsonrpc.Notification, s.kind == foundMethod
}

// ID returns the id, or nil if the message has none or null.
func (s *Message) ID() []byte {
	m, err := jsonrpc.Parse(append(append([]byte(`{"jsonrpc":"2.0","method":"x","id":`), s.id...), '}'))
	if err != nil || len(s.id) > mostID || m.Kind != jsonrpc.Request {
		return nil
	}
	return m.ID
}
