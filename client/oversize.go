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
	depth    int
	quoted   bool // within a string
	escape   bool // after a backslash
	value    bool // after a colon of the outermost object
	key      []byte
	id       []byte
	method   bool // it is a request or a notification
	response bool // it has a result or an error
}

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
	was := s.quoted
	switch {
	case s.escape:
		s.escape = false
	case s.quoted && b == '\\':
		s.escape = true
	case b == '"':
		s.quoted = !s.quoted
	case s.quoted:
	case b == '{', b == '[':
		s.depth++
	case b == '}', b == ']':
		s.depth--
	}
	if s.depth != 1 {
		return
	}
	switch {
	case !was && b == ',':
		s.key, s.value = nil, false
	case !was && b == ':':
		s.value = true
		switch string(s.key) {
		case `"method"`:
			s.method = true
		case `"result"`, `"error"`:
			s.response = true
		}
	case s.value && string(s.key) == `"id"` && len(s.id) <= mostScannedID:
		s.id = append(s.id, b)
	case !s.value && (was || b == '"') && len(s.key) <= mostScannedKey:
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
