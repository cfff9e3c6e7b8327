package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const resource = "https://mcp.example.com"

// endpoint returns a server that requires tokens for the resource /mcp, and answers with the client's principal.
func endpoint(t *testing.T, as *authtest.Server, change func(*Policy)) func(token string) *httptest.ResponseRecorder {
	t.Helper()
	issuer := mcptest.Must(NewIssuer(as.URL))(t)
	issuer.every = time.Millisecond
	t.Cleanup(issuer.client.CloseIdleConnections)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	p := &Policy{Issuer: issuer, Resource: resource, Scopes: []string{"mcp"}, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(p)
	}
	h := Metadata(func(path string) *Policy {
		if path == "/mcp" {
			return p
		}
		return nil
	}, Require(func(*http.Request) *Policy { return p }, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(Principal(r)))
	})))
	return func(token string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
}

// TestToken has valid tokens, and each kind of invalid one.
func TestToken(t *testing.T) {
	t.Parallel()
	as, other := authtest.New(t), authtest.New(t)
	call := endpoint(t, as, nil)
	good := authtest.Claims{"aud": []string{"x", resource + "/mcp"}, "scope": "mcp other"}
	with := func(change authtest.Claims) authtest.Claims {
		all := authtest.Claims{"aud": good["aud"], "scope": good["scope"]}
		for k, v := range change {
			all[k] = v
		}
		return all
	}
	for name, token := range map[string]string{
		"good": as.Token(good), "refreshed": as.Token(good), "scp": as.Token(with(authtest.Claims{"scope": nil, "scp": []string{"mcp"}})),
		"of RFC 9068": as.Typed("at+jwt", good), "its whole type": as.Typed("application/AT+jwt", good), "a JWT": as.Typed("JWT", good), "another spelling": as.Typed("jwt", good),
		"by a clock that is ahead": as.Token(with(authtest.Claims{"iat": time.Now().Add(time.Minute).Unix(), "nbf": time.Now().Add(time.Minute).Unix()})),
		"says its use":             as.Token(with(authtest.Claims{"token_use": "access"})), "says its kind": as.Token(with(authtest.Claims{"typ": "Bearer"})), "kind of its own": as.Token(with(authtest.Claims{"typ": 1})),
	} {
		if w := call(token); w.Code != http.StatusOK || w.Body.String() != as.URL+" ada" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	part := func(v any) string {
		text := mcptest.Must(json.Marshal(v))(t)
		return base64.RawURLEncoding.EncodeToString(text)
	}
	unsigned := part(map[string]any{"alg": "none"}) + "." + part(with(authtest.Claims{"iss": as.URL, "sub": "ada", "exp": time.Now().Add(time.Hour).Unix()})) + "."
	der := mcptest.Must(x509.MarshalPKIXPublicKey(as.Public().Key))(t)
	shared := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	stranger := mcptest.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	whole := as.Token(good)
	for name, token := range map[string]string{
		"expired":            as.Token(with(authtest.Claims{"exp": time.Now().Add(-time.Second).Unix()})),
		"without expiry":     as.Token(with(authtest.Claims{"exp": nil})),
		"not yet valid":      as.Token(with(authtest.Claims{"nbf": time.Now().Add(time.Hour).Unix()})),
		"not yet, huge":      as.Token(with(authtest.Claims{"nbf": 1e300})),
		"from tomorrow":      as.Token(with(authtest.Claims{"iat": time.Now().Add(24 * time.Hour).Unix()})),
		"issued at no time":  as.Token(with(authtest.Claims{"iat": "x"})),
		"an ID token":        as.Typed("id_token+jwt", good),
		"for DPoP":           as.Typed("dpop+jwt", good),
		"for a logout":       as.Typed("logout+jwt", good),
		"an event":           as.Typed("application/secevent+jwt", good),
		"an introspection":   as.Typed("token-introspection+jwt", good),
		"an assertion":       as.Typed("oauth-authz-req+jwt", good),
		"type in capitals":   as.Typed("LOGOUT+JWT", good),
		"type of no text":    as.Typed(1, good),
		"empty type":         as.Typed("", good),
		"events":             as.Token(with(authtest.Claims{"events": map[string]any{"http://schemas.openid.net/event/backchannel-logout": map[string]any{}}})),
		"use of an ID":       as.Token(with(authtest.Claims{"token_use": "id"})),
		"kind of an ID":      as.Token(with(authtest.Claims{"typ": "ID"})),
		"kind to refresh":    as.Token(with(authtest.Claims{"typ": "Refresh"})),
		"foreign audience":   as.Token(with(authtest.Claims{"aud": "https://other.example.com/mcp"})),
		"another endpoint":   as.Token(with(authtest.Claims{"aud": resource + "/other/mcp"})),
		"no audience":        as.Token(with(authtest.Claims{"aud": nil})),
		"foreign issuer":     other.Token(good),
		"foreign key":        other.Token(with(authtest.Claims{"iss": as.URL})),
		"stranger's key":     as.Sign(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: stranger, KeyID: as.Public().KeyID}}, good),
		"no subject":         as.Token(with(authtest.Claims{"sub": ""})),
		"unsigned":           unsigned,
		"shared key":         as.Sign(jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: shared, KeyID: as.Public().KeyID}}, good),
		"cut":                whole[:len(whole)-4],
		"opaque":             "abc",
		"with another's sub": strings.Replace(whole, ".", ".e30", 1),
	} {
		w := call(token)
		challenge := w.Header().Get("WWW-Authenticate")
		if w.Code != http.StatusUnauthorized || !strings.Contains(challenge, `error="invalid_token"`) {
			t.Errorf("%s: %d %q %s", name, w.Code, challenge, w.Body)
		}
	}
	w := call("")
	if want := `Bearer resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/mcp", scope="mcp"`; w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") != want {
		t.Errorf("without a token: %d %q", w.Code, w.Header().Get("WWW-Authenticate"))
	}
	w = call(as.Token(with(authtest.Claims{"scope": "mcpx"})))
	if c := w.Header().Get("WWW-Authenticate"); w.Code != http.StatusForbidden || !strings.Contains(c, `error="insufficient_scope"`) || !strings.Contains(c, `scope="mcp"`) {
		t.Errorf("without the scope: %d %q", w.Code, c)
	}
}

