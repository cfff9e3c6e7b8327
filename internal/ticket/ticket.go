// Package ticket makes the texts by which a client comes back to a request or a stream of a session, over any connection and at any node: tokens
// of requests, ids of tasks, handles, ids of events and of streams. Each has a number in the session, and a mark: part of a MAC under the
// session's secret id. So no such text can be made up without the session's id, and any node that knows the id can check one.
//
// The package is pure: it does not know which node owns a ticket's session, nor its principal.
package ticket

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"holdfast/jsonrpc"
)

// MarkLen is the length of a mark: 96 bits of a MAC, in base64.
const MarkLen = 16

// longest bounds the length of a ticket, in bytes.
const longest = 128

// A Ticket is a text that names a session and a number in it. Its mark is not checked yet ([Ticket.IsFrom]).
type Ticket struct {
	Session string // the session's public name
	Number  uint64
	mark    string
}

// A Maker makes the tickets of a session.
type Maker struct {
	Session string // its public name
	Secret  string // its id
}

// Append appends the ticket of a number. A ticket that was made for one purpose is of no use for
// another; bound is a further value that it is bound to: JSON in any spelling, or nil.
func (m Maker) Append(dst []byte, purpose string, number uint64, bound []byte) []byte {
	dst = append(append(dst, m.Session...), '.')
	dst = appendMark(dst, m.Secret, purpose, number, bound)
	return strconv.AppendUint(dst, number, 36)
}

// Make returns the ticket that Append appends.
func (m Maker) Make(purpose string, number uint64, bound []byte) string {
	return string(m.Append(make([]byte, 0, 64), purpose, number, bound))
}

// Made reports whether a ticket is of the session, for a purpose, and bound to no value.
func (m Maker) Made(t Ticket, purpose string) bool {
	return t.Session == m.Session && t.IsFrom(m.Secret, purpose, nil)
}

// Parse parses a ticket, without checking its mark. It is false for a text that cannot be a ticket.
func Parse(text string) (t Ticket, ok bool) {
	name, rest, ok := strings.Cut(text, ".")
	if !ok || len(rest) <= MarkLen || len(text) > longest {
		return Ticket{}, false
	}
	number, err := strconv.ParseUint(rest[MarkLen:], 36, 64)
	var digits [16]byte
	ok = err == nil && rest[MarkLen:] == string(strconv.AppendUint(digits[:0], number, 36))
	return Ticket{name, number, rest[:MarkLen]}, ok
}

// sessionLen is the length of a session's public name.
const sessionLen = 16

// Is reports whether a text has the form of a ticket.
func Is(text string) bool {
	t, ok := Parse(text)
	return ok && len(t.Session) == sessionLen
}

// IsFrom reports whether the session with the secret id has made the ticket, for the purpose and the value bound. The comparison takes the same
// time for all marks.
func (t Ticket) IsFrom(secret, purpose string, bound []byte) bool {
	return isMark(t.mark, secret, purpose, t.Number, bound)
}

// After returns a text in the form of a ticket that stands for the place after all tickets of a session. Its mark is not valid.
func After(session string) string {
	return session + "." + strings.Repeat("0", MarkLen) + strconv.FormatUint(math.MaxUint64, 36)
}

// appendMark appends the mark for a purpose, a number and a bound value under a secret id.
func appendMark(dst []byte, secret, purpose string, number uint64, bound []byte) []byte {
	text := append(make([]byte, 0, 128), purpose...)
	text = binary.BigEndian.AppendUint64(append(text, 0), number)
	sum := macOf(secret, append(text, jsonrpc.Key(bound)...))
	return base64.RawURLEncoding.AppendEncode(dst, sum[:MarkLen*3/4])
}

func isMark(text, secret, purpose string, number uint64, bound []byte) bool {
	var mark [MarkLen]byte
	return subtle.ConstantTimeCompare([]byte(text), appendMark(mark[:0], secret, purpose, number, bound)) == 1
}

// macOf returns the HMAC-SHA256 of a text (RFC 2104). Package hmac would allocate eight times
// as often.
func macOf(secret string, text []byte) [sha256.Size]byte {
	var key, inner, outer [sha256.BlockSize]byte
	if len(secret) > len(key) {
		sum := sha256.Sum256(append(make([]byte, 0, 512), secret...))
		copy(key[:], sum[:])
	} else {
		copy(key[:], secret)
	}
	for i, c := range key {
		inner[i], outer[i] = c^0x36, c^0x5c
	}
	sum := sha256.Sum256(append(append(make([]byte, 0, 256), inner[:]...), text...))
	return sha256.Sum256(append(append(make([]byte, 0, 128), outer[:]...), sum[:]...))
}
