package auth

import (
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/auth/authtest"
)

// introspecting returns an endpoint that asks the issuer about opaque tokens.
func introspecting(t *testing.T, as *authtest.Server, at, secret string) func(token string) *httptest.ResponseRecorder {
	t.Helper()
	return endpoint(t, as, func(p *Policy) {
		if err := p.Issuer.Introspect(at, authtest.ID, secret); err != nil {
			t.Fatal(err)
		}
	})
}

// TestIntrospection has opaque tokens that are good, and each kind that is not.
func TestIntrospection(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	call := introspecting(t, as, "", authtest.Secret)
	opaque := func(change authtest.Claims) string {
		all := authtest.Claims{"aud": []string{"x", resource + "/mcp"}, "scope": "mcp other"}
		for k, v := range change {
			all[k] = v
		}
		return as.Opaque(all)
	}
	jwt := as.Token(authtest.Claims{"aud": resource + "/mcp", "scope": "mcp"})
	for name, token := range map[string]string{
		"good": opaque(nil), "a JWT of the same user": jwt, "one audience": opaque(authtest.Claims{"aud": resource + "/mcp"}),
		"without what may be away": opaque(authtest.Claims{"exp": nil, "iss": nil, "token_type": nil}), "for access": opaque(authtest.Claims{"token_use": "access_token"}),
	} {
		if w := call(token); w.Code != http.StatusOK || w.Body.String() != as.URL+" ada" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	for name, token := range map[string]string{
		"unknown":           "abc",
		"three parts":       "a.b.c",
		"inactive":          opaque(authtest.Claims{"active": false}),
		"not said":          opaque(authtest.Claims{"active": nil}),
		"expired":           opaque(authtest.Claims{"exp": time.Now().Add(-time.Second).Unix()}),
		"not yet valid":     opaque(authtest.Claims{"nbf": time.Now().Add(time.Hour).Unix()}),
		"no audience":       opaque(authtest.Claims{"aud": nil}),
		"foreign audience":  opaque(authtest.Claims{"aud": "https://other.example.com/mcp"}),
		"another endpoint":  opaque(authtest.Claims{"aud": resource + "/other/mcp"}),
		"foreign issuer":    opaque(authtest.Claims{"iss": "https://other.example.com"}),
		"no subject":        opaque(authtest.Claims{"sub": nil}),
		"bound otherwise":   opaque(authtest.Claims{"cnf": map[string]any{"jkt": "x"}}),
		"bound to a client": opaque(authtest.Claims{"cnf": map[string]any{"x5t#S256": "x"}}),
		"for refreshing":    opaque(authtest.Claims{"token_use": "refresh_token"}),
		"of another type":   opaque(authtest.Claims{"token_type": "DPoP"}),
	} {
		for range 2 { // the second is answered from memory
			if w := call(token); w.Code != http.StatusUnauthorized || !strings.Contains(w.Header().Get("WWW-Authenticate"), `error="invalid_token"`) {
				t.Errorf("%s: %d %v", name, w.Code, w.Header())
			}
		}
	}
	if w := call(opaque(authtest.Claims{"scope": "other"})); w.Code != http.StatusForbidden || !strings.Contains(w.Header().Get("WWW-Authenticate"), `error="insufficient_scope"`) {
		t.Errorf("without the scope: %d", w.Code)
	}
	if n := as.Asked.Load(); n != 20 {
		t.Errorf("it was asked %d times", n)
	}
}

// TestIntrospectionKept has answers that are kept, and an issuer that cannot be asked.
func TestIntrospectionKept(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	call := introspecting(t, as, "", authtest.Secret)
	claims := authtest.Claims{"aud": resource + "/mcp", "scope": "mcp"}
	first, second := as.Opaque(claims), as.Opaque(claims)
	unavailable := func(what string, w *httptest.ResponseRecorder) {
		t.Helper()
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || w.Header().Get("WWW-Authenticate") != "" {
			t.Errorf("%s: %d %v", what, w.Code, w.Header())
		}
	}
	as.Down.Store(true)
	unavailable("before it was ever up", call(first))
	as.Down.Store(false)
	var work sync.WaitGroup
	for range 20 {
		work.Go(func() {
			if w := call(first); w.Code != http.StatusOK {
				t.Errorf("when it is up: %d %s", w.Code, w.Body)
			}
		})
	}
	work.Wait()
	if n := as.Asked.Load(); n != 1 {
		t.Errorf("it was asked %d times about one token", n)
	}
	as.Down.Store(true)
	if w := call(first); w.Code != http.StatusOK {
		t.Errorf("from memory: %d %s", w.Code, w.Body)
	}
	unavailable("a new token", call(second))
	as.Down.Store(false)
	if w := call(second); w.Code != http.StatusOK {
		t.Errorf("when it is up again: %d", w.Code)
	}
	unavailable("with a wrong secret", introspecting(t, as, "", "wrong")(as.Opaque(claims)))
	unavailable("where there is nothing", introspecting(t, as, as.URL+"/nothing", authtest.Secret)(as.Opaque(claims)))
	if w := introspecting(t, as, as.URL+"/introspect", authtest.Secret)(as.Opaque(claims)); w.Code != http.StatusOK {
		t.Errorf("at an endpoint that was given: %d", w.Code)
	}
	as.ByForm.Store(true)
	if w := introspecting(t, as, "", authtest.Secret)(as.Opaque(claims)); w.Code != http.StatusOK {
		t.Errorf("with the secret in the form: %d", w.Code)
	}
	for _, bad := range []string{"http://auth.example.com/introspect", "introspect", "https://u:p@auth.example.com/"} {
		if err := new(Issuer).Introspect(bad, "a", "b"); err == nil {
			t.Errorf("the endpoint %q is accepted", bad)
		}
	}
}

// TestIntrospectionForgets has a token be asked about again when the answer is old.
func TestIntrospectionForgets(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	issuer, err := NewIssuer(as.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(issuer.client.CloseIdleConnections)
	if err := issuer.Introspect("", authtest.ID, authtest.Secret); err != nil {
		t.Fatal(err)
	}
	token := as.Opaque(authtest.Claims{"aud": "us"})
	v, err := issuer.verify(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	as.Revoke(token)
	if _, err := issuer.verify(t.Context(), token); err != nil {
		t.Errorf("soon after it was revoked: %v", err)
	}
	issuer.introspection.good.put(token, v, time.Now().Add(-time.Second)) // as if the time had passed
	if _, err := issuer.verify(t.Context(), token); err == nil {
		t.Error("a token that was revoked is accepted for ever")
	}
	soon := as.Opaque(authtest.Claims{"exp": time.Now().Add(answerKept / 2).Unix()})
	if v, err = issuer.verify(t.Context(), soon); err != nil {
		t.Fatal(err)
	}
	if kept := issuer.introspection.good.now[sha256.Sum256([]byte(soon))]; !kept.until.Equal(v.expires) {
		t.Errorf("the answer is kept until %v, and the token is valid until %v", kept.until, v.expires)
	}
}
