package main

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"holdfast"
	"holdfast/internal/auth"
	"holdfast/internal/config"
	"holdfast/internal/protocol"
	front "holdfast/internal/server"
	manyservers "holdfast/internal/servers"
	"holdfast/jsonrpc"
)

// This file is for servers of a configuration file with settings that say who may use them.

// allows returns a function that returns why a server of a configuration file cannot be served, or nil.
func (f *authFlags) allows(worker bool) func(*config.Server) error {
	tokens := f.issuer != "" || f.keys != ""
	return func(s *config.Server) error {
		switch a := &s.Auth; {
		case worker: // a worker has no clients
			return nil
		case !tokens && (len(a.Scopes) > 0 || len(a.Tools) > 0):
			return errors.New("needs scopes, and clients need no token: give --auth-issuer or --auth-keys")
		case f.issuer == "" && a.Token != nil && a.Token.Exchange:
			return errors.New("gets a token in exchange for the client's, and clients need none: give --auth-issuer")
		case tokens && a.Passthrough:
			return errors.New("gets the client's token (auth passthrough), and --auth-issuer or --auth-keys is given: a token for Holdfast must not be sent to another server; remove one, or use tokenExchange")
		}
		return nil
	}
}

// policyOf returns the policy of a server of a configuration file, or of all servers as one.
func (f *authFlags) policyOf(set *manyservers.Set, name string) *auth.Policy {
	scopes, _ := set.Scopes(name)
	if len(scopes) == 0 {
		return f.policy
	}
	p := *f.policy
	p.Scopes = slices.Concat(p.Scopes, scopes)
	slices.Sort(p.Scopes)
	p.Scopes = slices.Compact(p.Scopes)
	return &p
}

// requireEach makes the handler authenticate the clients of each server of a configuration
// file, instead of [authFlags.require].
func (f *authFlags) requireEach(opts *holdfast.Options, set *manyservers.Set) {
	opts.ForwardHeader = func(name string) bool { return name == "Authorization" && set.NeedsTokens() }
	if f.policy == nil {
		return
	}
	policy := func(r *http.Request) *auth.Policy { return f.policyOf(set, front.NameOf(r.Context())) }
	opts.Authenticate = func(next http.Handler) http.Handler {
		return auth.Require(policy, withRights)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name := front.NameOf(r.Context())
			singleTools := func() bool {
				_, tools := set.Scopes(name)
				return tools
			}
			if r.Method == http.MethodGet || singleTools() { // a WebSocket may outlive the present settings
				asked := r
				r = r.WithContext(front.WithPermit(r.Context(), func(m *jsonrpc.Message) error {
					return permit(policy(asked), asked, set, name, m)
				}, singleTools))
			}
			next.ServeHTTP(w, r)
		}))
	}
}

// permit returns why a client must not send a message to a server.
func permit(p *auth.Policy, r *http.Request, set *manyservers.Set, name string, m *jsonrpc.Message) error {
	if m.Kind != jsonrpc.Request || m.Method != protocol.MethodCallTool {
		return nil
	}
	scopes, known := set.ToolScopes(name, jsonrpc.String(jsonrpc.Field(m.Params, "name")))
	challenge := p.Lacks(r, scopes, known)
	if challenge == "" {
		return nil
	}
	return &protocol.Unauthorized{
		Status: http.StatusForbidden, Challenge: []string{challenge},
		Text: "insufficient scope: the tool needs " + strings.Join(scopes, " "),
	}
}
