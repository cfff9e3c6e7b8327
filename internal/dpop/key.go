package dpop

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// A Key makes proofs. Its methods may be called concurrently.
type Key struct {
	private    jose.JSONWebKey
	signer     jose.Signer
	thumbprint string
}

// makers make keys for the algorithms, the preferred one first.
var makers = []struct {
	algorithm jose.SignatureAlgorithm
	make      func() (any, error)
}{
	{jose.ES256, func() (any, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }},
	{jose.EdDSA, func() (any, error) { _, key, err := ed25519.GenerateKey(rand.Reader); return key, err }},
	{jose.ES384, func() (any, error) { return ecdsa.GenerateKey(elliptic.P384(), rand.Reader) }},
	{jose.ES512, func() (any, error) { return ecdsa.GenerateKey(elliptic.P521(), rand.Reader) }},
	{jose.PS256, func() (any, error) { return rsa.GenerateKey(rand.Reader, leastRSA) }},
	{jose.RS256, func() (any, error) { return rsa.GenerateKey(rand.Reader, leastRSA) }},
}

// NewKey returns a new key for an algorithm that all lists have. An empty list stands for all
// algorithms.
func NewKey(lists ...[]string) (*Key, error) {
	for _, m := range makers {
		if slices.ContainsFunc(lists, func(list []string) bool {
			return len(list) > 0 && !slices.Contains(list, string(m.algorithm))
		}) {
			continue
		}
		key, err := m.make()
		if err != nil {
			return nil, err
		}
		return ready(jose.JSONWebKey{Key: key, Algorithm: string(m.algorithm)})
	}
	return nil, fmt.Errorf("no algorithm for proofs (DPoP) is known of those that are taken: %.200s", strings.Join(slices.Concat(lists...), ", "))
}

// ParseKey reads a key that [Key.MarshalJSON] has written.
func ParseKey(text []byte) (*Key, error) {
	var private jose.JSONWebKey
	if err := json.Unmarshal(text, &private); err != nil || !private.Valid() || private.IsPublic() {
		return nil, errors.New("it is no private key (JWK)")
	}
	return ready(private)
}

func ready(private jose.JSONWebKey) (*Key, error) {
	public := private.Public()
	thumb, err := thumbprint(&public)
	if err != nil {
		return nil, err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(private.Algorithm), Key: private.Key},
		(&jose.SignerOptions{EmbedJWK: true}).WithType("dpop+jwt"))
	if err != nil {
		return nil, err
	}
	return &Key{private, signer, thumb}, nil
}

// MarshalJSON implements [json.Marshaler]: the private key as JWK.
func (k *Key) MarshalJSON() ([]byte, error) { return k.private.MarshalJSON() }

// Thumbprint returns the value of cnf.jkt in a token that is bound to the key.
func (k *Key) Thumbprint() string { return k.thumbprint }

// Algorithm returns the name of the algorithm that proofs are signed with.
func (k *Key) Algorithm() string { return k.private.Algorithm }

// A Request is the request that a proof is for.
type Request struct {
	Method string
	URL    *url.URL
	Token  string // the token of the request; "": none
	Body   []byte // if HasBody
	// HasBody says that the proof holds for this body only. It is not set for token endpoints.
	HasBody bool
	Nonce   string // the nonce that the server gave; "": none
	At      time.Time
}

// Prove returns a new proof.
func (k *Key) Prove(r *Request) (string, error) {
	to := *r.URL
	to.RawQuery, to.ForceQuery, to.Fragment, to.RawFragment, to.User = "", false, "", "", nil
	claims := map[string]any{"jti": rand.Text(), "htm": r.Method, "htu": to.String(), "iat": r.At.Unix()}
	if r.Token != "" {
		claims["ath"] = tokenHash(r.Token)
	}
	if r.HasBody {
		sum := sha256.Sum256(r.Body)
		claims["content_digest"] = "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
	}
	if r.Nonce != "" {
		claims["nonce"] = r.Nonce
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed, err := k.signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}
