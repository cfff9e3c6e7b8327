package ticket

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
)

// ErrBadEvent is the error for an event id or stream URL that is garbled, or of another session.
var ErrBadEvent = errors.New("event id is not one of this session")

// longestEvent bounds the length of an event id, in bytes.
const longestEvent = 192

// An event id is the stream's name, and the epoch and the sequence of an entry. It may end with a tilde and a text that only makes it a new id,
// and then with a tilde and the sealed JSON-RPC id of the stream's call.

// An Event is a parsed event id.
type Event struct {
	Number, Epoch, Seq uint64 // the stream, and the place in it
	Call               []byte // the JSON-RPC id of its request; nil if the event id does not have it
}

// StreamName returns a stream's name as clients see it in event ids and URLs. A name cannot be made up without the session's secret id.
func StreamName(secret string, number uint64) string {
	// A hash of the secret and the number is a MAC here, without HMAC's second pass: for a
	// session the hashed text always has the same length, and the part of the sum that is
	// shown is too short to extend the hash from it.
	text := append(make([]byte, 0, 512), secret...)
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(text, number))
	var name [MarkLen + 13]byte
	base64.RawURLEncoding.Encode(name[:MarkLen], sum[:MarkLen*3/4])
	return string(strconv.AppendUint(name[:MarkLen], number, 36))
}

// AppendEvent appends the event id of an entry: the stream's name, epoch and
// sequence.
func AppendEvent(dst []byte, name string, epoch, seq uint64) []byte {
	dst = append(dst, name...)
	dst = append(dst, '.')
	dst = strconv.AppendUint(dst, epoch, 36)
	dst = append(dst, '.')
	return strconv.AppendUint(dst, seq, 36)
}

// mostNamed bounds, in bytes, the JSON-RPC id that an event id names.
const mostNamed = 45

// ofCall is the purpose of the mark of a JSON-RPC id in an event id.
const ofCall = "holdfast call of an event"

// Tail returns the end of the ids of a stream's events. It has id, the JSON-RPC id of the stream's only request, so that a client gets an answer to it
// when nothing else is known of the call any more. The tail is "" for an empty or long id.
func Tail(secret string, number uint64, id []byte) string {
	if len(id) == 0 || len(id) > mostNamed {
		return ""
	}
	tail := appendMark(append(make([]byte, 0, 96), '~'), secret, ofCall, number, id)
	return string(base64.RawURLEncoding.AppendEncode(tail, id))
}

// cutTail returns the JSON-RPC id in the tail of an event id; nil: it has no tail. It is false if the mark is wrong.
func cutTail(secret, event string, number uint64) (id []byte, ok bool) {
	i := strings.LastIndexByte(event, '~')
	if i < 0 || len(event)-i-1 <= MarkLen {
		return nil, true
	}
	text := event[i+1 : i+1+MarkLen]
	id, err := base64.RawURLEncoding.Strict().DecodeString(event[i+1+MarkLen:])
	return id, err == nil && isMark(text, secret, ofCall, number, id)
}

// ParseEvent parses an event id of the session with the secret id. The error is [ErrBadEvent].
func ParseEvent(secret, id string) (Event, error) {
	if len(id) > longestEvent || len(id) < MarkLen {
		return Event{}, ErrBadEvent
	}
	whole := id
	id, _, _ = strings.Cut(id, "~")
	parts := strings.Split(id[min(MarkLen, len(id)):], ".")
	if len(id) < MarkLen || len(parts) != 3 {
		return Event{}, ErrBadEvent
	}
	var n [3]uint64
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 36, 64)
		if err != nil || p != strconv.FormatUint(v, 36) {
			return Event{}, ErrBadEvent
		}
		n[i] = v
	}
	if n[1] == 0 && n[2] > 0 {
		return Event{}, ErrBadEvent // no entry was ever written under epoch 0
	}
	name := id[:MarkLen+len(parts[0])]
	if subtle.ConstantTimeCompare([]byte(name), []byte(StreamName(secret, n[0]))) != 1 {
		return Event{}, ErrBadEvent
	}
	call, ok := cutTail(secret, whole, n[0])
	if !ok {
		return Event{}, ErrBadEvent
	}
	return Event{n[0], n[1], n[2], call}, nil
}

// IsStandalone reports whether a stream's name is that of a standalone stream.
func IsStandalone(name string) bool { return len(name) == MarkLen+1 && name[MarkLen] == '0' }

// NameOf returns the part of an event id that names the stream, or "".
func NameOf(id string) string {
	if i := strings.IndexByte(id, '.'); i >= 0 {
		return id[:i]
	}
	return ""
}
