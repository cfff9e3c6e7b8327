package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"holdfast/internal/redact"
)

// auth reads who may use a server: for each member the server's value, or else the value for
// all servers.
func (r *reader) auth(s *Server, own *settings) {
	var one, all authSettings
	if own != nil && own.Auth != nil {
		one = *own.Auth
	}
	if r.host.Holdfast.Auth != nil {
		all = *r.host.Holdfast.Auth
	}
	scopes, tools, upstream := one.Scopes, one.Tools, one.Upstream
	if scopes == nil {
		scopes = all.Scopes
	}
	if tools == nil {
		tools = all.Tools
	}
	if upstream == nil && s.Type != Stdio {
		upstream = all.Upstream
	}
	s.Auth.Scopes = r.scopes(scopes)
	for _, t := range tools {
		s.Auth.Tools = append(s.Auth.Tools, PatternScopes{t.Name, r.scopes(t.Value)})
	}
	if upstream != nil {
		r.upstream(s, upstream)
	}
}

// scopes reads scopes (RFC 6749, section 3.3).
func (r *reader) scopes(all []text) []string {
	for _, t := range all {
		if err := CheckScope(t.value); err != nil {
			r.failf(t.at, "%v", err)
		}
	}
	return values(all)
}

// CheckScope returns an error for a text that cannot be a scope (RFC 6749, section 3.3).
func CheckScope(s string) error {
	if s == "" || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' || c == '"' || c == '\\' }) {
		return fmt.Errorf("%q cannot be a scope: want a word without spaces and quotes", s)
	}
	return nil
}

// upstream reads which token a server gets.
func (r *reader) upstream(s *Server, u *upstreamAuth) {
	request := cmp.Or(u.ClientCredentials, u.TokenExchange)
	switch {
	case s.Type == Stdio:
		r.failf(u.at, "the server %q is a command: only a server with a url gets a token", s.Name)
	case s.Header.Get("Authorization") != "":
		r.failf(u.at, "the server %q has a header Authorization too: remove one", s.Name)
	case !u.passthrough && (u.ClientCredentials == nil) == (u.TokenExchange == nil):
		r.failf(u.at, "want one of clientCredentials and tokenExchange")
	case s.Share && u.ClientCredentials == nil:
		r.failf(u.at, "the server %q is shared by all clients (share): it cannot have the token of one of them", s.Name)
	case u.passthrough:
		s.Auth.Passthrough = true
	default:
		s.Auth.Token = r.token(s, request)
		s.Auth.Token.Exchange = u.TokenExchange != nil
	}
}

// token reads the request for a token.
func (r *reader) token(s *Server, q *tokenRequest) *TokenRequest {
	t := &TokenRequest{
		URL: r.expand(q.TokenURL), ID: r.expand(q.ClientID), Secret: r.expand(q.ClientSecret), Scopes: r.scopes(q.Scopes),
		Resource: r.expand(q.Resource), Audience: r.expand(q.Audience),
	}
	if q.ClientID.value == "" {
		r.failf(q.at, "clientId is missing: add it")
	}
	if q.TokenURL.value == "" {
		r.failf(q.at, "tokenUrl is missing: add it")
	} else if err := t.Complete(s.URL); err != nil && len(r.lacks) == 0 {
		r.failf(q.TokenURL.at, "%q is no URL of a token endpoint: %v", redact.Written(q.TokenURL.value), err)
	}
	return t
}

// Complete checks the URL of the token endpoint, and sets Resource, if it is not given, for the
// server at a URL. The error does not have the URL in it.
func (t *TokenRequest) Complete(server string) error {
	if u, err := url.Parse(t.URL); err != nil || u.Host == "" || u.User != nil || !safe(u) {
		return errors.New("want https://HOST/PATH, because secrets are sent there")
	}
	if t.Resource == "" { // as clients of the protocol have it
		if u, err := url.Parse(server); err == nil {
			u.User, u.RawQuery, u.Fragment = nil, "", ""
			t.Resource = u.String()
		}
	}
	return nil
}

// safe reports whether secrets may be sent to a URL.
func safe(u *url.URL) bool {
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || err == nil && ip.IsLoopback())
}
