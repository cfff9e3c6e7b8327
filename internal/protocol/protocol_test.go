package protocol

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestRevisions(t *testing.T) {
	t.Parallel()
	all := Supported()
	if !slices.IsSortedFunc(all, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("not newest first: %q", all)
	}
	for _, r := range all {
		if !Known(r) {
			t.Errorf("%s is not known", r)
		}
	}
	for _, r := range []string{"", "2024-11-04", "2025-06-18 ", "2026-07-28", "latest"} {
		if Known(r) {
			t.Errorf("%q is known", r)
		}
	}
	all[0] = "mine" // the list belongs to the caller
	if !Known(V20251125) || Known("mine") {
		t.Error("a caller changed what is supported")
	}
}

func TestWhatRevisionsHave(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		revision        string
		batches, primes bool
	}{
		{"", true, false}, // not negotiated yet: the oldest revision with Streamable HTTP
		{V20241105, true, false},
		{V20250326, true, false},
		{V20250618, false, false},
		{V20251125, false, true},
		{"2026-07-28", false, true},
	} {
		if got := Batches(test.revision); got != test.batches {
			t.Errorf("%q: batches: %v", test.revision, got)
		}
		if got := Primes(test.revision); got != test.primes {
			t.Errorf("%q: primes: %v", test.revision, got)
		}
	}
}

// The names are canonical keys of an http.Header.
func TestHeadersAreCanonical(t *testing.T) {
	t.Parallel()
	for _, h := range []string{HeaderSession, HeaderVersion, HeaderLastEventID, HeaderMethod, HeaderName, HeaderIdempotencyKey} {
		if c := http.CanonicalHeaderKey(h); h != c {
			t.Errorf("%s is spelt %s", h, c)
		}
	}
}
