// Package dpop makes and reads the proofs by which a client shows that it has the key that its token is bound to (RFC 9449, and the DPoP
// profile of MCP). It has no clock and no state: the caller decides whether a proof is fresh.
package dpop

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"math"
	"net"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Names of HTTP.
const (
	Scheme = "DPoP" // of the Authorization header, for tokens that are bound to a key
	Header = "Dpop" // the header with a proof, as net/http has it
	Nonce  = "Dpop-Nonce"
)

// Codes of errors (RFC 9449, section 12.2).
const (
	CodeProof = "invalid_dpop_proof"
	CodeNonce = "use_dpop_nonce"
)

// algorithms are those that a proof may be signed with: only algorithms with a public key, so neither HMAC nor "none".
var algorithms = []jose.SignatureAlgorithm{
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA, jose.PS256, jose.PS384, jose.PS512, jose.RS256, jose.RS384, jose.RS512,
}

// Algorithms returns the names of the algorithms that a proof may be signed with.
func Algorithms() (names []string) {
	for _, a := range algorithms {
		names = append(names, string(a))
	}
	return names
}

// Bounds of the proofs that are read. Any client may send one.
const (
	mostProof = 8 << 10 // bytes
	mostID    = 1 << 10 // bytes of a jti
	leastRSA  = 2048    // bits of a key
	mostRSA   = 8192
)

// A Proof is a proof with a valid signature: its key and its claims.
type Proof struct {
	Key    string // the thumbprint of the key (RFC 7638), as tokens have it in cnf.jkt
	ID     string
	Method string
	Issued time.Time
	Nonce  string // "": none

	url, token, digest string
}

// Parse reads a proof (RFC 9449, section 4.3, steps 2 to 7).
func Parse(text string) (*Proof, error) {
	if len(text) > mostProof {
		return nil, fmt.Errorf("the proof has more than %d bytes", mostProof)
	}
	jws, err := jose.ParseSignedCompact(text, algorithms)
	if err != nil {
		return nil, errors.New("the proof is no JWT that is signed with an algorithm and a public key that are taken here")
	}
	head := jws.Signatures[0].Protected
	if typ, _ := head.ExtraHeaders[jose.HeaderType].(string); !strings.EqualFold(strings.TrimPrefix(typ, "application/"), "dpop+jwt") {
		return nil, fmt.Errorf("the type of the proof is %.40q: want dpop+jwt", typ)
	}
	jwk := head.JSONWebKey
	if jwk == nil || !jwk.IsPublic() || !jwk.Valid() {
		return nil, errors.New("the proof has no public key (jwk)")
	}
	if k, ok := jwk.Key.(*rsa.PublicKey); ok && (k.N.BitLen() < leastRSA || k.N.BitLen() > mostRSA) {
		return nil, fmt.Errorf("the key of the proof has %d bits: want %d to %d", k.N.BitLen(), leastRSA, mostRSA)
	}
	payload, err := jws.Verify(jwk)
	if err != nil {
		return nil, errors.New("the signature of the proof is not of its key")
	}
	var says struct {
		ID     string       `json:"jti"`
		Method string       `json:"htm"`
		URL    string       `json:"htu"`
		Issued *json.Number `json:"iat"`
		Token  string       `json:"ath"`
		Nonce  string       `json:"nonce"`
		Digest string       `json:"content_digest"`
	}
	if err := json.Unmarshal(payload, &says); err != nil {
		return nil, errors.New("the claims of the proof cannot be read")
	}
	var issued float64
	if says.Issued != nil {
		issued, err = says.Issued.Float64()
	}
	switch {
	case says.ID == "" || len(says.ID) > mostID:
		return nil, fmt.Errorf("the proof has no id (jti), or one of more than %d bytes", mostID)
	case says.Method == "" || says.URL == "":
		return nil, errors.New("the proof does not say what it is for (htm, htu)")
	case says.Issued == nil || err != nil || math.Abs(issued) > 1e15:
		return nil, errors.New("the proof does not say when it was made (iat)")
	}
	thumb, err := thumbprint(jwk)
	if err != nil {
		return nil, err
	}
	return &Proof{
		Key: thumb, ID: says.ID, Method: says.Method, Issued: time.Unix(int64(issued), 0), Nonce: says.Nonce,
		url: says.URL, token: says.Token, digest: says.Digest,
	}, nil
}

func thumbprint(key *jose.JSONWebKey) (string, error) {
	sum, err := key.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", errors.New("the key of the proof has no thumbprint")
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}

// IsFor reports whether the proof is for a URL. Query and fragment do not count.
func (p *Proof) IsFor(to string) bool {
	a, err1 := normal(p.url)
	b, err2 := normal(to)
	return err1 == nil && err2 == nil && a == b
}

// normal returns the normal form of a URL (RFC 3986, sections 6.2.2 and 6.2.3), without query and fragment. It replaces ws by http and wss
// by https, as a WebSocket is opened with a request over HTTP.
func normal(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", err
	}
	scheme := strings.ToLower(u.Scheme)
	switch scheme {
	case "ws":
		scheme = "http"
	case "wss":
		scheme = "https"
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if host == "" || u.Opaque != "" || u.User != nil {
		return "", errors.New("it has no host, or a user")
	}
	if port != "" && port != map[string]string{"http": "80", "https": "443"}[scheme] {
		host = net.JoinHostPort(host, port)
	}
	at := u.Path
	if strings.Contains(at, "/.") { // a path without dots stays as the server gets it
		at = path.Clean(at)
	}
	if at == "" {
		at = "/"
	}
	return scheme + "://" + host + (&url.URL{Path: at}).EscapedPath(), nil
}

// Covers reports whether the proof is for a token.
func (p *Proof) Covers(token string) bool {
	return subtle.ConstantTimeCompare([]byte(p.token), []byte(tokenHash(token))) == 1
}

func tokenHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// A Digest checks that a body has the digest that a proof names.
type Digest struct{ sums []sum }

type sum struct {
	hash hash.Hash
	want []byte
}

// Digest returns the check of the body of the proof's request (the DPoP profile of MCP, "Content Digest Calculation"); nil: the proof
// allows any body.
func (p *Proof) Digest() (*Digest, error) {
	if p.digest == "" {
		return nil, nil
	}
	d := &Digest{}
	for one := range strings.SplitSeq(p.digest, ",") { // RFC 9530, section 2
		name, value, _ := strings.Cut(strings.TrimSpace(one), "=")
		text := strings.TrimSuffix(strings.TrimPrefix(value, ":"), ":")
		want, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(value) != len(text)+2 {
			return nil, errors.New("the digest of the proof (content_digest) cannot be read: want sha-256, as RFC 9530 has it")
		}
		switch strings.ToLower(name) {
		case "sha-256":
			d.sums = append(d.sums, sum{sha256.New(), want})
		case "sha-512":
			d.sums = append(d.sums, sum{sha512.New(), want})
		}
	}
	if d.sums == nil {
		return nil, errors.New("the digest of the proof (content_digest) has no algorithm that is known: want sha-256")
	}
	return d, nil
}

// Write adds a piece of the body. It returns no error.
func (d *Digest) Write(p []byte) (int, error) {
	for _, one := range d.sums {
		_, _ = one.hash.Write(p) // it never fails
	}
	return len(p), nil
}

// Holds reports whether the body that was written has the digest.
func (d *Digest) Holds() bool {
	for _, one := range d.sums {
		if subtle.ConstantTimeCompare(one.hash.Sum(nil), one.want) != 1 {
			return false
		}
	}
	return true
}
