package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/auth/authtest"
)

// TestAuthOpaque has a client whose token the issuer is asked about. It goes on with its session
// under a JWT, which is of the same principal.
func TestAuthOpaque(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(authtest.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := serveGuarded(t, as, "--auth-client-id", authtest.ID, "--auth-client-secret-file", secret)
	claims := authtest.Claims{"aud": p.URL, "scope": "mcp"}
	opaque, other := as.Opaque(claims), as.Opaque(authtest.Claims{"aud": p.URL, "scope": "mcp", "sub": "bob"})
	begun := post(t, p.URL, opaque, "", begins)
	session := begun.header.Get("Mcp-Session-Id")
	if begun.status != http.StatusOK || session == "" {
		t.Fatalf("initialize: %d %s", begun.status, begun.body)
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
		if r.status != c.want {
			t.Errorf("%s: %d %s, want %d", c.what, r.status, r.body, c.want)
		}
	}
	as.Down.Store(true)
	if r := post(t, p.URL, as.Opaque(claims), session, call("down")); r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
		t.Errorf("while the issuer is down: %d", r.status)
	}
}
