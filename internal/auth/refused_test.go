package auth

import (
	"net/http"
	"testing"

	"holdfast/internal/auth/authtest"
)

// Policy.Refused gets the principal of a refused request if the token proves it, and else none.
func TestRefusedPrincipal(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	type told struct {
		reason, principal string
		status            int
	}
	var got []told
	call := endpoint(t, as, func(p *Policy) {
		p.Refused = func(r *http.Request, reason string, status int) {
			got = append(got, told{reason, Principal(r), status})
		}
	})
	for _, c := range []struct {
		token string
		want  told
	}{
		{"", told{"no_token", "", 401}},
		{"abc", told{"invalid_token", "", 401}},
		{as.Token(authtest.Claims{"aud": "https://other.example.com", "scope": "mcp"}), told{"invalid_token", "", 401}},
		{as.Token(authtest.Claims{"aud": resource + "/mcp", "scope": "x"}), told{"insufficient_scope", as.URL + " ada", 403}},
	} {
		got = nil
		if w := call(c.token); w.Code != c.want.status || len(got) != 1 || got[0] != c.want {
			t.Errorf("%d, told %+v, want %+v", w.Code, got, c.want)
		}
	}
}
