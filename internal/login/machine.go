package login

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// credentials logs in without a user.
func (l *attempt) credentials(ctx context.Context) (record, error) {
	var err error
	if l.r.Client, err = l.s.client(ctx, l.at, ""); err != nil {
		return record{}, err
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(l.scopes) > 0 {
		form.Set("scope", strings.Join(l.scopes, " "))
	}
	t, granted, err := l.s.ask(ctx, l.r.Client, l.r.Places, l.r.Issuer, l.r.Resource, form, l.bound)
	if err != nil {
		return record{}, fmt.Errorf("no login at %s: %w", l.s.server.Host, err)
	}
	return l.done(l.r, t, granted), nil
}

// assertionFor is how long an assertion may be used.
const assertionFor = 2 * time.Minute

// assertionOf returns a JWT by which a client says who it is (RFC 7523, section 2.2).
func assertionOf(key crypto.Signer, id, issuer string, algorithms []string, now time.Time) (string, error) {
	var able []jose.SignatureAlgorithm
	switch k := key.Public().(type) {
	case *rsa.PublicKey:
		able = []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.RS512, jose.PS512}
	case ed25519.PublicKey:
		able = []jose.SignatureAlgorithm{jose.EdDSA}
	case *ecdsa.PublicKey:
		able = []jose.SignatureAlgorithm{map[int]jose.SignatureAlgorithm{256: jose.ES256, 384: jose.ES384, 521: jose.ES512}[k.Curve.Params().BitSize]}
	}
	if len(able) == 0 || able[0] == "" {
		return "", errors.New("--client-key: want a key for RSA, ECDSA or Ed25519")
	}
	algorithm := able[0]
	if len(algorithms) > 0 {
		i := slices.IndexFunc(able, func(a jose.SignatureAlgorithm) bool { return slices.Contains(algorithms, string(a)) })
		if i < 0 {
			return "", fmt.Errorf("--client-key: the authorization server takes signatures by %s, and the key makes others", oneLine(strings.Join(algorithms, ", ")))
		}
		algorithm = able[i]
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("--client-key: %w", err)
	}
	claims, err := json.Marshal(map[string]any{
		"iss": id, "sub": id, "aud": issuer, "jti": rand.Text(), "iat": now.Unix(), "exp": now.Add(assertionFor).Unix(),
	})
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		return "", fmt.Errorf("--client-key: %w", err)
	}
	return signed.CompactSerialize()
}

// ParseKey reads a private key in PEM.
func ParseKey(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("want a private key in PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		if ec, wrong := x509.ParseECPrivateKey(block.Bytes); wrong == nil {
			return ec, nil
		}
		if old, wrong := x509.ParsePKCS1PrivateKey(block.Bytes); wrong == nil {
			return old, nil
		}
		return nil, errors.New("want a private key in PEM, not encrypted, for RSA, ECDSA or Ed25519")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("want a private key for RSA, ECDSA or Ed25519")
	}
	return signer, nil
}
