// Package likeness says when two requests are one request made twice: by the HTTP client of a host, by the host, or by its model. It
// keeps other nodes' hints of calls that may come again. internal/again decides about such a request. See
// docs/decisions/0053-calls-that-come-again.md.
package likeness

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"sync"

	"holdfast/internal/feature/handofftext"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A Digest is a digest of the parts of requests that are compared. It is the same on all nodes. The zero value is no digest,
// and equals none.
type Digest [16]byte

// A Likeness has the values by which two requests of a tool are compared.
type Likeness struct {
	Sum   uint64 // of the request and its id, as its client knows it; valid on this node
	Asked Digest // of the tool, its arguments, and the host's ids of its own conversation
	Named Digest // the same, with the host's own id of the call; zero: the host gives none
}

// IsZero reports whether the request has no likeness.
func (l *Likeness) IsZero() bool { return l.Asked == Digest{} }

// IsNamed reports whether the host gives both calls the same id of its own.
func (l *Likeness) IsNamed(other *Likeness) bool {
	return l.Named != (Digest{}) && l.Named == other.Named
}

// callIDs are the members of _meta in which hosts give a call an id of their own, which stays the same when they make it again.
var callIDs = []string{
	"claudecode/toolUseId", // Claude Code
	"callId",               // Codex
}

// talkIDs are the members of _meta in which hosts name their conversation that a call belongs to.
var talkIDs = []string{
	"agent-session-id", // goose
	"sessionId",        // Codex
	"threadId",         // Codex
}

// largeText is the size, in bytes, beyond which the memory of a text is not used again.
const largeText = 8 << 10

// texts are buffers for the texts of digests.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// Of returns the likeness of a request with a sum. It is zero for requests other than calls of the server's tools, and for a call that
// continues another call, or asks for a task. more are further members of _meta that may have the host's id of a call, after callIDs.
func Of(m *jsonrpc.Message, sum uint64, more []string) (l Likeness) {
	if m.Method != protocol.MethodCallTool {
		return l
	}
	var tool, arguments, meta []byte
	other := false
	jsonrpc.Each(m.Params, func(name, value []byte) {
		switch string(name) {
		case "name":
			tool = value
		case "arguments":
			arguments = value
		case "_meta":
			meta = value
		case "task", "requestState", "inputResponses":
			other = true
		}
	})
	if other || len(tool) == 0 || len(tool) > jsonrpc.MaxName || tool[0] != '"' || handofftext.IsTool(jsonrpc.String(tool)) {
		return l
	}
	buf := texts.Get().(*[]byte)
	text := (*buf)[:0]
	text = append(text, tool...)
	text = appendAlike(append(text, 0), arguments, 0)
	if len(meta) > 2 {
		for _, name := range talkIDs {
			text = appendNamed(text, meta, name)
		}
	}
	l = Likeness{Sum: sum, Asked: DigestOf(text)}
	if name, value := hostsID(meta, more); name != "" {
		text = append(append(append(text, 1), name...), value...)
		l.Named = DigestOf(text)
	}
	if cap(text) <= largeText {
		*buf = text
		texts.Put(buf)
	}
	return l
}

// hostsID returns the id that a host gives a call, as JSON, and the name of its member, or "".
func hostsID(meta []byte, more []string) (name string, value []byte) {
	if len(meta) <= 2 {
		return "", nil
	}
	for _, names := range [][]string{callIDs, more} {
		for _, name := range names {
			if v := jsonrpc.Field(meta, name); len(v) > 2 && v[0] == '"' || len(v) > 0 && strings.IndexByte("-0123456789", v[0]) >= 0 {
				return name, v
			}
		}
	}
	return "", nil
}

// appendNamed appends a member of an object, if the object has it.
func appendNamed(text, of []byte, name string) []byte {
	if v := jsonrpc.Field(of, name); v != nil {
		text = append(append(append(text, 1), name...), v...)
	}
	return text
}

// DigestOf returns the digest of a text.
func DigestOf(text []byte) Digest {
	sum := sha256.Sum256(text)
	return Digest(sum[:16])
}

// PlaceOf returns the digest of a place, of a kind, in which requests are compared. Requests in different places are never alike.
func PlaceOf(kind string, parts ...string) (d Digest) {
	text := []byte(kind)
	for _, part := range parts {
		text = append(binary.AppendUvarint(text, uint64(len(part))), part...)
	}
	return DigestOf(text)
}

// In returns the digest in a place. It is zero if either is zero.
func (d Digest) In(place Digest) Digest {
	if d == (Digest{}) || place == (Digest{}) {
		return Digest{}
	}
	var both [2 * len(d)]byte
	copy(both[:], place[:])
	copy(both[len(d):], d[:])
	return DigestOf(both[:])
}

// deepest is the depth of arguments down to which the order of members is ignored: a model that asks again may write them in another order.
const deepest = 4

// mostMembers is how many members an object may have for their order to be ignored.
const mostMembers = 64

// appendAlike appends a JSON value, so that values that differ only in white space, or in the order of members, have the same
// text. Values that are equal otherwise, such as with other escapes, may have different texts.
func appendAlike(dst, raw []byte, depth int) []byte {
	if depth >= deepest || len(raw) == 0 || raw[0] != '{' {
		return appendTight(dst, raw)
	}
	type member struct{ name, value []byte }
	var few [8]member
	all := few[:0]
	jsonrpc.Each(raw, func(name, value []byte) {
		all = append(all, member{name, value})
	})
	if len(all) > mostMembers {
		return appendTight(dst, raw)
	}
	slices.SortStableFunc(all, func(a, b member) int {
		return cmp.Compare(string(a.name), string(b.name))
	})
	dst = append(dst, '{')
	for _, m := range all {
		dst = append(binary.AppendUvarint(dst, uint64(len(m.name))), m.name...)
		dst = append(appendAlike(dst, m.value, depth+1), ',')
	}
	return append(dst, '}')
}

// appendTight appends a JSON value without white space around its parts.
func appendTight(dst, raw []byte) []byte {
	text, escaped := false, false
	for _, c := range raw {
		switch {
		case escaped:
			escaped = false
		case c == '\\':
			escaped = text
		case c == '"':
			text = !text
		case !text && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			continue
		}
		dst = append(dst, c)
	}
	return dst
}
