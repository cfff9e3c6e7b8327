package e2e

import (
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/testport"
)

// TestAuthMetrics has requests that are refused counted.
func TestAuthMetrics(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	admin := testport.Addr(t)
	p := serveGuarded(t, as, "--admin", admin)
	for token, want := range map[string]int{
		"wrong":                                 http.StatusUnauthorized,
		as.Token(authtest.Claims{"aud": p.URL}): http.StatusForbidden,
	} {
		if r := post(t, p.URL, token, "", begins); r.status != want {
			t.Errorf("%d, want %d", r.status, want)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text := textBody(t, resp)
	for _, reason := range []string{"invalid_token", "insufficient_scope"} {
		if !strings.Contains(text, `reason="`+reason+`"`) {
			t.Errorf("%s is not counted", reason)
		}
	}
}
