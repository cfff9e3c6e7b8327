// Package sessionid seals into the id of a session the data that any node needs to go on with it: when it began, a digest of
// its principal, its server, and the params of initialize, which have the revision. So a session is revived from its id alone.
//
// An id is text of the URL's base64 alphabet, which is visible ASCII, as Mcp-Session-Id has to be (2025-11-25,
// Transports, "Session Management"):
//
//	version (1 byte) · key id (4) · salt (16, random) · AES-256-GCM of the claims, with its tag (16)
//
// Each id has a key of its own, which HKDF derives from a key of the ring and the salt. So no nonce is used twice,
// however many ids a ring seals. A made-up id costs one decryption, which compares in constant time. A client
// cannot tell it from an expired id, or one with a key that is gone.
//
// docs/decisions/0046-sealed-ids.md says how much an id's length reveals, and the consequences of a lost key.
package sessionid

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"
)

// MaxLen bounds the length of an id, in bytes: no other text is decrypted.
const MaxLen = 4096

const (
	version  = 1
	saltLen  = 16
	keyIDLen = 4
	headLen  = 1 + keyIDLen + saltLen
	tagLen   = 16
)

// purpose binds the keys of ids to this use and version: it is HKDF's info.
const purpose = "holdfast session id, version 1"

// Claims are the data that are sealed in an id.
type Claims struct {
	// Began is when the session began, to the second.
	Began time.Time
	// Server is the name of the server in a configuration of several; "" if there is only one.
	Server string
	// Principal is the digest of the session's principal: [DigestOf].
	Principal Digest
	// Initialize is the params of the client's initialize, as JSON, shortened by [Fit].
	Initialize []byte
}

// A Digest identifies a principal.
type Digest [16]byte

// DigestOf returns the digest of a principal's text.
func DigestOf(principal string) (d Digest) {
	sum := sha256.Sum256([]byte("holdfast principal\x00" + principal))
	copy(d[:], sum[:])
	return d
}

// Is reports whether a digest is that of a principal's text, in constant time.
func (d Digest) Is(principal string) bool {
	of := DigestOf(principal)
	return subtle.ConstantTimeCompare(d[:], of[:]) == 1
}

// A Ring has the keys of ids: the first seals, and all open. Its methods may be called concurrently.
type Ring struct{ keys atomic.Pointer[[]Key] }

// NewRing returns a ring with keys, at least one.
func NewRing(keys []Key) *Ring {
	r := &Ring{}
	r.Set(keys)
	return r
}

// Set replaces the keys. There must be at least one.
func (r *Ring) Set(keys []Key) { r.keys.Store(&keys) }

// Keys returns the keys.
func (r *Ring) Keys() []Key { return slices.Clone(*r.keys.Load()) }

// MayBe reports whether a text has a length that an id can have.
func MayBe(id string) bool {
	return len(id) > base64.RawURLEncoding.EncodedLen(headLen+tagLen) && len(id) <= MaxLen
}

// Seal returns a new id with claims. Two ids are never the same.
func (r *Ring) Seal(c *Claims) (id string) {
	k := &(*r.keys.Load())[0]
	text := make([]byte, headLen, 512)
	text[0] = version
	copy(text[1:], k.id())
	_, _ = rand.Read(text[1+keyIDLen:]) // Read never fails
	text = k.aead(text[1+keyIDLen:headLen]).Seal(text, noNonce, c.append(nil), text[:headLen])
	return base64.RawURLEncoding.EncodeToString(text)
}

// Open returns the claims of an id that a key of the ring has sealed.
func (r *Ring) Open(id string) (c Claims, ok bool) {
	if len(id) > MaxLen {
		return c, false
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if err != nil || len(text) < headLen || text[0] != version {
		return c, false
	}
	head := text[:headLen]
	for i := range *r.keys.Load() {
		k := &(*r.keys.Load())[i]
		if subtle.ConstantTimeCompare(k.id(), head[1:1+keyIDLen]) != 1 {
			continue
		}
		plain, err := k.aead(head[1+keyIDLen:]).Open(nil, noNonce, text[headLen:], head)
		return c, err == nil && c.parse(plain)
	}
	return c, false
}

// noNonce is the nonce of every id: each id has a key of its own.
var noNonce = make([]byte, 12)

// aead returns the cipher for the id with this salt.
func (k *Key) aead(salt []byte) cipher.AEAD {
	key, err := hkdf.Key(sha256.New, k[:], salt, purpose, 32)
	if err != nil {
		panic(err) // it fails only for longer keys
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the same
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return aead
}

// append appends the encoded claims.
func (c *Claims) append(text []byte) []byte {
	text = binary.AppendUvarint(text, uint64(max(c.Began.Unix(), 0)))
	text = binary.AppendUvarint(text, uint64(len(c.Server)))
	text = append(text, c.Server...)
	text = append(text, c.Principal[:]...)
	return append(text, pack(c.Initialize)...)
}

// parse decodes claims, and reports whether text has the form of claims.
func (c *Claims) parse(text []byte) bool {
	began, n := binary.Uvarint(text)
	if n <= 0 || began > 1<<40 {
		return false
	}
	c.Began, text = time.Unix(int64(began), 0), text[n:]
	size, n := binary.Uvarint(text)
	if n <= 0 || size > uint64(len(text)-n) {
		return false
	}
	c.Server, text = string(text[n:n+int(size)]), text[n+int(size):]
	if len(text) < len(c.Principal) {
		return false
	}
	text = text[copy(c.Principal[:], text):]
	var ok bool
	c.Initialize, ok = unpack(text)
	return ok
}
