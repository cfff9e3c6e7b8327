package main

import (
	"cmp"
	"strings"

	"holdfast/internal/config"
	"holdfast/internal/redact"
)

// tokenFlags are the flags of holdfast serve that say how a token for the upstream server is asked for,
// as clientCredentials and tokenExchange do in a configuration file.
type tokenFlags struct {
	url, clientID, secretFile string
	scopes                    []string
	audience, resource        string

	request *config.TokenRequest // made of them; nil: the server gets no token of Holdfast's
}

// upstreamSecret is the environment variable with the secret for --upstream-client-id.
const upstreamSecret = "HOLDFAST_UPSTREAM_CLIENT_SECRET" //nolint:gosec // its name

// check returns an error for wrong values of flags, and sets f.request. A door asks for no tokens: it
// needs to know only that the client's is forwarded.
func (f *tokenFlags) check(upstream *upstreamFlags, role *roleFlags) error {
	given := f.url != "" || f.clientID != "" || f.secretFile != "" || len(f.scopes) > 0 || f.audience != "" || f.resource != ""
	switch kind := upstream.auth.value; {
	case kind != authClient && kind != authExchange:
		if given {
			return usagef("--upstream-token-url, --upstream-client-id and the like are for a token of Holdfast's: give --upstream-auth client-credentials or token-exchange")
		}
		return nil
	case role.isDoor() && !given:
		return nil
	case f.url == "" || f.clientID == "":
		return usagef("--upstream-auth %s needs to know where tokens are: give --upstream-token-url and --upstream-client-id", kind)
	}
	secret, err := secretOf("--upstream-client-secret-file", f.secretFile, upstreamSecret)
	if err != nil {
		return err
	}
	q := &config.TokenRequest{
		URL: f.url, ID: f.clientID, Secret: secret, Scopes: strings.Fields(strings.Join(f.scopes, " ")),
		Resource: f.resource, Audience: f.audience, Exchange: upstream.auth.value == authExchange,
	}
	for _, s := range q.Scopes {
		if err := config.CheckScope(s); err != nil {
			return usagef("--upstream-scopes: %w", err)
		}
	}
	if err := q.Complete(upstream.url); err != nil {
		return usagef("--upstream-token-url %q: %w", cmp.Or(redact.URL(f.url), redact.Written(f.url)), err)
	}
	f.request = q
	return nil
}
