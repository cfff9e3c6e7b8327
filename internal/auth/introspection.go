package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"holdfast/internal/dpop"
)

// An introspection asks an issuer about opaque tokens (RFC 7662), and keeps its answers.
type introspection struct {
	endpoint   string // "": the one of the metadata
	id, secret string // of Holdfast at the issuer

	asking singleflight.Group
	places struct{ proven, others places } // of requests to the issuer: for tokens that were good before, and for all others

	good cache[*verified]
	bad  cache[error] // a cache of their own, so that wrong tokens do not push good ones out
}

// answerKept is how long an answer of the issuer is used before it is asked again.
const answerKept = 30 * time.Second

// Introspect turns on introspection (RFC 7662): the issuer is asked about tokens that are not JWTs, as the
// client id with secret. An empty endpoint stands for the one of the issuer's metadata. It is called before the
// issuer is used.
func (i *Issuer) Introspect(endpoint, id, secret string) error {
	if u, err := url.Parse(endpoint); endpoint != "" && (err != nil || u.Host == "" || u.Fragment != "" || u.User != nil || !secure(u)) {
		return fmt.Errorf("introspection endpoint %q: want a URL like https://auth.example.com/introspect, over https because a secret is sent there", endpoint)
	}
	i.introspection = &introspection{endpoint: endpoint, id: id, secret: secret}
	return nil
}

// opaque reports whether a token is not a signed JWT, so that only its issuer can check it.
func opaque(token string) bool {
	head, rest, _ := strings.Cut(token, ".")
	text, err := base64.RawURLEncoding.DecodeString(head)
	return strings.Count(rest, ".") != 1 || err != nil || !strings.HasPrefix(string(text), "{")
}

// introspect checks an opaque token of a client at an address. It keeps the answer for answerKept, unless the
// issuer gave none, or the token is not valid yet. Concurrent requests with the same token share one answer.
func (i *Issuer) introspect(ctx context.Context, token, address string) (*verified, error) {
	in := i.introspection
	if v, ok := in.good.get(token); ok {
		return v, nil
	}
	if err, ok := in.bad.get(token); ok {
		return nil, err
	}
	got := in.asking.DoChan(token, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchWithin)
		defer cancel()
		v, err := i.askAbout(ctx, token, address)
		until := time.Now().Add(answerKept)
		switch {
		case errors.Is(err, errUnavailable):
		case errors.Is(err, errNotYet): // by our clock
			in.good.drop(token)
		case err != nil:
			in.good.drop(token)
			in.bad.put(token, err, until)
		default:
			if !v.expires.IsZero() && v.expires.Before(until) {
				until = v.expires
			}
			in.good.put(token, v, until)
		}
		return v, err
	})
	select {
	case one := <-got:
		v, _ := one.Val.(*verified)
		return v, one.Err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errUnavailable, ctx.Err())
	}
}

// introspector returns the URL of the introspection endpoint, and whether it takes the client's secret in the
// form.
func (i *Issuer) introspector(ctx context.Context) (endpoint string, byForm bool, err error) {
	if at := i.introspection.endpoint; at != "" {
		return at, false, nil
	}
	m, err := i.metadata(ctx, func(m *metadata) bool { return m.introspection != "" })
	if err != nil {
		return "", false, err
	}
	if u, err := url.Parse(m.introspection); err != nil || u.Host == "" || !secure(u) {
		return "", false, fmt.Errorf("%w: the metadata of %s has no usable introspection_endpoint: %.200q", errUnavailable, i.url, m.introspection)
	}
	return m.introspection, m.byForm, nil
}

