package login_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"holdfast/internal/login"
)

// bind makes the authorization server issue tokens that are bound to keys, and the server accept them.
func (w *world) bind() {
	w.binds, w.meta = true, map[string]any{"dpop_signing_alg_values_supported": []string{"RS256", "ES256"}}
}

// If both servers support it, a login gets a token that is bound to a key. The next process uses the same key.
func TestBound(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	w.bind()
	s := w.source(dir, nil)
	h := w.host(s)
	for range 12 { // the nonces change meanwhile
		if got := h.call("x"); got != "x" {
			t.Fatalf("%q", got)
		}
	}
	w.do(func() { clear(w.access) }) // as if they had expired
	if got := w.host(w.source(dir, nil)).call("y"); got != "y" {
		t.Fatalf("%q", got)
	}
	w.counted(map[string]int{"authorized": 1, "authorization_code": 1, "refresh_token": 1, "call": 13})
	w.do(func() {
		if w.counts["nonces of server"] < 2 || w.counts["nonces of issuer"] < 1 {
			t.Errorf("nonces: %v", w.counts)
		}
	})
	text, err := os.ReadFile(s.File())
	if err != nil || !strings.Contains(string(text), `"bound": true`) || !strings.Contains(string(text), `"kty": "EC"`) {
		t.Errorf("the file: %v", err)
	}
	w.noSecrets()
}

// A machine and a device get bound tokens, too.
func TestBoundMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.bind()
	w.clients["ci"] = registration{Method: "client_secret_basic", Secret: "secret-ci"}
	h := w.host(w.source(t.TempDir(), func(o *login.Options) { o.Way, o.ClientID, o.ClientSecret = login.Credentials, "ci", "secret-ci" }))
	for range 2 {
		if got := h.call("x"); got != "x" {
			t.Fatalf("%q", got)
		}
		w.do(func() { clear(w.access) })
	}
	w.counted(map[string]int{"client_credentials": 2})
}

// No bound token is requested if the server does not say that it accepts them.
func TestNotBound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.bind()
	w.binds = false
	if got := w.host(w.source(t.TempDir(), nil)).call("x"); got != "x" {
		t.Fatalf("%q", got)
	}
	w.counted(map[string]int{"authorized": 1, "call": 1})
}

// An unbound token is refused if the server requires bound ones, or if it replaces a bound token.
func TestBoundStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.prm = map[string]any{"dpop_bound_access_tokens_required": true, "dpop_signing_alg_values_supported": []string{"ES256"}}
	if got := w.host(w.source(t.TempDir(), nil)).call("x"); !strings.Contains(got, "want DPoP") {
		t.Errorf("a token that is not bound: %q", got)
	}
	w.counted(map[string]int{"call": 0})

	w = newWorld(t)
	w.bind()
	h := w.host(w.source(t.TempDir(), nil))
	if got := h.call("x"); got != "x" {
		t.Fatalf("%q", got)
	}
	w.do(func() {
		clear(w.access)
		w.token = func(rw http.ResponseWriter) bool {
			answer(rw, 200, map[string]any{"access_token": "access-plain", "token_type": "Bearer"})
			w.access["access-plain"] = grant{}
			return true
		}
	})
	h.call("x")
	w.counted(map[string]int{"authorized": 2}) // a new login, instead of the renewal
}

// A server that refuses all proofs is asked twice. No new login begins, as it would not help.
func TestProofRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.bind()
	h := w.host(w.source(t.TempDir(), nil))
	if got := h.call("x"); got != "x" {
		t.Fatalf("%q", got)
	}
	w.do(func() { w.distrusts = true })
	if got := h.call("x"); !strings.Contains(got, "clock of this machine") {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"authorized": 1, "refresh_token": 0, "distrusted": 2})
}
