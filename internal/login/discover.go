package login

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"holdfast/internal/dpop"
)

// A challenge is the challenge in a server's refusal (RFC 6750, section 3; RFC 9728, section 5.1).
type challenge struct {
	metadata string // URL of the metadata of the resource; ""
	scopes   []string
	code     string
	text     string // the description of code
	bound    bool   // it takes tokens that are bound to a key
}

// isOfProof reports whether a server refuses a proof, and not its token.
func (c *challenge) isOfProof() bool { return c.code == dpop.CodeProof || c.code == dpop.CodeNonce }

func challengeOf(header http.Header) challenge {
	var c challenge
	for _, value := range header.Values("WWW-Authenticate") {
		all, err := oauthex.ParseWWWAuthenticate([]string{value})
		if err != nil {
			continue // metadata is at its usual place
		}
		for _, one := range all {
			if c.metadata == "" {
				c.metadata = one.Params["resource_metadata"]
			}
			bound := one.Scheme == "dpop"
			if c.bound = c.bound || bound; (bound || one.Scheme == "bearer") && c.code == "" {
				c.code, c.text = one.Params["error"], one.Params["error_description"]
				if scopes := strings.Fields(one.Params["scope"]); len(scopes) > 0 {
					c.scopes = scopes
				}
			}
		}
	}
	return c
}

// An issuer is an authorization server, and the resource that it gives tokens for.
type issuer struct {
	oauthex.AuthServerMeta
	device   string // its device authorization endpoint; ""
	resource string
	scopes   []string // of the resource
	// guessed says that no metadata names it: it is of revision 2025-03-26, or no authorization server.
	guessed bool
	// proofs are the algorithms of proofs that the authorization server takes, if it gives tokens that are bound to a key; ofResource are those of the
	// server, if its metadata has some, and bound says that it takes no other tokens.
	proofs, ofResource []string
	bound              bool
}

// ErrNone says that a server has refused a client, and offers no login.
var ErrNone = errors.New("it offers no login: it may want --header 'Authorization: Bearer TOKEN'")

// discover finds the authorization server of the server.
func (s *Source) discover(ctx context.Context, c challenge) (*issuer, error) {
	resource, guessed, err := s.resource(ctx, c)
	if err != nil {
		return nil, err
	}
	var first error
	for _, one := range resource.AuthorizationServers {
		// A slash alone is no path: the metadata is at the root.
		id := one
		if u, err := url.Parse(one); err == nil && u.Path == "/" {
			id = strings.TrimSuffix(one, "/")
		}
		last := &lastAnswer{base: s.http.Transport}
		known := *s.http
		known.Transport = last
		meta, err := auth.GetAuthServerMetadata(ctx, id, &known)
		switch {
		case err != nil:
			err = fmt.Errorf("the authorization server %s cannot be used: %s", one, oneLine(err.Error()))
		case meta == nil:
			// Of revision 2025-03-26, "Fallbacks for Servers without Metadata Discovery".
			root := strings.TrimSuffix(one, "/")
			meta = &oauthex.AuthServerMeta{
				Issuer: one, AuthorizationEndpoint: root + "/authorize", TokenEndpoint: root + "/token", RegistrationEndpoint: root + "/register",
				CodeChallengeMethodsSupported: []string{"S256"},
			}
		case !slices.Contains(meta.CodeChallengeMethodsSupported, "S256"):
			err = fmt.Errorf("the authorization server %s has no PKCE with S256, without which a login is not safe", one)
		}
		if err == nil {
			found := &issuer{AuthServerMeta: *meta, resource: resource.Resource, scopes: resource.ScopesSupported, guessed: guessed,
				ofResource: resource.DPOPSigningAlgValuesSupported, bound: resource.DPOPBoundAccessTokensRequired}
			var more struct {
				Device string   `json:"device_authorization_endpoint"`
				Proofs []string `json:"dpop_signing_alg_values_supported"`
			}
			if json.Unmarshal(last.body, &more) == nil {
				found.proofs = more.Proofs
				if safe(more.Device) {
					found.device = more.Device
				}
			}
			return found, nil
		}
		if first == nil {
			first = err
		}
	}
	if guessed {
		s.opts.Logger.Debug("no login is offered", "error", first)
		return nil, ErrNone
	}
	return nil, first
}

