package session

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"

	"holdfast/jsonrpc"
	"holdfast/stream"
)

// ErrBadID stands for an event id or stream URL that is garbled, or not of the
// session that it is presented to.
var ErrBadID = errors.New("event id is not one of this session")

// markLen is the length of the mark that makes a stream's name unguessable: 96
// bits of a MAC under the session's secret id, in base64.
const markLen = 16

// mostEventID bounds the length of an event id, in bytes.
const mostEventID = 192

// StreamName returns a stream's name as clients see it in event ids and URLs, and what the ids of its events end with.
// Without the session's id nobody can make one up, and any node that knows the
// session can check it.
func (s *Session) StreamName(number uint64) (name, tail string) {
	return streamName(s.id, number), s.eventTail(number)
}

func streamName(id string, number uint64) string {
	// A hash of the secret and the number is a MAC here, without HMAC's second
	// pass: of a session what is hashed always has the same length, and the part that is shown
	// is too short to go on from.
	text := append(make([]byte, 0, 512), id...)
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

// An event id may end with a tilde and what only makes it a new one, and then with a tilde and the sealed JSON-RPC id of its call.

// mostNamed bounds, in bytes, the JSON-RPC id that an event id names.
const mostNamed = 45

// eventSeal is what a seal of the JSON-RPC id in an event id is for.
const eventSeal = "holdfast call of an event"

// eventTail returns what the ids of a stream's events end with: the JSON-RPC id of the stream's call, so that a client is told
// what it waits for where nothing else is known of the call any more. It is "" for calls of several requests, those that have no
// response, and those whose id is long.
func (s *Session) eventTail(number uint64) string {
	if number == standalone || s.single {
		return ""
	}
	id := requestOf(s, number)
	if id == "" || len(id) > mostNamed {
		return ""
	}
	tail := make([]byte, 0, 96)
	tail = append(append(tail, '~'), s.seal(eventSeal, number, []byte(id))...)
	return string(base64.RawURLEncoding.AppendEncode(tail, []byte(id)))
}

// requestOf returns the JSON-RPC id of the request of a stream's call; "": there are several, or it is not known.
func requestOf(s *Session, number uint64) string {
	if c := s.streams.call(number); c != nil {
		c.mu.Lock()
		var ids []string
		if len(c.pending) > 0 {
			ids = c.pendingIDs()
		}
		c.mu.Unlock()
		switch len(ids) {
		case 0:
		case 1:
			return ids[0]
		default:
			return ""
		}
	}
	at := stream.Cursor{Stream: stream.ID{Session: s.key, Number: number}}
	_, next, err := s.m.store.Bounds(s.m.ctx, at.Stream)
	if err != nil || next < 2 {
		return ""
	}
	var end [1]stream.Entry
	at.Seq = next - 2
	got, err := s.m.store.Read(s.m.ctx, at, end[:0])
	if err != nil || len(got) == 0 || !got[0].Last || jsonrpc.Field(got[0].Data, "method") != nil {
		return ""
	}
	return string(jsonrpc.Field(got[0].Data, "id"))
}

// cutTail takes the tail off an event id: the JSON-RPC id in it, nil if it has none. It is false for one that is not sealed.
func cutTail(sessionID, event string, number uint64) (id []byte, ok bool) {
	i := strings.LastIndexByte(event, '~')
	if i < 0 || len(event)-i-1 <= markLen {
		return nil, true
	}
	mark := event[i+1 : i+1+markLen]
	id, err := base64.RawURLEncoding.Strict().DecodeString(event[i+1+markLen:])
	return id, err == nil && isSealed(sessionID, mark, eventSeal, number, id)
}

// Forgotten returns the JSON-RPC id that an event id of the session names, at a cursor, if its call is of an earlier life of the
// session: nothing is known of that.
func (s *Session) Forgotten(event string, at stream.Cursor) (id []byte) {
	id, ok := cutTail(s.id, event, at.Stream.Number)
	if !ok || at.Stream.Number == standalone || !isBefore(s, at) {
		return nil
	}
	return id
}

// ParseEventID returns the cursor that an event id of this session stands for.
// The error is [ErrBadID].
func (s *Session) ParseEventID(id string) (stream.Cursor, error) {
	if len(id) > mostEventID || len(id) < markLen {
		return stream.Cursor{}, ErrBadID
	}
	whole := id
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
	if subtle.ConstantTimeCompare([]byte(name), []byte(streamName(s.id, n[0]))) != 1 {
		return stream.Cursor{}, ErrBadID
	}
	if _, ok := cutTail(s.id, whole, n[0]); !ok {
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
