package auth

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/dpop"
	"holdfast/internal/mcptest"
)

// A proofServer admits requests under a policy.
type proofServer struct {
	t      *testing.T
	p      *Policy
	as     *authtest.Server
	prover *authtest.Prover
	token  string // bound to the prover's key
}

const here = "https://mcp.example.com/mcp"

func newProofServer(t *testing.T, proofs *Proofs) *proofServer {
	t.Helper()
	as, issuer := introspects(t)
	prover := authtest.NewProver(t)
	s := &proofServer{t: t, as: as, prover: prover, p: &Policy{Issuer: issuer, Resource: "https://mcp.example.com", Proofs: proofs, Open: new(Open)}}
	s.token = as.Token(authtest.Claims{"aud": here, "cnf": prover.Binds()})
	return s
}

// ask makes a request, and returns the answer. Status 200 says that the request was admitted, and that its body was read.
func (s *proofServer) ask(method, body string, head http.Header) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, "/mcp?session=1", strings.NewReader(body))
	for name, values := range head {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	Require(func(*http.Request) *Policy { return s.p }, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 0 { // as by a server that knows the length
			if _, err := io.ReadFull(r.Body, make([]byte, r.ContentLength)); err != nil {
				http.Error(w, err.Error(), http.StatusTeapot)
			}
		}
	})).ServeHTTP(w, r)
	return w
}

// errorOf returns the scheme and the error of a challenge.
func errorOf(w *httptest.ResponseRecorder) string {
	scheme, rest, _ := strings.Cut(w.Header().Get("WWW-Authenticate"), " ")
	_, code, _ := strings.Cut(rest, `error="`)
	code, _, _ = strings.Cut(code, `"`)
	return strings.TrimSpace(scheme + " " + code)
}

