// Package auth authenticates the clients of a server: an OAuth 2.1 resource server (2025-11-25,
// Authorization; RFC 6750, RFC 9728), static keys and client certificates.
package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"holdfast/internal/dpop"
)

// A Policy says which clients may use an endpoint. It is not changed after its first use.
type Policy struct {
	Issuer *Issuer // of tokens; nil: no tokens are taken
	Keys   *Keys   // static keys; nil: no keys are taken
	// Certificates says that each client needs a certificate that was verified. Without Issuer and Keys, the certificate names the
	// principal.
	Certificates bool
	Audience     []string // a token's audience must have at least one of these; none: the endpoint's resource
	Scopes       []string // a token must have all of these
	// Grace is how long a connection goes on after its token or certificate has expired: a client that connects again within that time,
	// with a new token or certificate, loses no stream.
	Grace    time.Duration
	Resource string // the URL of the server as clients know it, to which paths are appended; "": the request's Host
	// Proofs checks the proofs of clients that have tokens bound to a key; nil: such tokens are refused.
	Proofs *Proofs
	// Open has the connections that stay open; nil: their rights change with time only.
	Open *Open
	Log  *slog.Logger
	// Refused is called for each request that is refused. The reason is no_certificate, no_token, invalid_token, invalid_dpop_proof,
	// use_dpop_nonce, insufficient_scope or auth_unavailable. A request that lacks a scope has its [Principal]. Refused may be nil.
	Refused func(r *http.Request, reason string, status int)
}

// metadataPath is the path of the metadata of a resource; the resource's own path follows it (RFC 9728, section 3.1).
const metadataPath = "/.well-known/oauth-protected-resource"

// ResourceAt returns the path of the resource that a metadata path describes. It returns other paths as they are.
func ResourceAt(path string) string { return strings.TrimPrefix(path, metadataPath) }

// An identityKey is the key of a request's *[Rights] in its context.
type identityKey struct{}

// Principal returns the principal that a request was authenticated as, or "".
func Principal(r *http.Request) string {
	if rights := RightsOf(r.Context()); rights != nil {
		return rights.who.Load().principal
	}
	return ""
}

// Lacks returns the challenge for a client that lacks one of scopes, or "" if it has them all. scopes are those that one operation
// needs besides the endpoint's. known are the scopes of other operations: the challenge has those of them that the client has, so that
// it keeps them (2025-11-25, Authorization, "Scope Challenge Handling"). The request has passed [Require].
func (p *Policy) Lacks(r *http.Request, scopes, known []string) (challenge string) {
	var has []string
	if rights := RightsOf(r.Context()); rights != nil {
		has = rights.who.Load().scopes
	}
	if !slices.ContainsFunc(scopes, func(s string) bool { return !slices.Contains(has, s) }) {
		return ""
	}
	all := slices.Concat(p.Scopes, scopes)
	for _, s := range known {
		if slices.Contains(has, s) {
			all = append(all, s)
		}
	}
	return p.challenge(r, schemeOf(r), errScope, unique(all))
}

// unique returns a list without duplicates, in the same order.
func unique(list []string) (all []string) {
	for _, s := range list {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// An endpointKey is the key of the path of the endpoint that a request is for in its context.
type endpointKey struct{}

// At returns a handler that authenticates requests as those of another endpoint: their tokens must be for that endpoint, and clients
// without a token are led to its metadata.
func At(endpoint string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), endpointKey{}, endpoint)))
	})
}

// endpointOf returns the path of the endpoint that a request is for.
func endpointOf(r *http.Request) string {
	if at, ok := r.Context().Value(endpointKey{}).(string); ok {
		return at
	}
	return r.URL.Path
}