// TestKeys has an issuer that changes its keys, and that is unreachable for a while.
func TestKeys(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	as.Down.Store(true)
	call := endpoint(t, as, func(p *Policy) { p.Scopes = nil; p.Audience = []string{"us"} })
	claims := authtest.Claims{"aud": "us"}
	first := as.Token(claims)
	if w := call(first); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || w.Header().Get("WWW-Authenticate") != "" {
		t.Errorf("while it is down: %d %v", w.Code, w.Header())
	}
	as.Down.Store(false)
	if w := call(first); w.Code != http.StatusOK {
		t.Errorf("when it is up: %d %s", w.Code, w.Body)
	}
	as.Down.Store(true)
	if w := call(first); w.Code != http.StatusOK {
		t.Errorf("with keys from before: %d %s", w.Code, w.Body)
	}
	as.Down.Store(false)
	as.Rotate()
	if w := call(as.Token(claims)); w.Code != http.StatusOK {
		t.Errorf("with a new key: %d %s", w.Code, w.Body)
	}
	if w := call(first); w.Code != http.StatusUnauthorized {
		t.Errorf("with a key that is withdrawn: %d", w.Code)
	}
	if n := as.Fetched.Load(); n != 3 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

// TestMetadata asks for the metadata of endpoints.
func TestMetadata(t *testing.T) {
	t.Parallel()
	issuer := mcptest.Must(NewIssuer("https://auth.example.com"))(t)
	for _, c := range []struct{ resource, at, want string }{
		{"", "/mcp", "http://example.com/mcp"},
		{resource, "/mcp", resource + "/mcp"},
		{resource, "/other", ""},
		{resource + "/behind/", "/mcp", resource + "/behind/mcp"},
		{resource + "/behind/", "/behind/mcp", resource + "/behind/mcp"},
		{resource + "/behind/", "/before/mcp", ""},
	} {
		p := &Policy{Issuer: issuer, Resource: c.resource, Scopes: []string{"a"}}
		w := httptest.NewRecorder()
		Metadata(func(path string) *Policy {
			if path == "/mcp" {
				return p
			}
			return nil
		}, http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, metadataPath+c.at, nil))
		var got struct {
			Resource string
			Servers  []string `json:"authorization_servers"`
		}
		_ = json.Unmarshal(w.Body.Bytes(), &got)
		if got.Resource != c.want || c.want != "" && (len(got.Servers) != 1 || w.Header().Get("Access-Control-Allow-Origin") != "*") {
			t.Errorf("%s%s: %d %s", c.resource, c.at, w.Code, w.Body)
		}
	}
	for _, bad := range []string{"", "auth.example.com", "http://auth.example.com", "ftp://a", "https://u:p@a", "https://a?b", "https://a b"} {
		if _, err := NewIssuer(bad); err == nil {
			t.Errorf("the issuer %q is accepted", bad)
		}
	}
}

// TestAt has a handler that serves /messages with the tokens and the metadata of the endpoint /sse.
func TestAt(t *testing.T) {
	as := authtest.New(t)
	issuer := mcptest.Must(NewIssuer(as.URL))(t)
	t.Cleanup(issuer.client.CloseIdleConnections)
	p := &Policy{Issuer: issuer, Resource: resource, Log: slog.New(slog.DiscardHandler)}
	h := At("/sse", Require(func(*http.Request) *Policy { return p }, nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	for audience, want := range map[string]int{
		resource + "/sse": http.StatusOK, resource: http.StatusOK,
		resource + "/messages": http.StatusUnauthorized, resource + "/mcp": http.StatusUnauthorized,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/messages", nil)
		r.Header.Set("Authorization", "Bearer "+as.Token(authtest.Claims{"aud": audience}))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("a token for %s: %d, want %d", audience, w.Code, want)
		}
		if challenge := w.Header().Get("WWW-Authenticate"); want != http.StatusOK && !strings.Contains(challenge, `"`+resource+metadataPath+`/sse"`) {
			t.Errorf("a token for %s: challenge %q", audience, challenge)
		}
	}
}
