package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"holdfast/internal/dpop"
)

// Methods of authentication at a token endpoint (RFC 7591, section 2; RFC 7523).
const (
	methodNone  = "none"
	methodPost  = "client_secret_post"
	methodBasic = "client_secret_basic"
	methodKey   = "private_key_jwt"
)

// mostAnswer bounds an answer of an authorization server, in bytes.
const mostAnswer = 1 << 20

// A tokenError is the error response of a token endpoint (RFC 6749, section 5.2). It shows no secrets: the description is the
// authorization server's own text.
type tokenError struct {
	status            int
	code, description string
	host              string
}

// Error implements error.
func (e *tokenError) Error() string {
	switch {
	case e.code == "":
		return fmt.Sprintf("%s answers HTTP %d", e.host, e.status)
	case e.description == "":
		return fmt.Sprintf("%s says %s", e.host, e.code)
	}
	return fmt.Sprintf("%s says %s: %s", e.host, e.code, e.description)
}

// says reports whether an error is one of a token endpoint with a code.
func says(err error, codes ...string) bool {
	var e *tokenError
	return errors.As(err, &e) && slices.Contains(codes, e.code)
}

// passes reports whether the same request may succeed later.
func passes(err error) bool {
	var e *tokenError
	return !errors.As(err, &e) || e.code == "" && (e.status >= 500 || e.status == http.StatusTooManyRequests) ||
		e.code == "temporarily_unavailable" || e.code == "server_error"
}

// oneLine returns a text of a server for one line of a log or a terminal.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	return fmt.Sprintf("%.300s", strings.Join(strings.Fields(text), " "))
}

// post sends a form to an endpoint of an authorization server with the client's authentication, and reads its JSON. With a key, which may be nil, it
// has a proof, and is sent once more if that needs a nonce of the server.
func (s *Source) post(ctx context.Context, endpoint string, who identity, where places, issuer string, form url.Values, key *dpop.Key, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	err := s.postOnce(ctx, endpoint, who, where, issuer, form, key, into)
	if key != nil && says(err, dpop.CodeNonce) {
		err = s.postOnce(ctx, endpoint, who, where, issuer, form, key, into)
	}
	return err
}

func (s *Source) postOnce(ctx context.Context, endpoint string, who identity, where places, issuer string, form url.Values, key *dpop.Key, into any) error {
	header := make(http.Header)
	if err := s.authenticate(who, where, issuer, form, header); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return errors.New("the metadata of the authorization server names an endpoint that cannot be read")
	}
	header.Set("Content-Type", "application/x-www-form-urlencoded")
	header.Set("Accept", "application/json")
	req.Header = header
	if key != nil {
		if err := s.proofs.add(req, key, &dpop.Request{}); err != nil {
			return err
		}
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return outOfReach(err)
	}
	defer resp.Body.Close()
	s.proofs.hear(req.URL, resp.Header)
	data, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return outOfReach(err)
	}
	var said struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	_ = json.Unmarshal(data, &said) // else the answer has no error
	if resp.StatusCode/100 != 2 || said.Error != "" {
		return &tokenError{status: resp.StatusCode, code: oneLine(said.Error), description: oneLine(said.Description), host: req.URL.Host}
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s answers with something that is no JSON of a token endpoint", req.URL.Host)
	}
	return nil
}

// outOfReach returns an error of net/http without the URL, which may hold secrets.
func outOfReach(err error) error {
	if in, ok := errors.AsType[*url.Error](err); ok {
		if errors.Is(err, context.DeadlineExceeded) {
			in.Err = errors.New("it does not answer")
		}
		host := "the authorization server"
		if u, err := url.Parse(in.URL); err == nil {
			host = u.Host
		}
		return fmt.Errorf("%s: %w", host, in.Err)
	}
	return err
}

// authenticate puts the client's authentication into the form or the header.
func (s *Source) authenticate(who identity, where places, issuer string, form url.Values, header http.Header) error {
	secret := who.Secret
	if secret == "" && who.ID == s.opts.ClientID {
		secret = s.opts.ClientSecret
	}
	method := who.Method
	switch {
	case s.opts.ClientKey != nil && who.ID == s.opts.ClientID:
		method = methodKey
	case secret == "":
		method = methodNone
	case method != "" && method != methodNone:
	case len(where.Methods) == 0 || slices.Contains(where.Methods, methodBasic):
		method = methodBasic // the default (RFC 8414, section 2)
	default:
		method = methodPost
	}
	switch method {
	case methodBasic:
		req := http.Request{Header: header}
		req.SetBasicAuth(url.QueryEscape(who.ID), url.QueryEscape(secret))
	case methodPost:
		form.Set("client_id", who.ID)
		form.Set("client_secret", secret)
	case methodKey:
		assertion, err := assertionOf(s.opts.ClientKey, who.ID, issuer, where.Algorithms, time.Now())
		if err != nil {
			return err
		}
		form.Set("client_id", who.ID)
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", assertion)
	default:
		form.Set("client_id", who.ID)
	}
	return nil
}

