package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"golang.org/x/sync/singleflight"
)

// A Grant says how to get tokens for an upstream server from its authorization server.
type Grant struct {
	TokenURL   string
	ID, Secret string // of Holdfast at the authorization server
	Scopes     []string
	Resource   string // RFC 8707; may be ""
	Audience   string // may be ""
	Exchange   bool   // the client's token is exchanged (RFC 8693); else the token is Holdfast's own (RFC 6749, section 4.4)
}

// A Transport adds a token to the requests for an upstream server. With Grant.Exchange a request must have
// the client's token, which only the authorization server gets. A Transport may be used concurrently.
type Transport struct {
	base   http.RoundTripper
	server *url.URL
	grant  Grant
	log    *slog.Logger
	ask    *http.Client

	asking singleflight.Group
	tokens cache[string] // by the client's token, or ""
}

// The times of tokens for servers.
const (
	tokenUsed  = 5 * time.Minute  // a token without an expiry is used for so long
	tokenEarly = 10 * time.Second // a token is replaced so long before it expires
)

// NewTransport returns a transport to the server at a URL.
func NewTransport(base http.RoundTripper, server string, grant Grant, log *slog.Logger) *Transport {
	t := &Transport{base: base, grant: grant, log: log, ask: &http.Client{
		Transport: base,
		Timeout:   fetchWithin,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("it redirects, which is not followed")
		},
	}}
	t.server, _ = url.Parse(server) // else no request gets a token
	return t
}

// RoundTrip implements [http.RoundTripper]. A request that the server refuses with 401 is sent once more
// with a new token. If no token can be had, or the server refuses a new one, the status is 403, without a
// challenge: the client can do nothing about it.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	shown, _ := tokenOf(r)
	client := shown.token
	if t.server == nil || r.URL.Host != t.server.Host {
		return nil, fmt.Errorf("%s is not the server that a token is for", r.URL.Host)
	}
	for again := false; ; again = true {
		with := r.Clone(r.Context())
		with.Header.Set("Authorization", "Bearer")
		token, err := t.token(r.Context(), client)
		if err != nil {
			if r.Context().Err() != nil {
				return nil, r.Context().Err()
			}
			t.log.Error("no token for the upstream server", "error", err)
			return refusal(with), nil
		}
		with.Header.Set("Authorization", "Bearer "+token)
		if again && r.GetBody != nil {
			if with.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		resp, err := t.base.RoundTrip(with)
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			return resp, err
		}
		_ = resp.Body.Close()
		t.tokens.drop(client)
		if again || r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
			if t.grant.Exchange { // else the backend says so
				t.log.Error("the upstream server refuses its token", "server", r.URL.Host)
			}
			return refusal(with), nil
		}
	}
}

// refusal returns the answer to a request that is not sent, or is sent with a token that the server
// refuses. Like any answer's, its request has the header Authorization: it shows that the token is not the
// client's.
func refusal(r *http.Request) *http.Response {
	const text = "Holdfast is not authorized at this server"
	if r.Body != nil {
		_ = r.Body.Close()
	}
	return &http.Response{
		Status: "403 Forbidden", StatusCode: http.StatusForbidden, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
	}
}

// token returns a token for a client's requests. Concurrent requests for the same token share one fetch.
func (t *Transport) token(ctx context.Context, client string) (string, error) {
	switch {
	case !t.grant.Exchange:
		client = ""
	case client == "" || strings.HasPrefix(client, keyPrefix):
		return "", errors.New("the client has no token that could be exchanged")
	}
	if token, ok := t.tokens.get(client); ok {
		return token, nil
	}
	got := t.asking.DoChan(client, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchWithin)
		defer cancel()
		token, err := t.fetch(ctx, client)
		if err != nil {
			return nil, err
		}
		until := time.Now().Add(tokenUsed)
		if !token.Expiry.IsZero() {
			until = token.Expiry.Add(-tokenEarly)
		}
		t.tokens.put(client, token.AccessToken, until)
		return token.AccessToken, nil
	})
	select {
	case one := <-got:
		if one.Err != nil {
			return "", one.Err
		}
		return one.Val.(string), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// fetch gets a token from the authorization server.
func (t *Transport) fetch(ctx context.Context, client string) (*oauth2.Token, error) {
	conf := clientcredentials.Config{
		ClientID: t.grant.ID, ClientSecret: t.grant.Secret, TokenURL: t.grant.TokenURL, Scopes: t.grant.Scopes, EndpointParams: url.Values{},
	}
	for name, value := range map[string]string{"resource": t.grant.Resource, "audience": t.grant.Audience} {
		if value != "" {
			conf.EndpointParams.Set(name, value)
		}
	}
	if t.grant.Exchange { // the same form, of another grant type
		for name, value := range map[string]string{
			"grant_type":           "urn:ietf:params:oauth:grant-type:token-exchange",
			"subject_token":        client,
			"subject_token_type":   "urn:ietf:params:oauth:token-type:access_token",
			"requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
		} {
			conf.EndpointParams.Set(name, value)
		}
	}
	token, err := conf.Token(context.WithValue(ctx, oauth2.HTTPClient, t.ask))
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused): // its text has the whole answer
		return nil, fmt.Errorf("%s answered %s (%.100q)", t.grant.TokenURL, refused.Response.Status, refused.ErrorCode)
	case err != nil:
		return nil, err
	case !strings.EqualFold(token.Type(), "Bearer"):
		return nil, fmt.Errorf("%s answered with a token of type %.40q: want Bearer", t.grant.TokenURL, token.Type())
	}
	return token, nil
}
