package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// keyPrefix begins every static key, so that people and scanners know one.
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

// Keys are the static keys of a file, as hashes. The file is read again when it changes. Its
// methods may be called concurrently.
type Keys struct {
	file string

	mu     sync.Mutex
	all    []key
	looked time.Time   // when the file was last looked at
	seen   fs.FileInfo // of what was read
}

type key struct {
	name   string
	hash   [sha256.Size]byte
	scopes []string
}

// lookEvery is how often the file is looked at, at most.
const lookEvery = time.Second

// OpenKeys reads a file: each line is a name, the SHA-256 of a key in hexadecimal, and the key's
// scopes, with spaces between them. Empty lines and those that begin with # are skipped.
func OpenKeys(file string) (*Keys, error) {
	k := &Keys{file: file, looked: time.Now()}
	if err := k.read(); err != nil {
		return nil, err
	}
	return k, nil
}

// read reads the file. k.mu is held, or k is not in use.
func (k *Keys) read() error {
	info, err := os.Stat(k.file)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(k.file)
	if err != nil {
		return err
	}
	k.seen = info // what is wrong is told once
	var all []key
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		var one key
		if len(f) < 2 {
			return fmt.Errorf("%s:%d: want a name and the SHA-256 of a key, as holdfast key prints them", k.file, n)
		}
		sum, err := hex.DecodeString(f[1])
		if err != nil || len(sum) != sha256.Size {
			return fmt.Errorf("%s:%d: want the SHA-256 of a key after the name, in hexadecimal", k.file, n)
		}
		one.name, one.scopes = f[0], f[2:]
		copy(one.hash[:], sum)
		all = append(all, one)
	}
	k.all = all
	return nil
}

// current returns the keys, of the file as it is now. A file that is wrong or away changes nothing.
func (k *Keys) current() []key {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.looked) < lookEvery {
		return k.all
	}
	k.looked = time.Now()
	info, err := os.Stat(k.file)
	if err != nil || os.SameFile(info, k.seen) && info.ModTime().Equal(k.seen.ModTime()) && info.Size() == k.seen.Size() {
		return k.all
	}
	if err := k.read(); err != nil {
		slog.Error("keys not changed: the file is wrong", "error", err)
	} else {
		slog.Info("keys read", "file", k.file, "keys", len(k.all))
	}
	return k.all
}

// verify checks a key. All are compared, each in constant time.
func (k *Keys) verify(token string) (*verified, error) {
	sum := sha256.Sum256([]byte(token))
	var found *verified
	for _, one := range k.current() {
		if subtle.ConstantTimeCompare(sum[:], one.hash[:]) == 1 {
			found = &verified{principal: "key:" + one.name, scopes: one.scopes}
		}
	}
	if found == nil {
		return nil, errors.New("no such key")
	}
	return found, nil
}
