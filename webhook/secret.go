package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A Secret is the key that signs webhooks and that their receivers check them with. It
// stays hidden when it is printed or logged.
type Secret struct{ key []byte }

// ErrSecret is the error of [ParseSecret]. Its text says how a secret looks and how to make one.
var ErrSecret = errors.New(`want whsec_ and the base64 of 24 to 64 random bytes; make one with: echo "whsec_$(openssl rand -base64 32)"`)

// ParseSecret parses a secret in the form of Standard Webhooks ("Signature scheme"):
// whsec_ and the base64 of 24 to 64 bytes. The error is [ErrSecret].
func ParseSecret(text string) (Secret, error) {
	encoded, ok := strings.CutPrefix(text, "whsec_")
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return Secret{}, ErrSecret
	}
	return Secret{key}, nil
}

// Key returns the bytes of the key, which must not be changed. They are empty for the
// zero Secret.
func (s Secret) Key() []byte { return s.key }

// Format implements [fmt.Formatter] for all verbs: it hides the key.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "whsec_(hidden)") }
