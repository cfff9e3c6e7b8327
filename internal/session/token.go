package session

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"

	"holdfast/jsonrpc"
)

// What a seal is for. One that was made for one purpose, or as a stream's name,
// is of no use for another.
const (
	tokenSeal = "holdfast resume token"
	askedSeal = "holdfast request id"
)

// seal returns the mark that only this session can make for a number and an id
// (raw JSON, in any spelling; nil if there is none): 96 bits of a MAC under the
// session's secret id, in base64.
func (s *Session) seal(purpose string, number uint64, id []byte) string {
	return sealUnder(s.id, purpose, number, id)
}

func sealUnder(secret, purpose string, number uint64, id []byte) string {
	text := append(make([]byte, 0, 64), purpose...)
	text = binary.BigEndian.AppendUint64(append(text, 0), number)
	sum := macOf(secret, append(text, jsonrpc.Key(id)...))
	return base64.RawURLEncoding.EncodeToString(sum[:markLen*3/4])
}

// macOf returns the HMAC-SHA256 of a text (RFC 2104). Package hmac makes an object of its own
// for that, and allocates eight times as often.
func macOf(secret string, text []byte) [sha256.Size]byte {
	var key, inner, outer [sha256.BlockSize]byte
	if len(secret) > len(key) {
		sum := sha256.Sum256([]byte(secret))
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

// sealed reports whether a mark is that of the number and the id.
func (s *Session) sealed(mark, purpose string, number uint64, id []byte) bool {
	return isSealed(s.id, mark, purpose, number, id)
}

func isSealed(secret, mark, purpose string, number uint64, id []byte) bool {
	return subtle.ConstantTimeCompare([]byte(mark), []byte(sealUnder(secret, purpose, number, id))) == 1
}

// appendSealed appends the text that names the session and the number, with their
// mark.
func (s *Session) appendSealed(dst []byte, purpose string, number uint64, id []byte) []byte {
	dst = append(append(dst, s.key...), '.')
	dst = append(dst, s.seal(purpose, number, id)...)
	return strconv.AppendUint(dst, number, 36)
}

// parseSealed takes such a text apart. The mark is still to be checked.
func parseSealed(text string) (name, mark string, number uint64, ok bool) {
	name, rest, ok := strings.Cut(text, ".")
	if !ok || len(rest) <= markLen || len(text) > 128 {
		return "", "", 0, false
	}
	number, err := strconv.ParseUint(rest[markLen:], 36, 64)
	var digits [16]byte
	ok = err == nil && rest[markLen:] == string(strconv.AppendUint(digits[:0], number, 36))
	return name, rest[:markLen], number, ok
}

// token returns the secret that is enough to resume a request.
func (s *Session) token(number uint64, id []byte) string {
	return string(s.appendSealed(make([]byte, 0, 64), tokenSeal, number, id))
}

// Token returns the secret by which a request of the session can be resumed, if its
// client knows how to. The stream is the one of the request's call; id is raw JSON.
func (s *Session) Token(number uint64, id []byte) (token string, ok bool) {
	if !s.Resumable() {
		return "", false
	}
	return s.token(number, id), true
}

// askedID returns the id, as raw JSON, under which the client gets a request of
// the backend. One that can resume requests may answer from elsewhere, and the id
// says where to.
func (s *Session) askedID(number int64) []byte {
	return s.askedIDIn(nil, number)
}

// askedIDIn is askedID for a request that belongs to a call: if that is a task of 2025-11-25,
// the client may answer from another session.
func (s *Session) askedIDIn(c *Call, number int64) []byte {
	if !s.Resumable() && (c == nil || c.legacyTask() == nil) {
		return strconv.AppendInt(nil, number, 10)
	}
	return append(s.appendSealed([]byte{'"'}, askedSeal, uint64(number), nil), '"')
}

// parseAskedID is its counterpart.
func (s *Session) parseAskedID(id []byte) (number int64, ok bool) {
	text := string(jsonrpc.Key(id))
	if id[0] == '"' {
		text = jsonrpc.String(id) // some clients answer with the id as a string
	}
	name, mark, n, ok := parseSealed(text)
	if !s.Resumable() && (!ok || !s.offersTasks.Load()) {
		number, err := strconv.ParseInt(text, 10, 64)
		return number, err == nil
	}
	return int64(n), ok && name == s.Name() && s.sealed(mark, askedSeal, n, nil)
}

// Seal returns a text that names a stream of the session and that only the session can have
// made, for a purpose and for what it is bound to: any JSON string.
func (s *Session) Seal(purpose string, number uint64, bound []byte) string {
	return string(s.appendSealed(make([]byte, 0, 64), purpose, number, bound))
}

// IsSeal reports whether a text has the form that [Session.Seal] gives it.
func IsSeal(text string) bool {
	name, _, _, ok := parseSealed(text)
	return ok && len(name) == 16
}

// FindSeal returns the session and the stream that a text of [Session.Seal] names, if it is
// the principal's. The error is [ErrNotFound], whatever the reason, a [*Redirect] if
// the session is not on this node, or that of a store which can't tell.
func (m *Manager) FindSeal(purpose, text string, bound []byte, principal Principal) (*Session, uint64, error) {
	name, mark, number, ok := parseSealed(text)
	if !ok {
		return nil, 0, ErrNotFound
	}
	s, err := m.findSealed(name, principal, func(secret string) bool {
		return isSealed(secret, mark, purpose, number, bound)
	})
	if err != nil {
		return nil, 0, err
	}
	s.Touch()
	return s, number, nil
}