// TestProofs has requests with proofs of each kind.
func TestProofs(t *testing.T) {
	t.Parallel()
	s := newProofServer(t, new(Proofs))
	other, unbound := authtest.NewProver(t), s.as.Token(authtest.Claims{"aud": here})
	weak := mcptest.Must(rsa.GenerateKey(rand.Reader, 1024))(t)
	post := func(change authtest.Claims) http.Header {
		return s.prover.Header(http.MethodPost, here, s.token, change)
	}
	with := func(proof string) http.Header {
		return http.Header{"Authorization": {"DPoP " + s.token}, "Dpop": {proof}}
	}
	claims := s.prover.Claims(http.MethodPost, here, s.token, nil)
	private := jose.JSONWebKey{Key: s.prover.Key}
	both := post(nil)
	both["Dpop"] = append(both["Dpop"], s.prover.Proof(http.MethodPost, here, s.token, nil))
	digest := func(body string) string {
		sum := sha256.Sum256([]byte(body))
		return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
	}
	const bad, teapot = "DPoP invalid_dpop_proof", http.StatusTeapot
	for what, c := range map[string]struct {
		head   http.Header
		status int
		code   string
	}{
		"a proof":                     {post(nil), 200, ""},
		"the scheme in other letters": {http.Header{"Authorization": {"dpop " + s.token}, "Dpop": post(nil)["Dpop"]}, 200, ""},
		"with a query":                {post(authtest.Claims{"htu": here + "?session=1"}), 200, ""},
		"4 minutes ago":               {post(authtest.Claims{"iat": time.Now().Add(-4 * time.Minute).Unix()}), 200, ""},
		"in 4 minutes":                {post(authtest.Claims{"iat": time.Now().Add(4 * time.Minute).Unix()}), 200, ""},
		"6 minutes ago":               {post(authtest.Claims{"iat": time.Now().Add(-6 * time.Minute).Unix()}), 401, bad},
		"in 6 minutes":                {post(authtest.Claims{"iat": time.Now().Add(6 * time.Minute).Unix()}), 401, bad},
		"no time":                     {post(authtest.Claims{"iat": nil}), 401, bad},
		"a time that is a text":       {post(authtest.Claims{"iat": "now"}), 401, bad},
		"no id":                       {post(authtest.Claims{"jti": nil}), 401, bad},
		"another method":              {post(authtest.Claims{"htm": "GET"}), 401, bad},
		"no method":                   {post(authtest.Claims{"htm": nil}), 401, bad},
		"another path":                {post(authtest.Claims{"htu": here + "/x"}), 401, bad},
		"another host":                {post(authtest.Claims{"htu": "https://evil.example.com/mcp"}), 401, bad},
		"the host of the request":     {post(authtest.Claims{"htu": "http://example.com/mcp"}), 401, bad}, // the client may choose it
		"no URL":                      {post(authtest.Claims{"htu": nil}), 401, bad},
		"another token":               {s.prover.Header(http.MethodPost, here, unbound, nil), 401, "DPoP invalid_token"},
		"of another token":            {with(s.prover.Proof(http.MethodPost, here, unbound, nil)), 401, bad},
		"of no token":                 {post(authtest.Claims{"ath": nil}), 401, bad},
		"another key":                 {with(other.Proof(http.MethodPost, here, s.token, nil)), 401, bad},
		"no proof":                    {http.Header{"Authorization": {"DPoP " + s.token}}, 401, bad},
		"two proofs":                  {both, 401, bad},
		"no JWT":                      {with("a proof"), 401, bad},
		"another type":                {with(s.prover.Sign(jose.ES256, "jwt", claims)), 401, bad},
		"a shared key":                {with(other.With([]byte(strings.Repeat("k", 32))).Sign(jose.HS256, "dpop+jwt", claims)), 401, bad},
		"a weak key":                  {with(other.With(weak).Sign(jose.RS256, "dpop+jwt", claims)), 401, bad},
		"no signature":                {with(unsigned(t, private.Public(), claims)), 401, bad},
		"a private key in it":         {with(unsigned(t, private, claims)), 401, bad},
		"as a bearer token":           {http.Header{"Authorization": {"Bearer " + s.token}}, 401, "DPoP invalid_token"},
		"as one, with a proof":        {http.Header{"Authorization": {"Bearer " + s.token}, "Dpop": post(nil)["Dpop"]}, 401, "DPoP invalid_token"},
		"a token that is not bound":   {http.Header{"Authorization": {"Bearer " + unbound}}, 200, ""},
		"a token with an empty key":   {http.Header{"Authorization": {"DPoP " + s.as.Token(authtest.Claims{"aud": here, "cnf": authtest.Claims{"jkt": ""}})}}, 401, "DPoP invalid_token"},
		"also bound otherwise":        {s.prover.Header(http.MethodPost, here, s.as.Token(authtest.Claims{"aud": here, "cnf": authtest.Claims{"jkt": s.prover.Binds()["jkt"], "x5t#S256": "x"}}), nil), 401, "DPoP invalid_token"},
		"the digest of the body":      {post(authtest.Claims{"content_digest": digest("body")}), 200, ""},
		"two digests of it":           {post(authtest.Claims{"content_digest": "md5=:eA==:, " + digest("body")}), 200, ""},
		"the digest of another body":  {post(authtest.Claims{"content_digest": digest("bodY")}), teapot, ""},
		"an unknown digest":           {post(authtest.Claims{"content_digest": "md5=:eA==:"}), 401, bad},
		"no digest":                   {post(authtest.Claims{"content_digest": "x"}), 401, bad},
		"no token":                    {nil, 401, "Bearer"},
	} {
		w := s.ask(http.MethodPost, "body", c.head)
		if w.Code != c.status || errorOf(w) != c.code {
			t.Errorf("%s: %d %s, want %d %s (%s)", what, w.Code, errorOf(w), c.status, c.code, w.Body)
		}
		if w.Code == 401 && what != "no token" && !strings.Contains(w.Header().Get("WWW-Authenticate"), `algs="ES256 `) {
			t.Errorf("%s: %s", what, w.Header())
		}
	}
	if w := s.ask(http.MethodPost, "", nil); len(w.Header().Values("WWW-Authenticate")) != 2 || !strings.HasPrefix(w.Header().Values("WWW-Authenticate")[1], "DPoP ") {
		t.Errorf("no token: %v", w.Header())
	}
	once := post(nil)
	for i, want := range []int{200, 401, 401} {
		if w := s.ask(http.MethodPost, "", once); w.Code != want || want == 401 && errorOf(w) != bad {
			t.Errorf("a proof for the %d. time: %d %s", i+1, w.Code, errorOf(w))
		}
	}
	if w := s.ask(http.MethodGet, "", s.prover.Header(http.MethodGet, here, s.token, authtest.Claims{"content_digest": digest("x")})); errorOf(w) != bad {
		t.Errorf("the digest of a body where there is none: %d %s", w.Code, errorOf(w))
	}
	opaque := s.as.Opaque(authtest.Claims{"aud": here, "token_type": "DPoP", "cnf": s.prover.Binds()})
	if w := s.ask(http.MethodPost, "", s.prover.Header(http.MethodPost, here, opaque, nil)); w.Code != 200 {
		t.Errorf("an opaque token: %d %s", w.Code, w.Body)
	}
	if w := s.ask(http.MethodPost, "", http.Header{"Authorization": {"Bearer " + opaque}}); errorOf(w) != "DPoP invalid_token" {
		t.Errorf("an opaque token without a proof: %d %s", w.Code, errorOf(w))
	}
	loose := s.as.Opaque(authtest.Claims{"aud": here, "token_type": "DPoP"})
	if w := s.ask(http.MethodPost, "", http.Header{"Authorization": {"Bearer " + loose}}); w.Code != 401 {
		t.Errorf("an opaque token that is said to be bound, and is not: %d", w.Code)
	}
	s.p.Proofs = nil
	if w := s.ask(http.MethodPost, "", post(nil)); w.Code != 401 {
		t.Errorf("where there are no proofs: %d", w.Code)
	}
}