// askAbout asks the issuer about a token.
func (i *Issuer) askAbout(ctx context.Context, token, address string) (*verified, error) {
	in := i.introspection
	at := &in.places.others
	if in.good.has(token) {
		at = &in.places.proven
	}
	if err := at.take(ctx, address); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	defer at.give(address)
	endpoint, byForm, err := i.introspector(ctx)
	if err != nil {
		return nil, err
	}
	form := url.Values{"token": {token}, "token_type_hint": {"access_token"}}
	if byForm {
		form.Set("client_id", in.id)
		form.Set("client_secret", in.secret)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if !byForm { // RFC 6749, section 2.3.1
		req.SetBasicAuth(url.QueryEscape(in.id), url.QueryEscape(in.secret))
	}
	var says introspected
	if err := i.do(req, &says); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return says.check(i.url)
}

// introspected is an issuer's answer about a token (RFC 7662, section 2.2).
type introspected struct {
	Active       bool         `json:"active"`
	Issuer       string       `json:"iss"`
	Subject      string       `json:"sub"`
	Audience     audience     `json:"aud"`
	Scope        scopes       `json:"scope"`
	Type         string       `json:"token_type"`
	Use          string       `json:"token_use"` // some issuers have it, to mark refresh tokens
	Expires      *json.Number `json:"exp"`
	Confirmation confirmation `json:"cnf"`
	begins
}

// check returns the client of a valid token, as [Issuer.verify] does for a JWT.
func (t *introspected) check(issuer string) (*verified, error) {
	expires, err1 := seconds(t.Expires)
	err2 := t.begins.check()
	_, bound := t.Confirmation.key()
	switch {
	case !t.Active:
		return nil, errors.New("the token is not active")
	case err1 != nil || err2 != nil:
		return nil, errors.Join(err1, err2)
	case t.Expires != nil && !time.Now().Before(expires):
		return nil, errors.New("the token has expired")
	case t.Issuer != "" && t.Issuer != issuer:
		return nil, fmt.Errorf("the token is of the issuer %.200q", t.Issuer)
	case t.Subject == "":
		return nil, errors.New("the token has no subject")
	case t.Type != "" && !strings.EqualFold(t.Type, bearer) && t.Type != "access_token" && (!strings.EqualFold(t.Type, dpop.Scheme) || !bound), t.Use != "" && t.Use != "access_token":
		return nil, fmt.Errorf("the token is no bearer token for access: %.40q %.40q", t.Type, t.Use)
	}
	return &verified{
		subject: t.Subject, audience: t.Audience, expires: expires, scopes: t.Scope,
		principal: principalOf(issuer, t.Subject), confirmation: t.Confirmation,
	}, nil
}

// clockSkew is how far the clock of an issuer may be ahead of ours.
const clockSkew = 5 * time.Minute

// errNotYet says that a token may become valid later.
var errNotYet = errors.New("the token is of the future")

// begins has the claims that say when a token begins to be valid.
type begins struct {
	NotBefore *json.Number `json:"nbf"`
	IssuedAt  *json.Number `json:"iat"`
}

// check returns an error for a token that is not valid yet, or is from the future.
func (b *begins) check() error {
	from, err1 := seconds(b.NotBefore)
	issued, err2 := seconds(b.IssuedAt)
	latest := time.Now().Add(clockSkew)
	switch {
	case err1 != nil || err2 != nil:
		return errors.Join(err1, err2)
	case from.After(latest):
		return fmt.Errorf("%w: it is not valid yet", errNotYet)
	case issued.After(latest):
		return fmt.Errorf("%w: it was issued in the future", errNotYet)
	}
	return nil
}

// seconds converts a number of seconds since 1970 to a time; nil to the zero time.
func seconds(n *json.Number) (time.Time, error) {
	if n == nil {
		return time.Time{}, nil
	}
	f, err := n.Float64()
	if err != nil {
		return time.Time{}, fmt.Errorf("a time of the token is no number: %w", err)
	}
	if math.Abs(f) > 1e15 { // it is not a time, and might not fit
		return time.Time{}, fmt.Errorf("a time of the token is out of range: %v", n)
	}
	return time.Unix(int64(f), 0), nil
}

// An audience is, in JSON, a list of texts, or one text.
type audience []string

// UnmarshalJSON implements [json.Unmarshaler].
func (a *audience) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		if text != "" {
			*a = audience{text}
		}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}
