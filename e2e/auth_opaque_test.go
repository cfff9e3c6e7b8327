package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
)

// TestAuthOpaque has a client with an opaque token, about which Holdfast asks the issuer. The
// client can use its session with a JWT of the same principal too.
func TestAuthOpaque(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	secret := fileOf(t, authtest.Secret+"\n")
	p := serveGuarded(t, as, "--auth-client-id", authtest.ID, "--auth-client-secret-file", secret)
	claims := authtest.Claims{"aud": p.URL, "scope": "mcp"}
	opaque, other := as.Opaque(claims), as.Opaque(authtest.Claims{"aud": p.URL, "scope": "mcp", "sub": "bob"})
	begun := post(t, p.URL, opaque, "", begins)
	session := begun.Header.Get("Mcp-Session-Id")
	if begun.Status != http.StatusOK || session == "" {
		t.Fatalf("initialize: %d %s", begun.Status, begun.Body)
	}
	call := func(id string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}`, id)
	}
	for _, c := range []struct {
		what, token string
		want        int
	}{
		{"its token", opaque, http.StatusOK},
		{"another token of the same user", as.Opaque(claims), http.StatusOK},
		{"a JWT of the same user", as.Token(claims), http.StatusOK},
		{"another user", other, http.StatusNotFound},
		{"a token that is not known", "unknown", http.StatusUnauthorized},
	} {
		r := post(t, p.URL, c.token, session, call(c.what))
		if r.Status != c.want {
			t.Errorf("%s: %d %s, want %d", c.what, r.Status, r.Body, c.want)
		}
	}
	as.Down.Store(true)
	if r := post(t, p.URL, as.Opaque(claims), session, call("down")); r.Status != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("while the issuer is down: %d", r.Status)
	}
}

// TestAuthMadeUpTokens has a client that makes tokens up, about which the issuer answers slowly. A client at
// another address is served meanwhile.
func TestAuthMadeUpTokens(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	made, end := make(chan struct{}, 1000), make(chan struct{})
	as.Slow = func(ok bool) {
		if !ok {
			made <- struct{}{}
			<-end
		}
	}
	secret := fileOf(t, authtest.Secret+"\n")
	p := serveGuarded(t, as, "--auth-client-id", authtest.ID, "--auth-client-secret-file", secret, "--trust-proxy", "127.0.0.1")
	ask := func(token, address string) (status int) {
		r, err := mcptest.Exchange(t.Context(), http.MethodPost, p.URL, begins, "Authorization", "Bearer "+token, "X-Forwarded-For", address)
		if err != nil {
			t.Error(err)
		}
		return r.Status
	}
	var work sync.WaitGroup
	for i := range 40 { // more than Holdfast asks the issuer about at once
		work.Go(func() {
			if status := ask(fmt.Sprint("made-up-", i), "203.0.113.1"); status != http.StatusUnauthorized {
				t.Errorf("a token that was made up: %d", status)
			}
		})
	}
	for range 8 {
		<-made
	}
	if status := ask(as.Opaque(authtest.Claims{"aud": p.URL, "scope": "mcp"}), "203.0.113.2"); status != http.StatusOK {
		t.Errorf("a good token of another address: %d", status)
	}
	close(end)
	work.Wait()
}