// Require returns middleware that passes authenticated requests on; [Principal] then returns their principal. policy returns the policy
// of a request; nil: any client may make the request, now and later. tell returns the context that the next handler gets for a request
// with rights; a nil tell leaves the context as it is.
func Require(policy func(*http.Request) *Policy, tell func(context.Context, *Rights) context.Context) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		var wrong wrongTokens
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p := policy(r)
			if p == nil {
				next.ServeHTTP(w, r)
				return
			}
			who, err := p.authenticate(r, false)
			p.Proofs.offer(w, r, err)
			if who != nil {
				rights := &Rights{policy: policy, r: r}
				rights.who.Store(who)
				ctx := context.WithValue(r.Context(), identityKey{}, rights)
				if tell != nil {
					ctx = tell(ctx, rights)
				}
				r = r.WithContext(ctx)
			}
			if err != nil {
				wrong.note(p.log(), r, err)
				p.refuse(w, r, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// The reasons of refused requests. Clients get their text.
var (
	errCertificate = errors.New("a client certificate is required")
	errExpired     = fmt.Errorf("%w that has not expired", errCertificate)
	errMissing     = errors.New("a token is required")
	errInvalid     = errors.New("the token is not valid for this server, or has expired")
	errScope       = errors.New("the token lacks a scope that is required")
)

// authenticate returns the client that makes a request, also with errScope. again says that the request was let in before and is
// checked another time: then its proof need not be new.
func (p *Policy) authenticate(r *http.Request, again bool) (*verified, error) {
	if p.Certificates {
		cert := certificateOf(r)
		if cert == nil {
			return nil, errCertificate
		}
		if time.Now().After(cert.NotAfter) { // it was valid when the connection was begun
			return nil, errExpired
		}
		if p.Issuer == nil && p.Keys == nil {
			identity, err := identityOf(cert)
			if err != nil {
				return nil, err
			}
			return &verified{principal: identity, expires: cert.NotAfter}, nil
		}
	}
	shown, ok := tokenOf(r)
	if !ok {
		return nil, errMissing
	}
	v, err := p.verify(r, shown, again)
	var unproven *proofError
	switch {
	case errors.Is(err, errUnavailable), errors.As(err, &unproven):
		return nil, err
	case err != nil:
		p.log().Debug("a token is refused", "error", err)
		return nil, &invalidToken{err}
	}
	return v, p.lacks(v)
}

// lacks returns errScope if a client lacks one of the policy's scopes. A client that is known by its certificate needs none.
func (p *Policy) lacks(v *verified) error {
	if p.Issuer == nil && p.Keys == nil {
		return nil
	}
	for _, s := range p.Scopes {
		if !slices.Contains(v.scopes, s) {
			return errScope
		}
	}
	return nil
}

// verify checks a token, and that it belongs to the client of the request, but not its scopes. again is as in [Policy.authenticate].
func (p *Policy) verify(r *http.Request, s shown, again bool) (*verified, error) {
	if p.Keys != nil && strings.HasPrefix(s.token, keyPrefix) && !s.proof {
		return p.Keys.verify(s.token)
	}
	if p.Issuer == nil {
		return nil, errors.New("there is no issuer")
	}
	v, err := p.Issuer.verify(r.Context(), s.token, addressOf(r))
	if err != nil {
		return nil, err
	}
	if !v.confirmation.holds(r, p.Proofs != nil) {
		return nil, errors.New("the token is bound to another client, or in an unknown way")
	}
	want := p.Audience
	if len(want) == 0 && p.Resource != "" { // without a Resource, a client could choose the audience by its Host
		want = []string{p.resource(r, endpointOf(r)), strings.TrimSuffix(p.Resource, "/")}
	}
	if !slices.ContainsFunc(v.audience, func(a string) bool { return slices.Contains(want, a) }) {
		return nil, errors.New("the token is for another audience")
	}
	key, err := p.bound(v, s)
	if err == nil && s.proof {
		err = p.prove(r, s.token, key, again)
	}
	return v, err
}

// refuse answers a request that is not let through (RFC 6750, section 3; RFC 9449, section 7.1).
func (p *Policy) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusUnauthorized
	switch {
	case errors.Is(err, errUnavailable):
		p.log().Warn("a token cannot be checked", "error", err)
		p.reportRefused(r, "auth_unavailable", http.StatusServiceUnavailable)
		w.Header().Set("Retry-After", "5")
		answer(w, http.StatusServiceUnavailable, "temporarily_unavailable", errUnavailable)
		return
	case errors.Is(err, errCertificate):
		p.reportRefused(r, "no_certificate", http.StatusForbidden)
		answer(w, http.StatusForbidden, "", err)
		return
	case errors.Is(err, errScope):
		status = http.StatusForbidden
	}
	code := codeOf(err)
	p.reportRefused(r, cmp.Or(code, "no_token"), status)
	for _, scheme := range p.schemes(r, err) {
		w.Header().Add("WWW-Authenticate", p.challenge(r, scheme, err, p.Scopes))
	}
	answer(w, status, code, told(err))
}

// codeOf returns the error code for a client (RFC 6750, section 3.1; RFC 9449, section 12.2); "": the request has no token.
func codeOf(err error) string {
	var unproven *proofError
	switch {
	case errors.As(err, &unproven):
		return unproven.code
	case errors.Is(err, errInvalid):
		return "invalid_token"
	case errors.Is(err, errScope):
		return "insufficient_scope"
	}
	return ""
}

// told returns the error that a client gets for err.
func told(err error) error {
	var invalid *invalidToken
	var wrong sentWrong
	if errors.As(err, &invalid) && errors.As(invalid.cause, &wrong) {
		return wrong
	}
	return err
}

// schemes returns the schemes of the challenges that a refused client gets: the scheme that it has used, unless it must use another.
// Clients that read only one challenge read the first.
func (p *Policy) schemes(r *http.Request, err error) []string {
	switch {
	case p.Issuer == nil || p.Proofs == nil:
		return []string{bearer}
	case p.Proofs.Required || errors.Is(told(err), errBound):
		return []string{dpop.Scheme}
	case errors.Is(err, errMissing):
		return []string{bearer, dpop.Scheme}
	}
	return []string{schemeOf(r)}
}

// bearer is the scheme of tokens that are not bound to a key.
const bearer = "Bearer"

// schemeOf returns the scheme that a request has used.
func schemeOf(r *http.Request) string {
	if shown, ok := tokenOf(r); ok && shown.proof {
		return dpop.Scheme
	}
	return bearer
}

// reportRefused passes a refused request to Refused.
func (p *Policy) reportRefused(r *http.Request, reason string, status int) {
	if p.Refused != nil {
		p.Refused(r, reason, status)
	}
}

// challenge returns the value of WWW-Authenticate for a scheme (RFC 6750, section 3; RFC 9728, section 5.1; RFC 9449, section 7.1).
func (p *Policy) challenge(r *http.Request, scheme string, err error, scopes []string) string {
	var params []string
	if p.Issuer != nil {
		params = append(params, `resource_metadata="`+p.metadataURL(r)+`"`)
	}
	if code := codeOf(err); code != "" {
		params = append(params, `error="`+code+`"`, `error_description="`+inQuotes(told(err).Error())+`"`)
	}
	if len(scopes) > 0 {
		params = append(params, `scope="`+strings.Join(scopes, " ")+`"`)
	}
	if scheme == dpop.Scheme {
		params = append(params, `algs="`+strings.Join(dpop.Algorithms(), " ")+`"`)
	}
	return strings.TrimSpace(scheme + " " + strings.Join(params, ", "))
}

// answer writes an error, as RFC 6749, section 5.2 has it.
func answer(w http.ResponseWriter, status int, code string, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct {
		Error       string `json:"error,omitempty"`
		Description string `json:"error_description"`
	}{code, err.Error()})
}

