package client

import (
	"fmt"

	"holdfast/jsonrpc"
)

// An oversize is the end of a connection because the server does not take messages
// as large as one that was written.
type oversize struct{ raw []byte }

// Error implements error.
func (o *oversize) Error() string {
	return fmt.Sprintf("the server does not take a message as large as this, of %d bytes", len(o.raw))
}

// A scanner finds the kind and the id of a message that is too large to be stored. The
// message, one JSON object, is written to it.
type scanner struct {
	depth int
	text  textState
	value bool // after a colon of the outermost object
	key   []byte
	id    []byte
	kind  scannedKind
}

// A textState is where a scanner is: outside of strings, in one, or after a backslash in it.
type textState uint8

const (
	outsideString textState = iota
	inString
	afterBackslash
)

// A scannedKind is what a scanner has found so far.
type scannedKind uint8

const (
	foundNothing  scannedKind = iota
	foundResponse             // a result or an error
	foundMethod               // a request or a notification, whatever else is in it
)

// A longer key is not looked for, and a longer id is not used.
const (
	mostScannedKey = 16
	mostScannedID  = 1 << 10
)

// Write implements io.Writer.
func (s *scanner) Write(p []byte) (int, error) {
	for _, b := range p {
		s.next(b)
	}
	return len(p), nil
}

// next takes one byte.
func (s *scanner) next(b byte) {
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
	case s.value && string(s.key) == `"id"` && len(s.id) <= mostScannedID:
		s.id = append(s.id, b)
	case !s.value && (was != outsideString || b == '"') && len(s.key) <= mostScannedKey:
		s.key = append(s.key, b)
	}
}

// messageID returns the id, or nil if the message has none or null.
func (s *scanner) messageID() []byte {
	m, err := jsonrpc.Parse(append(append([]byte(`{"jsonrpc":"2.0","method":"x","id":`), s.id...), '}'))
	if err != nil || len(s.id) > mostScannedID || m.Kind != jsonrpc.Request {
		return nil
	}
	return m.ID
}
