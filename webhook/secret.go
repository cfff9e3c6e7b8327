package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
)

// A Secret is a key that signs webhooks, and that their receivers check them
// with. It does not show itself when it is printed.
type Secret struct{ key []byte }

// ErrSecret says what a secret looks like.
var ErrSecret = errors.New(`want whsec_ and the base64 of 24 to 64 random bytes; make one with: echo "whsec_$(openssl rand -base64 32)"`)

// ParseSecret reads a secret as Standard Webhooks serializes it ("Signature
// scheme"): whsec_ and the base64 of 24 to 64 bytes. The error is [ErrSecret].
func ParseSecret(text string) (Secret, error) {
	encoded, ok := strings.CutPrefix(text, "whsec_")
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return Secret{}, ErrSecret
	}
	return Secret{key}, nil
}

// Format implements [fmt.Formatter], for all verbs.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "whsec_(hidden)") }
