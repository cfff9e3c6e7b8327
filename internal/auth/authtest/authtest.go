// Package authtest is an authorization server for tests: discovery (RFC 8414), keys, dynamic registration (RFC
// 7591), codes with PKCE (RFC 7636), and opaque tokens with introspection (RFC 7662). It logs in every user,
// and asks no questions.
package authtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Claims are the claims of a token.
type Claims map[string]any

// A Server is an authorization server. Its methods may be called concurrently.
type Server struct {
	URL     string
	Subject string       // the subject of tokens that are given for codes
	Down    atomic.Bool  // the server answers only with errors
	Fetched atomic.Int32 // how often clients have fetched the keys
	Asked   atomic.Int32 // how often resource servers with the right secret have asked about a token
	// Slow, if it is not nil, is called before an answer about a token. ok says that the token is known. Slow
	// is set before the server is used.
	Slow   func(ok bool)
	ByForm atomic.Bool // the server takes a resource server's secret in the form only

	t      testing.TB
	mu     sync.Mutex
	key    *ecdsa.PrivateKey
	keyID  int
	codes  map[string]grant
	opaque map[string]Claims
}

// ID and Secret are the credentials of the resource server that may ask about tokens.
const (
	ID     = "rs"
	Secret = "a secret+%"
)

// A grant is the authorization that a code stands for.
type grant struct{ challenge, resource, scope, redirect string }

// New starts a server, until the test ends.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, Subject: "eve", codes: make(map[string]grant), opaque: make(map[string]Claims)}
	s.Rotate()
	mux := http.NewServeMux()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Down.Load() {
			http.Error(w, "down", http.StatusInternalServerError)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	s.URL = web.URL
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		method := "client_secret_basic"
		if s.ByForm.Load() {
			method = "client_secret_post"
		}
		answer(w, http.StatusOK, map[string]any{
			"issuer": s.URL, "jwks_uri": s.URL + "/keys", "authorization_response_iss_parameter_supported": true,
			"authorization_endpoint": s.URL + "/authorize", "token_endpoint": s.URL + "/token", "registration_endpoint": s.URL + "/register",
			"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"},
			"grant_types_supported": []string{"authorization_code"}, "token_endpoint_auth_methods_supported": []string{"none"},
			"introspection_endpoint": s.URL + "/introspect", "introspection_endpoint_auth_methods_supported": []string{method},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		s.Fetched.Add(1)
		answer(w, http.StatusOK, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{s.Public()}})
	})
	mux.HandleFunc("/register", func(w http.ResponseWriter, r *http.Request) {
		var client map[string]any
		if json.NewDecoder(r.Body).Decode(&client) != nil {
			http.Error(w, "no metadata", http.StatusBadRequest)
			return
		}
		client["client_id"] = "client-" + rand.Text()
		answer(w, http.StatusCreated, client)
	})
	mux.HandleFunc("/authorize", s.authorize)
	mux.HandleFunc("/token", s.token)
	mux.HandleFunc("/introspect", s.introspect)
	return s
}

func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || q.Get("code_challenge_method") != "S256" || q.Get("resource") == "" || q.Get("client_id") == "" {
		http.Error(w, "want S256, a resource, a client and where to go", http.StatusBadRequest)
		return
	}
	code := rand.Text()
	s.mu.Lock()
	s.codes[code] = grant{q.Get("code_challenge"), q.Get("resource"), q.Get("scope"), q.Get("redirect_uri")}
	s.mu.Unlock()
	back.RawQuery = url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {s.URL}}.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	g, ok := s.codes[r.FormValue("code")]
	delete(s.codes, r.FormValue("code"))
	s.mu.Unlock()
	sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if !ok || base64.RawURLEncoding.EncodeToString(sum[:]) != g.challenge || r.FormValue("redirect_uri") != g.redirect || r.FormValue("resource") != g.resource {
		answer(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
		return
	}
	answer(w, http.StatusOK, map[string]any{
		"access_token": s.Token(Claims{"aud": g.resource, "scope": g.scope, "sub": s.Subject}),
		"token_type":   "Bearer", "expires_in": 3600, "scope": g.scope,
	})
}

func (s *Server) introspect(w http.ResponseWriter, r *http.Request) {
	id, secret := r.PostFormValue("client_id"), r.PostFormValue("client_secret")
	if !s.ByForm.Load() {
		id, secret, _ = r.BasicAuth()
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
	}
	if id != ID || secret != Secret {
		answer(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client"})
		return
	}
	s.Asked.Add(1)
	s.mu.Lock()
	claims, ok := s.opaque[r.PostFormValue("token")]
	s.mu.Unlock()
	if s.Slow != nil {
		s.Slow(ok)
	}
	if !ok {
		claims = Claims{"active": false}
	}
	answer(w, http.StatusOK, claims)
}

// Opaque returns an opaque token of this issuer, valid for an hour. Introspection gives it the claims of a
// JWT, with those in change replaced; nil removes a claim.
func (s *Server) Opaque(change Claims) string {
	claims := Claims{"active": true, "token_type": "Bearer", "iss": s.URL, "sub": "ada", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, change)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	token := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opaque[token] = claims
	return token
}

// Revoke makes an opaque token invalid.
func (s *Server) Revoke(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.opaque, token)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// Rotate replaces the key that tokens are signed with.
func (s *Server) Rotate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = key
	s.keyID++
}

// Public returns the public key.
func (s *Server) Public() jose.JSONWebKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	return jose.JSONWebKey{Key: s.key.Public(), KeyID: fmt.Sprint(s.keyID), Algorithm: string(jose.ES256), Use: "sig"}
}

// Verify returns the claims of a token of this issuer; nil: it is none.
func (s *Server) Verify(token string) (claims Claims) {
	is, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return nil
	}
	if payload, err := is.Verify(s.Public()); err != nil || json.Unmarshal(payload, &claims) != nil {
		return nil
	}
	return claims
}

// Token returns a JWT of this issuer, valid for an hour, with the claims in change replaced.
func (s *Server) Token(change Claims) string { return s.Typed(nil, change) }

// Typed returns a token like Token, with a type in its header.
func (s *Server) Typed(typ any, change Claims) string {
	s.mu.Lock()
	key := jose.JSONWebKey{Key: s.key, KeyID: fmt.Sprint(s.keyID)}
	s.mu.Unlock()
	return s.sign(jose.SigningKey{Algorithm: jose.ES256, Key: key}, typ, change)
}

// Sign returns a token like Token, signed with key.
func (s *Server) Sign(key jose.SigningKey, change Claims) string { return s.sign(key, nil, change) }

func (s *Server) sign(key jose.SigningKey, typ any, change Claims) string {
	claims := Claims{"iss": s.URL, "sub": "ada", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(), "jti": rand.Text()}
	maps.Copy(claims, change)
	var opts *jose.SignerOptions
	if typ != nil {
		opts = (&jose.SignerOptions{}).WithHeader(jose.HeaderType, typ)
	}
	return signed(s.t, key, opts, claims)
}

// signed returns a JWT with claims.
func signed(t testing.TB, key jose.SigningKey, opts *jose.SignerOptions, claims Claims) string {
	t.Helper()
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(key, opts)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