func (p *Policy) log() *slog.Logger {
	if p.Log != nil {
		return p.Log
	}
	return slog.Default()
}

// base returns the URL of the server, to which the paths of endpoints are appended.
func (p *Policy) base(r *http.Request) string {
	if p.Resource != "" {
		return strings.TrimSuffix(p.Resource, "/")
	}
	u := url.URL{Scheme: "http", Host: r.Host}
	if r.TLS != nil {
		u.Scheme = "https"
	}
	return u.String()
}

// resource returns the URL of the endpoint at a path.
func (p *Policy) resource(r *http.Request, path string) string {
	return p.base(r) + (&url.URL{Path: path}).EscapedPath()
}

// metadataURL returns the URL of the metadata of a request's endpoint: metadataPath stands between host and path.
func (p *Policy) metadataURL(r *http.Request) string {
	u, err := url.Parse(p.resource(r, endpointOf(r)))
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String() + metadataPath + u.EscapedPath()
}

// Metadata returns a handler that answers requests for the metadata of endpoints (RFC 9728), and passes all others to next. policy
// returns the policy of the endpoint at a path; nil: no endpoint or no policy.
func Metadata(policy func(path string) *Policy, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, ok := strings.CutPrefix(r.URL.Path, metadataPath+"/")
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		at = "/" + at
		p := policy(at)
		if p == nil { // a proxy may pass on the path under which it serves this server
			for _, rest := range suffixes(at) {
				if q := policy(rest); q != nil && strings.HasSuffix(strings.TrimSuffix(q.Resource, "/"), (&url.URL{Path: strings.TrimSuffix(at, rest)}).EscapedPath()) {
					p, at = q, rest
				}
			}
		}
		if p == nil || p.Issuer == nil {
			http.NotFound(w, r)
			return
		}
		p.describe(w, r, at)
	})
}

// suffixes returns the rests of a path after its first elements, the longest first.
func suffixes(path string) (all []string) {
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			all = append(all, path[i:])
		}
	}
	return all
}

// describe answers with the metadata of the endpoint at a path. Any web page may read it.
func (p *Policy) describe(w http.ResponseWriter, r *http.Request, at string) {
	head := w.Header()
	head.Set("Access-Control-Allow-Origin", "*")
	switch r.Method {
	case http.MethodOptions:
		head.Set("Access-Control-Allow-Methods", "GET, OPTIONS")
		head.Set("Access-Control-Allow-Headers", "Content-Type, MCP-Protocol-Version")
		w.WriteHeader(http.StatusNoContent)
		return
	case http.MethodGet, http.MethodHead:
	default:
		head.Set("Allow", "GET, OPTIONS")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	head.Set("Content-Type", "application/json")
	head.Set("Cache-Control", "no-store") // without a Resource it depends on Host
	says := struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported,omitempty"`
		Methods  []string `json:"bearer_methods_supported"`
		Proofs   []string `json:"dpop_signing_alg_values_supported,omitempty"`
		Bound    bool     `json:"dpop_bound_access_tokens_required,omitempty"`
	}{Resource: p.resource(r, at), Servers: []string{p.Issuer.url}, Scopes: p.Scopes, Methods: []string{"header"}}
	if p.Proofs != nil {
		says.Proofs, says.Bound = dpop.Algorithms(), p.Proofs.Required
	}
	_ = json.NewEncoder(w).Encode(says)
}
