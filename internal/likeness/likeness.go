// Package likeness says when two requests are one that was made twice: by the HTTP client of a host, by the host, or by its model. It
// keeps what other nodes have told of calls that may come again. What becomes of such a request is internal/again's.
// See docs/decisions/0053-calls-that-come-again.md.
package likeness

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"sync"

	"holdfast/internal/feature/handoff"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A Digest stands for what two requests are compared by. It is the same on all nodes. The zero value stands for nothing, and is
// compared with nothing.
type Digest [16]byte

// A Likeness is what two requests of a tool are compared by.
type Likeness struct {
	Sum   uint64 // of the request and its id, as its client knows it; of this node
	Asked Digest // of the tool, its arguments, and what the host says of its own conversation
	Named Digest // the same, with the host's own id of the call; zero: it gives none
}

// IsZero reports whether the likeness is of nothing.
func (l *Likeness) IsZero() bool { return l.Asked == Digest{} }

// IsNamed reports whether the host gives both calls one id of its own.
func (l *Likeness) IsNamed(other *Likeness) bool {
	return l.Named != (Digest{}) && l.Named == other.Named
}

// callIDs are the members of _meta in which hosts give a call an id of their own, which stays the same when they make it again.
var callIDs = []string{
	"claudecode/toolUseId", // Claude Code
	"callId",               // Codex
}

// talkIDs are the members of _meta in which hosts say which of their conversations a call belongs to.
var talkIDs = []string{
	"agent-session-id", // goose
	"sessionId",        // Codex
	"threadId",         // Codex
}

// largeText is how long a text is, in bytes, whose memory is not used again.
const largeText = 8 << 10

// texts are what digests are made of.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// Of returns the likeness of a request, whose sum is known. It is zero for all but calls of tools of the server, and for one that
// goes on with another, or is to become a task. more are members of _meta in which the host's id of a call may be, besides callIDs.
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
	if other || len(tool) == 0 || len(tool) > jsonrpc.MaxName || tool[0] != '"' || handoff.IsTool(jsonrpc.String(tool)) {
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

// hostsID returns the id that a host gives a call, as JSON, and under which name, or "".
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

// appendNamed appends a member of an object, if that has one of the name.
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

// PlaceOf returns the place in which two requests are compared, of a kind: those of two places are never alike.
func PlaceOf(kind string, parts ...string) (d Digest) {
	text := []byte(kind)
	for _, part := range parts {
		text = append(binary.AppendUvarint(text, uint64(len(part))), part...)
	}
	return DigestOf(text)
}

// In returns the digest of something in a place.
func (d Digest) In(place Digest) Digest {
	if d == (Digest{}) || place == (Digest{}) {
		return Digest{}
	}
	var both [2 * len(d)]byte
	copy(both[:], place[:])
	copy(both[len(d):], d[:])
	return DigestOf(both[:])
}

// deepest is how deep in arguments the order of members is of no account: a model that asks again may write them in another one.
const deepest = 4

// mostMembers is how many members an object may have, for their order to be of no account.
const mostMembers = 64

// appendAlike appends a JSON value, so that two values have the same text that differ in white space, or in the order of members.
// Other values may have two texts.
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
