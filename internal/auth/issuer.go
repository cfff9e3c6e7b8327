package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

// errUnavailable says that the authorization server could not be asked.
var errUnavailable = errors.New("the authorization server is not available")

// algorithms are those that a token may be signed with: only algorithms with a public key, so neither HMAC
// nor "none".
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
}

// The times of an issuer's keys.
const (
	keysFresh   = 10 * time.Minute // keys that are older are fetched again
	keysKept    = time.Hour        // keys are used for so long if fetching fails
	fetchEvery  = time.Second      // the least time between two fetches: Issuer.every
	fetchWithin = 10 * time.Second
	retryEvery  = 10 * time.Second // the same, while the known keys will do
)

// An Issuer is an authorization server. Its metadata and keys are fetched when they are needed.
// Its methods may be called concurrently.
type Issuer struct {
	url    string
	client *http.Client
	every  time.Duration

	introspection *introspection // nil: opaque tokens are refused

	fetching chan struct{} // a lock: the request that fetches has its one element

	mu      sync.Mutex
	known   metadata
	fetched time.Time // when known was fetched
	tried   time.Time // when the last fetch ended
	err     error     // of the last fetch
}

// metadata are the keys and endpoints that an issuer publishes.
type metadata struct {
	keys []jose.JSONWebKey

	introspection string // the URL of the introspection endpoint, or ""
	byForm        bool   // the endpoint takes the client's secret in the form only
}

// NewIssuer returns the issuer with a URL. The URL must be https, or http on a loopback address.
func NewIssuer(at string) (*Issuer, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || strings.ContainsAny(at, " \t") {
		return nil, fmt.Errorf("issuer %q: want a URL like https://auth.example.com", at)
	}
	if !secure(u) {
		return nil, fmt.Errorf("issuer %q: want https, because keys are fetched from there", at)
	}
	return &Issuer{url: at, every: fetchEvery, fetching: make(chan struct{}, 1), client: &http.Client{
		Timeout: fetchWithin,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("it redirects, which is not followed")
		},
	}}, nil
}

