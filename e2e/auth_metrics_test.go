package e2e

import (
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testport"
)

// TestAuthMetrics checks that the metrics count refused requests by reason.
func TestAuthMetrics(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	admin := testport.Addr(t)
	p := serveGuarded(t, as, "--admin", admin)
	for token, want := range map[string]int{
		"wrong":                                 http.StatusUnauthorized,
		as.Token(authtest.Claims{"aud": p.URL}): http.StatusForbidden,
	} {
		if r := post(t, p.URL, token, "", begins); r.Status != want {
			t.Errorf("%d, want %d", r.Status, want)
		}
	}
	figures := figuresOf(t, admin)
	for _, reason := range []string{"invalid_token", "insufficient_scope"} {
		if !strings.Contains(figures, `reason="`+reason+`"`) {
			t.Errorf("%s is not counted", reason)
		}
	}
}

// figuresOf returns the metrics of a program, as text.
func figuresOf(t *testing.T, admin string) string {
	t.Helper()
	r := mcptest.Must(mcptest.Exchange(t.Context(), http.MethodGet, "http://"+admin+"/metrics", ""))(t)
	return r.Body
}
