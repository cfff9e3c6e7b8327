package session

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"

	"holdfast/stream"
)

// ErrBadID stands for an event id or stream URL that is garbled, or not of the
// session that it is presented to.
var ErrBadID = errors.New("event id is not one of this session")

// markLen is the length of the mark that makes a stream's name unguessable: 96
// bits of a MAC under the session's secret id, in base64.
const markLen = 16

// StreamName returns a stream's name as clients see it in event ids and URLs.
// Without the session's id nobody can make one up, and any node that knows the
// session can check it.
func (s *Session) StreamName(number uint64) string {
	// A hash of the secret and the number is a MAC here, without HMAC's second
	// pass: what is hashed always has the same length, and the part that is shown
	// is too short to go on from.
	text := append(make([]byte, 0, 64), s.id...)
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(text, number))
	var name [markLen + 13]byte
	base64.RawURLEncoding.Encode(name[:markLen], sum[:markLen*3/4])
	return string(strconv.AppendUint(name[:markLen], number, 36))
}

// AppendEventID appends the event id of an entry: the stream's name, epoch and
// sequence.
func AppendEventID(dst []byte, name string, epoch, seq uint64) []byte {
	dst = append(dst, name...)
	dst = append(dst, '.')
	dst = strconv.AppendUint(dst, epoch, 36)
	dst = append(dst, '.')
	return strconv.AppendUint(dst, seq, 36)
}

// ParseEventID returns the cursor that an event id of this session stands for.
// What follows a tilde only makes the id a new one. The error is [ErrBadID].
func (s *Session) ParseEventID(id string) (stream.Cursor, error) {
	if len(id) > 128 || len(id) < markLen {
		return stream.Cursor{}, ErrBadID
	}
	id, _, _ = strings.Cut(id, "~")
	parts := strings.Split(id[min(markLen, len(id)):], ".")
	if len(id) < markLen || len(parts) != 3 {
		return stream.Cursor{}, ErrBadID
	}
	var n [3]uint64
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 36, 64)
		if err != nil || p != strconv.FormatUint(v, 36) {
			return stream.Cursor{}, ErrBadID
		}
		n[i] = v
	}
	if n[1] == 0 && n[2] > 0 {
		return stream.Cursor{}, ErrBadID // no entry was ever written under epoch 0
	}
	name := id[:markLen+len(parts[0])]
	if subtle.ConstantTimeCompare([]byte(name), []byte(s.StreamName(n[0]))) != 1 {
		return stream.Cursor{}, ErrBadID
	}
	return stream.Cursor{Stream: stream.ID{Session: s.key, Number: n[0]}, Epoch: n[1], Seq: n[2]}, nil
}

// IsStandaloneName reports whether a stream's name is that of a standalone stream.
func IsStandaloneName(name string) bool { return len(name) == markLen+1 && name[markLen] == '0' }

// NameOf returns the part of an event id that names the stream, or "".
func NameOf(id string) string {
	if i := strings.IndexByte(id, '.'); i >= 0 {
		return id[:i]
	}
	return ""
}