// secure reports whether answers from a URL can be trusted.
func secure(u *url.URL) bool {
	if u.Scheme == "https" {
		return true
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "http" && (u.Hostname() == "localhost" || err == nil && ip.IsLoopback())
}

// URL returns the issuer's name, as tokens have it.
func (i *Issuer) URL() string { return i.url }

// Check fetches metadata and keys, so that mistakes in the configuration show early.
func (i *Issuer) Check(ctx context.Context) error {
	if i.introspection != nil {
		if _, _, err := i.introspector(ctx); err != nil {
			return err
		}
	}
	_, err := i.find(ctx, "")
	return err
}

// find returns the keys that a signature with a key id may have been made with.
func (i *Issuer) find(ctx context.Context, id string) ([]jose.JSONWebKey, error) {
	m, err := i.metadata(ctx, func(m *metadata) bool { return len(matching(m.keys, id)) > 0 })
	return matching(m.keys, id), err
}

// metadata returns the issuer's metadata. It fetches them if the known ones are old, or not enough. It may
// wait for another request that fetches them.
func (i *Issuer) metadata(ctx context.Context, enough func(*metadata) bool) (metadata, error) {
	i.mu.Lock()
	known, age, tried := i.known, time.Since(i.fetched), i.tried
	i.mu.Unlock()
	if enough(&known) && (age < keysFresh || age < keysKept && time.Since(tried) < retryEvery) {
		return known, nil
	}
	err := i.fetch(ctx, tried)
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil && (!enough(&i.known) || time.Since(i.fetched) >= keysKept) {
		return metadata{}, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return i.known, nil
}

func matching(keys []jose.JSONWebKey, id string) (found []jose.JSONWebKey) {
	for _, k := range keys {
		if (id == "" || k.KeyID == "" || k.KeyID == id) && k.Use != "enc" && k.IsPublic() {
			found = append(found, k)
		}
	}
	return found
}

// fetch fetches the metadata, unless another request has done so since a time. It asks the issuer once per
// Issuer.every at most, however many wrong tokens clients send.
func (i *Issuer) fetch(ctx context.Context, since time.Time) error {
	select {
	case i.fetching <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-i.fetching }()
	i.mu.Lock()
	tried, err := i.tried, i.err
	i.mu.Unlock()
	if tried.After(since) {
		return err
	}
	if wait := i.every - time.Since(tried); wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// Other requests wait for this fetch, so it goes on if this request is cancelled.
	known, err := i.ask(context.WithoutCancel(ctx))
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tried, i.err = time.Now(), err
	if err == nil {
		i.known, i.fetched = known, i.tried
	}
	return err
}

// ask fetches the metadata (RFC 8414, and OpenID Connect Discovery) and the keys.
func (i *Issuer) ask(ctx context.Context) (metadata, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	var errs []error
	for _, at := range wellKnown(i.url) {
		var says struct {
			Issuer        string   `json:"issuer"`
			Keys          string   `json:"jwks_uri"`
			Introspection string   `json:"introspection_endpoint"`
			Methods       []string `json:"introspection_endpoint_auth_methods_supported"`
		}
		if err := i.get(ctx, at, &says); err != nil {
			errs = append(errs, err)
			continue
		}
		if says.Issuer != i.url { // RFC 8414, section 3.3
			return metadata{}, fmt.Errorf("%s says that the issuer is %.200q, not %q", at, says.Issuer, i.url)
		}
		known := metadata{
			introspection: says.Introspection,
			byForm:        slices.Contains(says.Methods, "client_secret_post") && !slices.Contains(says.Methods, "client_secret_basic"),
		}
		if says.Keys == "" && i.introspection != nil {
			return known, nil // its tokens are opaque
		}
		var err error
		known.keys, err = i.askKeys(ctx, at, says.Keys)
		return known, err
	}
	return metadata{}, errors.Join(errs...)
}

// askKeys fetches the keys from the URL at. metadata is the URL of the metadata that name it.
func (i *Issuer) askKeys(ctx context.Context, metadata, at string) ([]jose.JSONWebKey, error) {
	if u, err := url.Parse(at); err != nil || !secure(u) {
		return nil, fmt.Errorf("%s has no usable jwks_uri: %.200q", metadata, at)
	}
	// Keys of unknown kinds must not hide the others.
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := i.get(ctx, at, &set); err != nil {
		return nil, err
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		if json.Unmarshal(raw, &k) == nil && k.Valid() {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no keys", at)
	}
	return keys, nil
}

// wellKnown returns the URLs at which the metadata of an issuer may be (RFC 8414, sections 3.1 and 5).
func wellKnown(issuer string) []string {
	u, _ := url.Parse(issuer) // it was checked
	at := strings.TrimSuffix(u.EscapedPath(), "/")
	origin := u.Scheme + "://" + u.Host
	urls := []string{
		origin + "/.well-known/oauth-authorization-server" + at,
		origin + "/.well-known/openid-configuration" + at,
	}
	if at != "" {
		urls = append(urls, origin+at+"/.well-known/openid-configuration")
	}
	return urls
}

func (i *Issuer) get(ctx context.Context, at string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	return i.do(req, into)
}

// do makes a request, and decodes the answer.
func (i *Issuer) do(req *http.Request, into any) error {
	resp, err := i.client.Do(req)
	if err != nil {
		if refused, ok := errors.AsType[*net.OpError](err); ok {
			return fmt.Errorf("%s: %w", req.URL, refused)
		}
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", req.URL, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", req.URL, err)
	}
	return nil
}

// verified is a client that is authenticated, as its token, key or certificate describes it.
type verified struct {
	subject   string
	audience  []string
	scopes    []string
	expires   time.Time
	principal string

	confirmation confirmation // nil: any client may have the token
}

// verify checks a token of a client at an address: a JWT's signature, type, issuer and times. The caller
// checks audience, scopes and confirmation.
func (i *Issuer) verify(ctx context.Context, token, address string) (*verified, error) {
	if i.introspection != nil && opaque(token) {
		return i.introspect(ctx, token, address)
	}
	asked := &signature{issuer: i}
	// The audience is checked by the caller: there may be several.
	v := oidc.NewVerifier(i.url, asked, &oidc.Config{SkipClientIDCheck: true, SupportedSigningAlgs: algorithms})
	t, err := v.Verify(ctx, token)
	if errors.Is(asked.err, errUnavailable) {
		return nil, asked.err
	}
	if err != nil {
		return nil, err
	}
	if t.Subject == "" {
		return nil, errors.New("the token has no subject")
	}
	var claims struct {
		Scope scopes `json:"scope"` // RFC 9068
		Scp   scopes `json:"scp"`   // of other issuers

		Confirmation confirmation `json:"cnf"`
		purpose
		begins
	}
	if err := t.Claims(&claims); err != nil {
		return nil, err
	}
	if err := errors.Join(claims.purpose.check(), claims.begins.check()); err != nil {
		return nil, err
	}
	return &verified{
		subject: t.Subject, audience: t.Audience, expires: t.Expiry,
		scopes: append(claims.Scope, claims.Scp...), principal: principalOf(i.url, t.Subject),
		confirmation: claims.Confirmation,
	}, nil
}

// principalOf returns the principal of a subject. An issuer has no spaces, so no two pairs have the same
// principal.
func principalOf(issuer, subject string) string { return issuer + " " + subject }

// scopes are, in JSON, a list of texts, or one text with spaces between the scopes.
type scopes []string

// UnmarshalJSON implements [json.Unmarshaler].
func (s *scopes) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*s = strings.Fields(text)
		return nil
	}
	return json.Unmarshal(data, (*[]string)(s))
}

// signature gives the verifier the keys of an issuer for one token. It keeps the error of fetching them,
// which the verifier's error does not wrap.
type signature struct {
	issuer *Issuer
	err    error
}

// VerifySignature implements [oidc.KeySet].
func (s *signature) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	var allowed []jose.SignatureAlgorithm
	for _, a := range algorithms {
		allowed = append(allowed, jose.SignatureAlgorithm(a))
	}
	jws, err := jose.ParseSigned(token, allowed)
	if err != nil {
		return nil, err
	}
	head := jws.Signatures[0].Protected
	if err := checkType(head.ExtraHeaders[jose.HeaderType]); err != nil {
		return nil, err
	}
	keys, err := s.issuer.find(ctx, head.KeyID)
	if err != nil {
		s.err = err
		return nil, err
	}
	for _, k := range keys {
		if k.Algorithm != "" && k.Algorithm != head.Algorithm {
			continue
		}
		if payload, err := jws.Verify(&k); err == nil {
			return payload, nil
		}
	}
	return nil, errors.New("no key of the issuer fits")
}
