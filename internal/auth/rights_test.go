package auth

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
)

// rightsUnder authenticates a request with a token, and returns the rights of its client.
func rightsUnder(t *testing.T, p *Policy, token string) (rights *Rights) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/mcp", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	h := Require(func(*http.Request) *Policy { return p }, nil)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		rights = RightsOf(r.Context())
	}))
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); rights == nil {
		t.Fatalf("not authenticated: %d %s", w.Code, w.Body)
	}
	return rights
}

// TestRightsOfTokens has tokens expire, or be revoked by their issuer, while a connection is open.
func TestRightsOfTokens(t *testing.T) {
	t.Parallel()
	as, issuer := introspects(t)
	p := &Policy{Issuer: issuer, Audience: []string{"here"}, Grace: 30 * time.Second, Open: new(Open)}
	claims := authtest.Claims{"aud": "here"}

	revoked := as.Opaque(claims)
	rights := rightsUnder(t, p, revoked)
	if next := rights.review(true); next <= 0 || next > reviewOpaque {
		t.Errorf("an opaque token is asked about again after %v", next)
	}
	as.Revoke(revoked)
	issuer.introspection.good = cache[*verified]{} // as if half a minute had passed
	rights.review(false)
	if status, _, _ := rights.Check(); status != 0 {
		t.Errorf("the issuer was asked although nothing but time has passed: %d", status)
	}
	rights.review(true)
	if status, challenge, text := rights.Check(); status != http.StatusUnauthorized || !strings.Contains(challenge, "invalid_token") || !strings.Contains(text, "connect again") {
		t.Errorf("a revoked token: %d %s %s", status, challenge, text)
	}

	signed := rightsUnder(t, p, as.Token(claims))
	if next := signed.review(true); next <= 0 || next > reviewToken {
		t.Errorf("a token is checked again after %v", next)
	}
	ends := rightsUnder(t, p, as.Token(claims))
	graceFor := func(left time.Duration) {
		ended := *ends.who.Load()
		ended.expires = time.Now().Add(left - p.Grace) // the token was valid until then
		ends.who.Store(&ended)
	}
	graceFor(20 * time.Second)
	for _, whole := range []bool{false, true} {
		next := ends.review(whole)
		if status, _, _ := ends.Check(); status != 0 || next <= 0 || next > 20*time.Second {
			t.Errorf("after its end, and before the grace is over: %d, and again after %v", status, next)
		}
	}
	graceFor(100 * time.Millisecond)
	over := make(chan struct{}, 10)
	defer ends.Watch(func() {
		if status, _, _ := ends.Check(); status == http.StatusUnauthorized {
			over <- struct{}{}
		}
	})()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Error("a token that has ended is good")
	}
	if status, _, _ := signed.Check(); status != 0 {
		t.Errorf("another token: %d", status)
	}
}

// TestRightsOfKeys has a file of keys change while a connection is open. The endpoint requires a scope.
func TestRightsOfKeys(t *testing.T) {
	t.Parallel()
	key, line, err := NewKey("ada")
	if err != nil {
		t.Fatal(err)
	}
	file := authtest.Files(t, []byte(line+" a\n"))[0]
	keys := mcptest.Must(OpenKeys(file))(t)
	p := &Policy{Keys: keys, Scopes: []string{"a"}, Open: new(Open)}
	rights, told := rightsUnder(t, p, key), 0
	stop := rights.Watch(func() { told++ })
	for _, c := range []struct {
		what, line string
		status     int
	}{
		{"other scopes", line + " b\n", http.StatusForbidden},
		{"these and others", line + " b a\n", 0},
		{"another name", strings.Replace(line, "ada", "bob", 1) + " a\n", http.StatusUnauthorized},
		{"as before", line + " a\n", 0},
		{"no line", "\n", http.StatusUnauthorized},
	} {
		mcptest.Check(t, os.WriteFile(file, []byte(c.line), 0o600))
		if !keys.Reload(true) {
			t.Errorf("%s: nothing has changed", c.what)
		}
		before := told
		p.Open.Review()
		if status, _, _ := rights.Check(); status != c.status || told == before {
			t.Errorf("%s: %d, want %d; told: %v", c.what, status, c.status, told > before)
		}
	}
	stop()
	before := told
	if p.Open.Review(); told != before || len(p.Open.all) > 0 {
		t.Error("a connection that has ended is told of")
	}
	if keys.Reload(true) {
		t.Error("what is the same has changed")
	}
}
