package protocol

import (
	"strings"
	"testing"
)

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 255)
	for value, want := range map[string]string{
		`"a"`: "a", `a`: "a", ` "a" `: "a", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`: "8e03978e-40d5-43dd-bc93-6894a57f9324",
		`"a\"b\\c"`: `a"b\c`, `a\b`: `a\b`, long: long, `"` + long + `"`: long, `!~`: "!~",
		// "": refused
		``: "", `""`: "", `"`: "", `"a`: "", `"a"b"`: "", `"a\"`: "", `"a\b"`: "", `"a";p=1`: "", `a b`: "", `"a b"`: "",
		"a\x00": "", "\"a\x7f\"": "", `"é"`: "", long + "k": "", `"` + long + `k"`: "",
	} {
		key, err := IdempotencyKey(value)
		if (err == nil) != (want != "") || err == nil && key != want {
			t.Errorf("%q: got %q, %v, want %q", value, key, err, want)
		}
	}
}