// resource returns the metadata of the server as a protected resource (RFC 9728), and whether it is guessed, as there is none.
func (s *Source) resource(ctx context.Context, c challenge) (_ *oauthex.ProtectedResourceMetadata, guessed bool, err error) {
	root := *s.server
	root.Path, root.RawPath, root.RawQuery = "", "", ""
	at := *s.server
	at.RawQuery = ""
	at.Path, at.RawPath = "/.well-known/oauth-protected-resource"+strings.TrimSuffix(s.server.Path, "/"), ""
	top := root
	top.Path = "/.well-known/oauth-protected-resource"
	places := []string{at.String(), top.String()}
	if c.metadata != "" {
		to, err := s.server.Parse(c.metadata)
		if err != nil {
			return nil, false, errors.New("the server names metadata at a URL that cannot be read")
		}
		places = append([]string{to.String()}, places...)
	}
	for _, place := range slices.Compact(places) {
		var meta oauthex.ProtectedResourceMetadata
		switch err := s.get(ctx, place, &meta); {
		case errors.Is(err, errNone), err != nil && c.metadata == "":
			continue
		case err != nil:
			return nil, false, err
		case !covers(meta.Resource, s.server):
			return nil, false, fmt.Errorf("the metadata at %s is of the resource %.200q, and not of this server: nothing was sent there", place, oneLine(meta.Resource))
		case len(meta.AuthorizationServers) == 0:
			return nil, false, fmt.Errorf("the metadata at %s names no authorization server", place)
		}
		return &meta, false, nil
	}
	// Of revision 2025-03-26: the server is its own authorization server.
	return &oauthex.ProtectedResourceMetadata{Resource: s.server.String(), AuthorizationServers: []string{root.String()}}, true, nil
}

// covers reports whether a resource is a server, or a part of its origin that the server is in. Then a token for
// the resource is no token for another server.
func covers(resource string, server *url.URL) bool {
	r, err := canonical(resource)
	if err != nil || r.Scheme != server.Scheme || r.Host != server.Host {
		return false
	}
	if r.RawQuery != "" && r.RawQuery != server.RawQuery {
		return false
	}
	prefix := strings.TrimSuffix(r.Path, "/")
	rest, ok := strings.CutPrefix(server.Path, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// errNone says that there is no metadata at a URL.
var errNone = errors.New("there is no metadata")

// get reads the JSON at a URL.
func (s *Source) get(ctx context.Context, from string, into any) error {
	if !safe(from) {
		return fmt.Errorf("the metadata is at %s: want https", oneLine(from))
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("MCP-Protocol-Version", "2025-11-25")
	resp, err := s.http.Do(req)
	if err != nil {
		return outOfReach(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode >= 400 && resp.StatusCode < 500:
		return errNone
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s answers HTTP %d", from, resp.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return outOfReach(err)
	}
	if json.Unmarshal(data, into) != nil {
		return errNone // a page for people
	}
	return nil
}

// safe reports whether secrets may be sent to a URL: over https, or to this machine.
func safe(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && loopback(u))
}

func loopback(u *url.URL) bool {
	host := u.Hostname()
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// lastAnswer keeps the last body that went through, for the members that go-sdk does not read.
type lastAnswer struct {
	base http.RoundTripper
	body []byte
}

// RoundTrip implements [http.RoundTripper].
func (l *lastAnswer) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	l.body, err = io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(l.body))
	return resp, nil
}

// A fence refuses requests of a login to places where they may not go: a remote server must not make this machine send
// requests to its own programs, and nothing is sent in the clear.
type fence struct {
	base  http.RoundTripper
	local bool // the server is on this machine
}

// RoundTrip implements [http.RoundTripper].
func (f fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if !safe(req.URL.String()) || loopback(req.URL) && !f.local {
		return nil, fmt.Errorf("a login goes over https, and not to %s://%s", req.URL.Scheme, req.URL.Host)
	}
	return f.base.RoundTrip(req)
}
