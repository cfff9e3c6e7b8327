package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
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

// TestIntrospection has valid opaque tokens, and each kind of invalid one.
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
		"by a clock that is ahead": opaque(authtest.Claims{"iat": time.Now().Add(time.Minute).Unix(), "nbf": time.Now().Add(time.Minute).Unix()}),
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
		"not yet, huge":     opaque(authtest.Claims{"nbf": 1e300}),
		"from tomorrow":     opaque(authtest.Claims{"iat": time.Now().Add(24 * time.Hour).Unix()}),
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
	if n := as.Asked.Load(); n != 23+2 { // a token that is not valid yet is asked about again
		t.Errorf("it was asked %d times", n)
	}
}

// TestIntrospectionKept has cached answers, and an issuer that is unreachable.
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

// introspects returns an authorization server, and an issuer that asks it about tokens.
func introspects(t *testing.T) (*authtest.Server, *Issuer) {
	t.Helper()
	as := authtest.New(t)
	issuer, err := NewIssuer(as.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(issuer.client.CloseIdleConnections)
	if err := issuer.Introspect("", authtest.ID, authtest.Secret); err != nil {
		t.Fatal(err)
	}
	return as, issuer
}

// TestIntrospectionForgets has the issuer asked about a token again when the answer is old.
func TestIntrospectionForgets(t *testing.T) {
	t.Parallel()
	as, issuer := introspects(t)
	token := as.Opaque(authtest.Claims{"aud": "us"})
	v, err := issuer.verify(t.Context(), token, "")
	if err != nil {
		t.Fatal(err)
	}
	as.Revoke(token)
	if _, err := issuer.verify(t.Context(), token, ""); err != nil {
		t.Errorf("soon after it was revoked: %v", err)
	}
	issuer.introspection.good.put(token, v, time.Now().Add(-time.Second)) // as if the time had passed
	if _, err := issuer.verify(t.Context(), token, ""); err == nil {
		t.Error("a token that was revoked is accepted for ever")
	}
	soon := as.Opaque(authtest.Claims{"exp": time.Now().Add(answerKept / 2).Unix()})
	if v, err = issuer.verify(t.Context(), soon, ""); err != nil {
		t.Fatal(err)
	}
	if kept := issuer.introspection.good.now[sha256.Sum256([]byte(soon))]; !kept.until.Equal(v.expires) {
		t.Errorf("the answer is kept until %v, and the token is valid until %v", kept.until, v.expires)
	}
}

// TestMadeUpTokens has a client send made-up tokens, for which the issuer takes long. Meanwhile clients of other
// addresses are served, and so are clients of the same address if their token was good before.
func TestMadeUpTokens(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	made, end := make(chan struct{}, 1000), make(chan struct{})
	as.Slow = func(ok bool) {
		if !ok {
			made <- struct{}{}
			<-end
		}
	}
	var issuer *Issuer
	var h http.Handler
	endpoint(t, as, func(p *Policy) {
		issuer = p.Issuer
		if err := issuer.Introspect("", authtest.ID, authtest.Secret); err != nil {
			t.Fatal(err)
		}
		h = Require(func(*http.Request) *Policy { return p }, nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	})
	call := func(token, from string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", nil)
		r.RemoteAddr = from
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	claims := authtest.Claims{"aud": resource + "/mcp", "scope": "mcp"}
	known := as.Opaque(claims)
	const evil = "203.0.113.1:1"
	if w := call(known, evil); w.Code != http.StatusOK {
		t.Fatalf("before: %d", w.Code)
	}
	one, _ := issuer.introspection.good.get(known)
	issuer.introspection.good.put(known, one, time.Now().Add(-time.Second)) // as if the time had passed
	var work sync.WaitGroup
	for i := range asksOfAddress + waitOfAddress {
		work.Go(func() {
			if w := call(fmt.Sprint("made-up-", i), evil); w.Code != http.StatusUnauthorized {
				t.Errorf("a token that was made up: %d", w.Code)
			}
		})
	}
	for range asksOfAddress {
		<-made
	}
	for { // until all wait: one more is refused
		crowd := &issuer.introspection.places.others
		crowd.mu.Lock()
		n := len(crowd.of["203.0.113.1"].waiting)
		crowd.mu.Unlock()
		if n == waitOfAddress {
			break
		}
		runtime.Gosched()
	}
	if w := call("one-more", evil); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("more than may wait: %d", w.Code)
	}
	if w := call(as.Opaque(claims), "203.0.113.2:1"); w.Code != http.StatusOK {
		t.Errorf("a new token from another address: %d", w.Code)
	}
	if w := call(known, evil); w.Code != http.StatusOK {
		t.Errorf("a token that was good before: %d", w.Code)
	}
	select {
	case <-made:
		t.Error("the address has more places than its share")
	default:
	}
	close(end)
	work.Wait()
	if issuer.introspection.places.others.of["203.0.113.1"] != nil || issuer.introspection.places.others.taken != 0 {
		t.Error("places are kept of clients that are gone")
	}
}

// TestPlaces has all places taken: the waiting addresses get them in turn.
func TestPlaces(t *testing.T) {
	t.Parallel()
	var p places
	ctx := t.Context()
	for i := range asksAtOnce / asksOfAddress {
		for range asksOfAddress {
			if err := p.take(ctx, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := make(chan string, 100)
	var work sync.WaitGroup
	wait := func(address string, n int) {
		for i := range n {
			work.Go(func() {
				if err := p.take(ctx, address); err != nil {
					t.Error(err)
				}
				got <- address
			})
			for waiting := 0; waiting <= i; {
				p.mu.Lock()
				if one := p.of[address]; one != nil {
					waiting = len(one.waiting)
				}
				p.mu.Unlock()
				runtime.Gosched()
			}
		}
	}
	wait("many", 5)
	wait("one", 1)
	stopped, stop := context.WithCancel(ctx)
	stop()
	if err := p.take(stopped, "gone"); !errors.Is(err, context.Canceled) || p.of["gone"] != nil {
		t.Errorf("a client that left: %v", err)
	}
	for i, want := range []string{"many", "one", "many"} {
		p.give("0")
		if at := <-got; at != want {
			t.Errorf("turn %d is of %s: want %s", i, at, want)
		}
	}
	for range 3 {
		p.give("1")
		<-got
	}
	work.Wait()
}
