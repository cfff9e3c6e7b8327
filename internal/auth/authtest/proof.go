package authtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// A Prover is a client with a key to which its tokens are bound (RFC 9449).
type Prover struct {
	Key any // *ecdsa.PrivateKey; another type for wrong proofs

	t testing.TB
}

// With returns the same client with another key.
func (p *Prover) With(key any) *Prover { return &Prover{key, p.t} }

// NewProver returns a client with a new key.
func NewProver(t testing.TB) *Prover {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Prover{Key: key, t: t}
}

// Binds returns the claim cnf of a token that is bound to the client's key.
func (p *Prover) Binds() Claims {
	p.t.Helper()
	jwk := jose.JSONWebKey{Key: p.Key}
	public := jwk.Public()
	sum, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		p.t.Fatal(err)
	}
	return Claims{"jkt": base64.RawURLEncoding.EncodeToString(sum)}
}

// Proof returns a proof for a request with a token, with the claims in change replaced; nil removes
// a claim.
func (p *Prover) Proof(method, to, token string, change Claims) string {
	p.t.Helper()
	return p.Sign(jose.ES256, "dpop+jwt", p.Claims(method, to, token, change))
}

// Claims returns the claims of the proof that Proof returns.
func (p *Prover) Claims(method, to, token string, change Claims) Claims {
	sum := sha256.Sum256([]byte(token))
	claims := Claims{
		"jti": rand.Text(), "htm": method, "htu": to, "iat": time.Now().Unix(), "ath": base64.RawURLEncoding.EncodeToString(sum[:]),
	}
	maps.Copy(claims, change)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	return claims
}

// Sign returns a JWT with the client's public key in its header, unless the key is a shared secret.
func (p *Prover) Sign(algorithm jose.SignatureAlgorithm, typ string, claims Claims) string {
	p.t.Helper()
	_, shared := p.Key.([]byte)
	opts := (&jose.SignerOptions{EmbedJWK: !shared}).WithType(jose.ContentType(typ))
	return signed(p.t, jose.SigningKey{Algorithm: algorithm, Key: p.Key}, opts, claims)
}

// Header returns the headers of a request with a token, and a new proof.
func (p *Prover) Header(method, to, token string, change Claims) http.Header {
	p.t.Helper()
	return http.Header{"Authorization": {"DPoP " + token}, "Dpop": {p.Proof(method, to, token, change)}}
}