// unsigned returns a JWT with the algorithm "none".
func unsigned(t *testing.T, key jose.JSONWebKey, claims authtest.Claims) string {
	t.Helper()
	var parts [2]string
	for i, part := range []any{map[string]any{"alg": "none", "typ": "dpop+jwt", "jwk": &key}, claims} {
		text := mcptest.Must(json.Marshal(part))(t)
		parts[i] = base64.RawURLEncoding.EncodeToString(text)
	}
	return strings.Join(parts[:], ".") + "."
}

// TestProofsRequired has a server that accepts no unbound token of an issuer, and its challenge says so. It accepts static keys.
func TestProofsRequired(t *testing.T) {
	t.Parallel()
	s := newProofServer(t, &Proofs{Required: true})
	key, line, err := NewKey("ada")
	if err != nil {
		t.Fatal(err)
	}
	if s.p.Keys, err = OpenKeys(authtest.Files(t, []byte(line))[0]); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		head http.Header
		want string
	}{
		"no token":                    {nil, "DPoP"},
		"one that is not bound":       {http.Header{"Authorization": {"Bearer " + s.as.Token(authtest.Claims{"aud": here})}}, "DPoP invalid_token"},
		"one that is bound":           {s.prover.Header(http.MethodPost, here, s.token, nil), ""},
		"one that is wrong":           {http.Header{"Authorization": {"Bearer x"}}, "DPoP invalid_token"},
		"a static key":                {http.Header{"Authorization": {"Bearer " + key}}, ""},
		"a static key with a proof":   {s.prover.Header(http.MethodPost, here, key, nil), "DPoP invalid_token"},
		"one without rights":          {s.prover.Header(http.MethodPost, here, s.as.Token(authtest.Claims{"aud": "x", "cnf": s.prover.Binds()}), nil), "DPoP invalid_token"},
		"one that is bound, unproven": {http.Header{"Authorization": {"Bearer " + s.token}}, "DPoP invalid_token"},
	} {
		if w := s.ask(http.MethodPost, "", c.head); errorOf(w) != c.want || len(w.Header().Values("WWW-Authenticate")) > 1 {
			t.Errorf("%s: %d %v", what, w.Code, w.Header())
		}
	}
	w := httptest.NewRecorder()
	Metadata(func(string) *Policy { return s.p }, nil).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, metadataPath+"/mcp", nil))
	var says struct {
		Algorithms []string `json:"dpop_signing_alg_values_supported"`
		Required   bool     `json:"dpop_bound_access_tokens_required"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &says); err != nil || !says.Required || len(says.Algorithms) != len(dpop.Algorithms()) || strings.Contains(w.Body.String(), "none") {
		t.Errorf("metadata: %s", w.Body)
	}
}

// TestProofNonces has a server that requires nonces.
func TestProofNonces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Policy{Resource: "https://mcp.example.com", Proofs: &Proofs{Nonces: true}}
		prover := authtest.NewProver(t)
		key, _ := prover.Binds()["jkt"].(string)
		ask := func(nonce any, change authtest.Claims) (code, next string) {
			t.Helper()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", nil)
			claims := authtest.Claims{"nonce": nonce}
			for name, value := range change {
				claims[name] = value
			}
			r.Header = prover.Header(http.MethodPost, here, "token", claims)
			err := p.prove(r, "token", key, false)
			w := httptest.NewRecorder()
			p.Proofs.offer(w, r, err)
			return codeOf(err), w.Header().Get("DPoP-Nonce")
		}
		code, nonce := ask(nil, nil)
		if code != dpop.CodeNonce || nonce == "" {
			t.Fatalf("no nonce: %q, and a nonce %q", code, nonce)
		}
		wrong := authtest.Claims{"iat": time.Now().Add(-time.Hour).Unix()}
		for what, c := range map[string]struct {
			nonce  any
			change authtest.Claims
			want   string
		}{
			"the nonce":                        {nonce, nil, ""},
			"the nonce once more":              {nonce, nil, ""},
			"the nonce, and a clock is wrong":  {nonce, wrong, ""},
			"a nonce that is made up":          {strings.Repeat("A", len(nonce)), nil, dpop.CodeNonce},
			"the nonce with something behind":  {nonce + "A", nil, dpop.CodeNonce},
			"a nonce of another server":        {nonces("another key").nonce(time.Now()), nil, dpop.CodeNonce},
			"a nonce that is long gone":        {p.Proofs.key.get(t.Context(), p.Proofs).nonce(time.Now().Add(-nonceLife)), nil, dpop.CodeNonce},
			"a nonce that is far ahead of now": {p.Proofs.key.get(t.Context(), p.Proofs).nonce(time.Now().Add(time.Hour)), nil, dpop.CodeNonce},
		} {
			if got, next := ask(c.nonce, c.change); got != c.want || next == "" {
				t.Errorf("%s: %q, want %q; the next is %q", what, got, c.want, next)
			}
		}
		time.Sleep(nonceLife)
		if code, _ := ask(nonce, nil); code != dpop.CodeNonce {
			t.Errorf("a nonce that is too old: %q", code)
		}
		p.Proofs.Nonces = false
		if code, nonce = ask(nil, wrong); code != dpop.CodeProof || nonce == "" {
			t.Fatalf("a wrong clock where no nonce is needed: %q, and a nonce %q", code, nonce)
		}
		if code, next := ask(nonce, wrong); code != "" || next != "" {
			t.Errorf("with the nonce: %q, and a nonce %q", code, next)
		}
	})
}

// TestProofsBounded has more proofs used than are remembered: even so no proof is taken twice.
func TestProofsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := new(Proofs)
		take := func(id int, nonce string) string {
			return codeOf(p.take(t.Context(), &dpop.Proof{Key: "k", ID: string(rune(id)), Issued: time.Now(), Nonce: nonce}))
		}
		first := &dpop.Proof{Key: "k", ID: "first", Issued: time.Now().Add(proofWindow)}
		mcptest.Check(t, p.take(t.Context(), first))
		time.Sleep(time.Second)
		fill := func(n int, nonce string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			for i := range n {
				if p.now == nil {
					p.now = make(map[proofID]struct{})
				}
				p.now[proofID{1, byte(i), byte(i >> 8), byte(i >> 16), nonce[0]}] = struct{}{}
			}
		}
		fill(mostProofs, "a")
		if code := take('b', ""); code != "" || p.old == nil {
			t.Fatalf("the first half is full: %q", code)
		}
		if codeOf(p.take(t.Context(), first)) != dpop.CodeProof {
			t.Error("the first proof is taken again")
		}
		fill(mostProofs, "b")
		if code := take('c', ""); code != dpop.CodeNonce {
			t.Fatalf("both halves are full: %q", code)
		}
		if len(p.now)+len(p.old) > 2*mostProofs {
			t.Errorf("%d proofs are remembered", len(p.now)+len(p.old))
		}
		if codeOf(p.take(t.Context(), first)) == "" {
			t.Error("the first proof is taken again, which is forgotten")
		}
		time.Sleep(time.Second)
		nonce := p.key.get(t.Context(), p).nonce(time.Now())
		if code := take('d', nonce); code != "" {
			t.Errorf("with a nonce of now: %q", code)
		}
		if code := take('d', nonce); code != dpop.CodeProof {
			t.Errorf("the same again: %q", code)
		}
		time.Sleep(2 * proofWindow)
		if code := take('e', ""); code != "" {
			t.Errorf("once what was forgotten is too old: %q", code)
		}
		if codeOf(p.take(t.Context(), first)) == "" {
			t.Error("the first proof is taken again")
		}
	})
}

// TestRightsWithProof has a connection that began with a proof: when its rights are checked later, the proof need not be new.
func TestRightsWithProof(t *testing.T) {
	t.Parallel()
	s := newProofServer(t, &Proofs{Nonces: true})
	nonce := s.ask(http.MethodGet, "", s.prover.Header(http.MethodGet, here, s.token, nil)).Header().Get("DPoP-Nonce")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/mcp", nil)
	r.Header = s.prover.Header(http.MethodGet, here, s.token, authtest.Claims{"nonce": nonce})
	var rights *Rights
	w := httptest.NewRecorder()
	Require(func(*http.Request) *Policy { return s.p }, nil)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		rights = RightsOf(r.Context())
	})).ServeHTTP(w, r)
	if rights == nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if next := rights.review(true); next <= 0 {
		t.Errorf("it is checked again after %v", next)
	}
	if status, _, text := rights.Check(); status != 0 {
		t.Errorf("%d %s", status, text)
	}
	s.p.Scopes = []string{"more"}
	rights.review(false)
	if status, challenge, _ := rights.Check(); status != http.StatusForbidden || !strings.HasPrefix(challenge, "DPoP ") {
		t.Errorf("a scope is missing: %d %s", status, challenge)
	}
}