// ask asks a token endpoint for a token. resource is the URL that the token is for. The scopes are those that the answer names, nil if it
// says nothing of them.
func (s *Source) ask(ctx context.Context, who identity, where places, issuer, resource string, form url.Values, b binding) (token, []string, error) {
	if resource != "" {
		form.Set("resource", resource)
	}
	var got struct {
		Access  string          `json:"access_token"`
		Type    string          `json:"token_type"`
		Refresh string          `json:"refresh_token"`
		Expires json.RawMessage `json:"expires_in"`
		Scope   *string         `json:"scope"`
	}
	now, bound := time.Now().Round(0), false
	if err := s.post(ctx, where.Token, who, where, issuer, form, b.key, &got); err != nil {
		return token{}, nil, err
	}
	switch {
	case got.Access == "" || strings.ContainsFunc(got.Access, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return token{}, nil, errors.New("the authorization server answers without a token")
	case b.key != nil && strings.EqualFold(got.Type, dpop.Scheme):
		bound = true
	case b.must:
		return token{}, nil, &tokenError{host: "the authorization server", code: fmt.Sprintf("token_type %.40q", oneLine(got.Type)), description: "a token that is bound to a key is needed: want DPoP"}
	case got.Type != "" && !strings.EqualFold(got.Type, "Bearer"):
		return token{}, nil, fmt.Errorf("the authorization server gives a token of type %.40q: want Bearer", oneLine(got.Type))
	}
	t := token{Access: got.Access, Refresh: got.Refresh, Obtained: now, Bound: bound}
	// Some servers write the number as a text.
	if seconds, err := strconv.ParseFloat(strings.Trim(string(got.Expires), `"`), 64); err == nil && seconds > 0 && seconds < 1e9 {
		t.Expiry = now.Add(time.Duration(seconds * float64(time.Second)))
	}
	if got.Scope == nil { // RFC 6749, section 5.1: the scopes are those that were asked for
		return t, nil, nil
	}
	return t, strings.Fields(*got.Scope), nil
}

// finishing returns a context for asking for a token. It lasts for lastTry longer than ctx: the authorization server may have the request,
// and take its code or refresh token no more. Then the answer is all that is left of the login.
func finishing(ctx context.Context) (lasting context.Context, end func()) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastTry, cancel) })
	return lasting, func() { stop(); cancel() }
}

// renew asks for a token with the refresh token of the last login, or with the client's credentials. The error is a [tokenError], or [passes] is true for it.
func (s *Source) renew(ctx context.Context, r record) (record, error) {
	form := url.Values{}
	switch {
	case r.Token.Refresh != "":
		form.Set("grant_type", "refresh_token")
		form.Set("refresh_token", r.Token.Refresh)
	default:
		form.Set("grant_type", "client_credentials")
		if len(r.Scopes) > 0 {
			form.Set("scope", strings.Join(r.Scopes, " "))
		}
	}
	b, err := bindingOf(r)
	if err != nil {
		return r, err
	}
	t, granted, err := s.ask(ctx, r.Client, r.Places, r.Issuer, r.Resource, form, b)
	if err != nil {
		return r, err
	}
	if t.Refresh == "" {
		t.Refresh = r.Token.Refresh
	}
	t.Login, t.Taken = r.Token.Login, r.Token.Taken
	r.Token = t
	if granted != nil {
		r.Scopes = granted
	}
	return r, nil
}

// renewable reports whether there may be another token without a user.
func (s *Source) renewable(r record) bool {
	return r.Places.Token != "" && (r.Token.Refresh != "" || s.opts.Way == Credentials && r.Token.Access != "")
}

// Of requests to authorization servers: how long one may take, how long those that fail are repeated, and for how long a token is waited for
// at the end.
const (
	askWithin  = 30 * time.Second
	tryFor     = 30 * time.Second
	lastTry    = 5 * time.Second
	tryAgainIn = 500 * time.Millisecond
)
