package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/auth"
	"holdfast/internal/config"
	front "holdfast/internal/server"
	"holdfast/internal/server/streaming"
	manyservers "holdfast/internal/servers"
)

// authFlags are the flags of holdfast serve that say who may use the server.
type authFlags struct {
	issuer   string
	audience []string
	scopes   []string
	resource string
	keys     string

	introspection, clientID, secretFile string

	proofsOnly, nonces bool
	grace              time.Duration

	policy *auth.Policy // made of them; nil: any client may
}

// kind returns the ways in which clients prove who they are, for the log.
func (f *authFlags) kind(upstream *upstreamFlags) string {
	var kinds []string
	if f.policy != nil {
		if f.policy.Issuer != nil {
			kinds = append(kinds, "tokens of "+f.issuer)
		}
		if f.policy.Keys != nil {
			kinds = append(kinds, "keys")
		}
		if f.policy.Certificates {
			kinds = append(kinds, "certificates")
		}
	}
	if upstream.passes() {
		kinds = append(kinds, "passed to the upstream server")
	}
	return cmp.Or(strings.Join(kinds, ", "), "none")
}

// check returns an error for wrong values of flags, and sets f.policy.
func (f *authFlags) check(upstream *upstreamFlags, tls *tlsFlags, role *roleFlags) error {
	switch {
	case f.grace < 0:
		return usagef("--auth-grace %v: want a duration, or 0 for none", f.grace)
	case f.issuer == "" && upstream.auth.value == authExchange && !role.isWorker(): // a worker has no clients
		return usagef("--upstream-auth token-exchange is for the tokens of clients, who need none: give their issuer with --auth-issuer")
	case f.issuer == "" && (len(f.audience) > 0 || f.resource != "" || f.keys == "" && len(f.scopes) > 0):
		return usagef("--auth-audience, --auth-scopes and --auth-resource are for tokens: give their issuer with --auth-issuer")
	case f.issuer == "" && f.clientID != "", f.clientID == "" && (f.introspection != "" || f.secretFile != ""):
		return usagef("--auth-introspection, --auth-client-id and --auth-client-secret-file are for asking the issuer about tokens: give --auth-issuer and --auth-client-id")
	case f.issuer == "" && (f.proofsOnly || f.nonces):
		return usagef("--auth-dpop-required and --auth-dpop-nonce are for tokens: give their issuer with --auth-issuer")
	case f.issuer == "" && f.keys == "":
		if tls.clientCA != "" {
			f.policy = &auth.Policy{Certificates: true, Grace: f.grace}
		}
		return nil
	case upstream.passes():
		return usagef("both --auth-issuer or --auth-keys and --upstream-auth passthrough are given: a token for this server must not be sent to another; remove one")
	}
	f.policy = &auth.Policy{Certificates: tls.clientCA != "", Grace: f.grace, Audience: f.audience, Scopes: strings.Fields(strings.Join(f.scopes, " ")), Resource: f.resource}
	for _, s := range f.policy.Scopes {
		if strings.ContainsAny(s, `"\`) {
			return usagef("--auth-scopes: %q cannot be in a scope", s)
		}
	}
	if f.keys != "" {
		keys, err := auth.OpenKeys(f.keys)
		if err != nil {
			return wrongFile("--auth-keys", err)
		}
		f.policy.Keys = keys
	}
	if f.issuer == "" {
		return nil
	}
	issuer, err := auth.NewIssuer(f.issuer)
	if err != nil {
		return usagef("--auth-issuer: %w", err)
	}
	if err := f.introspect(issuer); err != nil {
		return err
	}
	if u, err := url.Parse(f.resource); f.resource != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "") {
		return usagef("--auth-resource %q: want a URL like https://mcp.example.com", f.resource)
	}
	if len(f.audience) == 0 && f.resource == "" {
		return usagef("tokens for anybody else must not be accepted: give --auth-audience, or the URL of this server with --auth-resource")
	}
	f.policy.Issuer = issuer
	f.policy.Proofs = &auth.Proofs{Required: f.proofsOnly, Nonces: f.nonces}
	return nil
}

// clientSecret is the environment variable with the secret for --auth-client-id. There is no flag: other
// users can see a command line.
const clientSecret = "HOLDFAST_AUTH_CLIENT_SECRET"

// introspect makes Holdfast ask the issuer about opaque tokens, if the flags say so.
func (f *authFlags) introspect(issuer *auth.Issuer) error {
	if f.clientID == "" {
		return nil
	}
	secret, err := secretOf("--auth-client-secret-file", f.secretFile, clientSecret)
	if err != nil {
		return err
	}
	if secret == "" {
		return usagef("--auth-client-id %q has no secret: set %s, or give --auth-client-secret-file", f.clientID, clientSecret)
	}
	if err := issuer.Introspect(f.introspection, f.clientID, secret); err != nil {
		return usagef("--auth-introspection: %w", err)
	}
	return nil
}

// secretOf returns the secret in the file that a flag names, or else in an environment variable; "":
// there is none.
func secretOf(flag, file, variable string) (string, error) {
	secret := os.Getenv(variable)
	if file == "" {
		return secret, nil
	}
	if secret != "" {
		return "", usagef("both %s and %s are given: remove one", flag, variable)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", wrongFile(flag, err)
	}
	if secret = strings.TrimSpace(string(text)); secret == "" {
		return "", usagef("%s %s: the file is empty", flag, file)
	}
	return secret, nil
}

// require makes the handler authenticate clients.
func (f *authFlags) require(opts *holdfast.Options) {
	if f.policy == nil {
		return
	}
	opts.Principal = auth.Principal
	f.policy.Refused = front.TellRefused
	f.policy.Open = new(auth.Open)
	f.shareNonces(opts)
	opts.Authenticate = auth.Require(func(*http.Request) *auth.Policy { return f.policy }, withRights)
}

// shareNonces makes all nodes that share a store accept each other's nonces.
func (f *authFlags) shareNonces(opts *holdfast.Options) {
	if f.policy.Proofs != nil {
		f.policy.Proofs.Values, _ = opts.Store.(auth.Values)
	}
}

// withRights makes the handler check the rights of clients while their connections stay open.
func withRights(ctx context.Context, rights *auth.Rights) context.Context {
	return streaming.WithRights(ctx, rights)
}

// reload reads the keys again.
func (f *authFlags) reload(asked bool) {
	if f.policy.Keys.Reload(asked) {
		f.review()
	}
}

// review checks the rights of the clients with open connections.
func (f *authFlags) review() {
	if f.policy != nil && f.policy.Open != nil {
		f.policy.Open.Review()
	}
}

// takeEndpoint cuts the path of an endpoint off --auth-resource, which then names the server: the URLs that clients
// have end in such a path. served reports whether an endpoint is at a path.
func (f *authFlags) takeEndpoint(served func(path string) bool) {
	if f.policy == nil || f.policy.Resource == "" {
		return
	}
	whole := strings.TrimRight(f.policy.Resource, "/")
	u, err := url.Parse(whole)
	if err != nil {
		return // the URL was checked
	}
	for i := range len(u.Path) {
		if at := u.Path[i:]; at[0] == '/' && served(at) {
			if f.policy.Resource = strings.TrimSuffix(whole, (&url.URL{Path: at}).EscapedPath()); f.policy.Resource != whole {
				slog.Info("--auth-resource names an endpoint: clients reach this server without its path", "endpoint", at, "server", f.policy.Resource)
			}
			return
		}
	}
}

// tryIssuer logs whether the authorization server can be asked. Clients are served anyway, with
// 503 as long as it cannot. wait waits for the answer, but not after ctx has ended: clients may
// have asked the same question.
func (f *authFlags) tryIssuer(ctx context.Context) (wait func()) {
	if f.policy == nil || f.policy.Issuer == nil {
		return func() {}
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if err := f.policy.Issuer.Check(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("no token can be checked for now, and clients get status 503: is --auth-issuer right, and is it within reach?",
				"error", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}()
	return func() {
		select {
		case <-asked:
		case <-ctx.Done():
		}
	}
}

// routes adds the metadata of endpoints. has reports whether an endpoint is at a path. set may be
// nil.
func (f *authFlags) routes(has func(path string) bool, set *manyservers.Set, next http.Handler) http.Handler {
	if f.policy == nil {
		return next
	}
	return auth.Metadata(func(path string) *auth.Policy {
		if !has(path) {
			return nil
		}
		if set != nil {
			return f.policyOf(set, set.At(path))
		}
		return f.policy
	}, next)
}

// newKey returns the command that makes a static key.
func newKey() *cobra.Command {
	return &cobra.Command{
		Use:   "key NAME [SCOPE...]",
		Short: "Make a static key for clients of 'serve --auth-keys'",
		Long: `Key makes a static key. The key itself goes to stderr, for its client; the line for
the file of keys, which has only a hash of it, goes to stdout.`,
		Example: "  holdfast key ada >>keys",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("want a name for the key's client, as in %s ada", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			key, line, err := auth.NewKey(args[0], args[1:]...)
			for _, scope := range args[1:] {
				if err := config.CheckScope(scope); err != nil {
					return usageError{err}
				}
			}
			if err != nil {
				return usageError{err}
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.ErrOrStderr(), key)
			return err
		},
	}
}
