package ticket

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"strings"
	"testing"
)

func TestMacIsHMAC(t *testing.T) {
	for _, secret := range []string{"", "a", strings.Repeat("s", 22), strings.Repeat("s", 64), strings.Repeat("s", 65), strings.Repeat("s", 200)} {
		for _, size := range []int{0, 1, 55, 64, 200, 1000} {
			text := bytes.Repeat([]byte("x"), size)
			want := hmac.New(sha256.New, []byte(secret))
			want.Write(text)
			if got := macOf(secret, text); !hmac.Equal(got[:], want.Sum(nil)) {
				t.Errorf("macOf a secret of %d bytes and a text of %d is not their HMAC", len(secret), size)
			}
		}
	}
}
