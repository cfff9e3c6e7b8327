package protocol

import (
	"fmt"
	"strings"
)

// The places of an idempotency key: a header of the POST (IETF HTTPAPI draft, "The Idempotency-Key
// HTTP Header Field"), or, on transports without headers, the request's params._meta, as a string.
// A server that honours keys says so in capabilities.experimental of its initialize result, under
// the same name.
const (
	HeaderIdempotencyKey = "Idempotency-Key"
	MetaIdempotencyKey   = "holdfast/idempotencyKey"
)

// longestKey is the longest idempotency key, in characters.
const longestKey = 255

// IdempotencyKey returns the key that a header's value gives: a string of
// structured fields (RFC 8941, section 3.3.3), or the key itself without quotes.
func IdempotencyKey(value string) (string, error) {
	key := strings.Trim(value, " \t")
	if len(key) > 0 && key[0] == '"' {
		var ok bool
		if key, ok = unquote(key); !ok {
			return "", fmt.Errorf("%s: %.40q is no quoted string", HeaderIdempotencyKey, value)
		}
	}
	return key, CheckKey(key)
}

// CheckKey returns an error unless an idempotency key has 1 to 255 visible ASCII characters.
func CheckKey(key string) error {
	ok := len(key) > 0 && len(key) <= longestKey
	for i := 0; i < len(key) && ok; i++ {
		ok = key[i] > ' ' && key[i] < 0x7f
	}
	if !ok {
		return fmt.Errorf("an idempotency key has 1 to %d visible ASCII characters", longestKey)
	}
	return nil
}

// unquote returns the value of a string of structured fields.
func unquote(s string) (string, bool) {
	if len(s) < 2 || s[len(s)-1] != '"' {
		return "", false
	}
	s = s[1 : len(s)-1]
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return "", false
		case '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
		}
		b.WriteByte(s[i])
	}
	return b.String(), true
}
