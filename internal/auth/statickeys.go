package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
)

// keyPrefix begins every static key, so that people and scanners recognize them.
const keyPrefix = "hf_"

// NewKey returns a new static key of 256 random bits, and the line for it in a file of keys.
func NewKey(name string, scopes ...string) (key, line string, err error) {
	for _, word := range append([]string{name}, scopes...) {
		if word == "" || strings.HasPrefix(word, "#") || len(strings.Fields(word)) != 1 || strings.Fields(word)[0] != word {
			return "", "", fmt.Errorf("%q: want a word without spaces", word)
		}
	}
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // it never fails
	key = keyPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
	sum := sha256.Sum256([]byte(key))
	return key, strings.Join(append([]string{name, hex.EncodeToString(sum[:])}, scopes...), " "), nil
}

// Keys are the static keys of a file, as hashes. [Keys.Reload] reads the file again. The methods may be called
// concurrently.
type Keys struct {
	files
	all atomic.Pointer[[]key]
}

type key struct {
	name   string
	hash   [sha256.Size]byte
	scopes []string
}

// OpenKeys reads a file: each line is a name, the SHA-256 of a key in hexadecimal, and the key's
// scopes, with spaces between them. Empty lines and those that begin with # are skipped.
func OpenKeys(file string) (*Keys, error) {
	k := &Keys{files: files{what: "keys", names: []string{file}}}
	k.take = func(texts [][]byte) ([]any, error) {
		all, err := keysOf(file, string(texts[0]))
		if err != nil {
			return nil, err
		}
		k.all.Store(&all)
		return []any{"keys", len(all)}, nil
	}
	if err := k.open(); err != nil {
		return nil, err
	}
	if len(*k.all.Load()) == 0 {
		slog.Warn("the file has no keys: add one with 'holdfast key NAME >>FILE', it is read again when it changes", "file", file)
	}
	return k, nil
}

// keysOf parses the text of a file of keys.
func keysOf(file, text string) (all []key, err error) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		var one key
		if len(f) < 2 {
			return nil, fmt.Errorf("%s:%d: want a name and the SHA-256 of a key, as holdfast key prints them", file, n)
		}
		sum, err := hex.DecodeString(f[1])
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("%s:%d: want the SHA-256 of a key after the name, in hexadecimal, as holdfast key prints it", file, n)
		}
		one.name, one.scopes = f[0], f[2:]
		copy(one.hash[:], sum)
		all = append(all, one)
	}
	return all, nil
}

// verify checks a key. It compares the key with all keys of the file, each in constant time.
func (k *Keys) verify(token string) (*verified, error) {
	sum := sha256.Sum256([]byte(token))
	var found *verified
	for _, one := range *k.all.Load() {
		if subtle.ConstantTimeCompare(sum[:], one.hash[:]) == 1 {
			found = &verified{principal: "key:" + one.name, scopes: one.scopes}
		}
	}
	if found == nil {
		return nil, errors.New("no such key")
	}
	return found, nil
}
