package sessionid

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
)

// A Key seals and opens ids: 256 random bits. It is a secret.
type Key [32]byte

// NewKey returns a new key.
func NewKey() (k Key) {
	_, _ = rand.Read(k[:]) // Read never fails
	return k
}

// Text returns the key as a file of keys has it.
func (k *Key) Text() string { return hex.EncodeToString(k[:]) }

// In reports whether the key is one of several.
func (k *Key) In(all []Key) bool {
	return slices.ContainsFunc(all, func(one Key) bool { return subtle.ConstantTimeCompare(one[:], k[:]) == 1 })
}

// String hides the key from logs.
func (k Key) String() string { return "a session key" }

// GoString hides the key, too.
func (k Key) GoString() string { return k.String() }

// id returns the name of the key in an id.
func (k *Key) id() []byte {
	sum := sha256.Sum256(append([]byte("holdfast session key id\x00"), k[:]...))
	return sum[:keyIDLen]
}

// ParseKeys parses a file of keys: one in each line, of 64 hexadecimal digits. Blank lines, and lines that begin with #,
// are left out. An error quotes no key.
func ParseKeys(text []byte) (keys []Key, err error) {
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		var k Key
		if n, err := hex.Decode(k[:], line[:min(len(line), 2*len(k))]); err != nil || n != len(k) || len(line) != 2*len(k) {
			return nil, fmt.Errorf("line %d: a session key is %d hexadecimal digits, as openssl rand -hex %d makes them", i+1, 2*len(k), len(k))
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("there is no session key in it: write a line of %d hexadecimal digits, as openssl rand -hex %d makes them", 2*len(Key{}), len(Key{}))
	}
	return keys, nil
}
