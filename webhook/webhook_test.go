package webhook_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"holdfast/webhook"
)

const secretText = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func TestParseSecret(t *testing.T) {
	t.Parallel()
	encode := func(n int) string { return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, good := range []string{secretText, encode(24), encode(32), encode(64)} {
		if _, err := webhook.ParseSecret(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "whsec_", encode(23), encode(65), strings.TrimPrefix(secretText, "whsec_"), secretText + "=", "whsec_" + strings.Repeat("!", 40),
		strings.TrimRight(encode(25), "="),
	} {
		if _, err := webhook.ParseSecret(bad); !errors.Is(err, webhook.ErrSecret) {
			t.Errorf("%s: got %v", bad, err)
		}
	}
}

// A secret is not printed by accident.
func TestSecretHides(t *testing.T) {
	t.Parallel()
	s, err := webhook.ParseSecret(secretText)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("options", "options", webhook.Options{Secret: s}, "secret", s)
	text := log.String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		text += fmt.Sprintf(verb, s) + fmt.Sprintf(verb, webhook.Options{Secret: s})
	}
	slog.New(slog.NewJSONHandler(&log, nil)).Info("options", "options", webhook.Options{Secret: s}, "secret", s)
	text += log.String()
	key := s.Key()
	for _, form := range []string{secretText[6:], string(key), fmt.Sprintf("%x", key), fmt.Sprint(key[0]) + " " + fmt.Sprint(key[1]), fmt.Sprintf("0x%x", key[0])} {
		if strings.Contains(text, form) {
			t.Errorf("%q is in %s", form, text)
		}
	}
}

func TestParseAllowed(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"", ".", "*", "*.example.com", "https://example.com", "example.com:443", "example.com/hook", "10.0.0.0/33", "10.0.0", "10",
		"256.1.1.1", "0x7f000001.0", "::ffff:10.0.0.0/104", "a b", "example..com", "[::1]",
	} {
		if a, err := webhook.ParseAllowed(bad); err == nil {
			t.Errorf("%q is taken for %v", bad, a)
		}
	}
	for _, good := range []string{"10.0.0.0/8", "fd00::/8", "::1", "fe80::1%eth0", "localhost", "a-b_c.example", "xn--bcher-kva.example"} {
		if _, err := webhook.ParseAllowed(good); err != nil {
			t.Error(err)
		}
	}
}
