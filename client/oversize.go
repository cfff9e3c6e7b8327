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

// A glance is what is seen of a message that goes by without being kept: what it
// is, and its id. It is an io.Writer of the message, which is one JSON object.
type glance struct {
	depth  int
	quoted bool // within a string
	escape bool // after a backslash
	value  bool // after a colon of the outermost object
	key    []byte
	id     []byte
	method bool // it asks or tells something
	answer bool // it has a result or an error
}

// What is longer is no key that counts, and no id.
const (
	mostGlanceKey = 16
	mostGlanceID  = 1 << 10
)

// Write implements io.Writer.
func (g *glance) Write(p []byte) (int, error) {
	for _, b := range p {
		g.next(b)
	}
	return len(p), nil
}

func (g *glance) next(b byte) {
	was := g.quoted
	switch {
	case g.escape:
		g.escape = false
	case g.quoted && b == '\\':
		g.escape = true
	case b == '"':
		g.quoted = !g.quoted
	case g.quoted:
	case b == '{', b == '[':
		g.depth++
	case b == '}', b == ']':
		g.depth--
	}
	if g.depth != 1 {
		return
	}
	switch {
	case !was && b == ',':
		g.key, g.value = nil, false
	case !was && b == ':':
		g.value = true
		switch string(g.key) {
		case `"method"`:
			g.method = true
		case `"result"`, `"error"`:
			g.answer = true
		}
	case g.value && string(g.key) == `"id"` && len(g.id) <= mostGlanceID:
		g.id = append(g.id, b)
	case !g.value && (was || b == '"') && len(g.key) <= mostGlanceKey:
		g.key = append(g.key, b)
	}
}

// of returns the id, if there is one that can be: JSON, but null.
func (g *glance) of() []byte {
	m, err := jsonrpc.Parse(append(append([]byte(`{"jsonrpc":"2.0","method":"x","id":`), g.id...), '}'))
	if err != nil || len(g.id) > mostGlanceID || m.Kind != jsonrpc.Request {
		return nil
	}
	return m.ID
}
