package servers

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"holdfast/internal/auth"
	"holdfast/internal/config"
	"holdfast/internal/merge"
	"holdfast/internal/protocol"
	front "holdfast/internal/server"
	"holdfast/jsonrpc"
)

// At returns the name of the server at a path, or "".
func (s *Set) At(path string) string { return s.table.Load().routes[path].present().server }

// Scopes returns the scopes that are needed for a server, and whether single tools of it need others.
// All servers as one need those of all of them.
func (s *Set) Scopes(name string) (scopes []string, tools bool) {
	t := s.table.Load()
	for _, one := range t.order {
		if a := &one.conf.Load().Auth; name == one.name || name == config.MergedName {
			scopes = append(scopes, a.Scopes...)
			tools = tools || len(a.Tools) > 0
		}
	}
	return scopes, tools
}

// ToolScopes returns the additional scopes that are needed for a tool of a server: those of all
// patterns that match its name. known are the scopes for all tools of that server.
func (s *Set) ToolScopes(name, tool string) (scopes, known []string) {
	t := s.table.Load()
	if name == config.MergedName {
		members := s.membersOf(t)
		i, own, ok := merge.Route(members, tool)
		if !ok {
			return nil, nil // there is no such tool
		}
		name, tool = members[i].Name, own
	}
	one := t.byName[name]
	if one == nil {
		return nil, nil
	}
	conf := one.conf.Load()
	own, ok := unprefixed(conf, tool)
	for _, p := range conf.Auth.Tools {
		known = append(known, p.Scopes...)
		if ok && restricts(p.Pattern, own) {
			scopes = append(scopes, p.Scopes...)
		}
	}
	return scopes, known
}

// NeedsTokens reports whether a server gets the token of a client, or one in exchange for it.
func (s *Set) NeedsTokens() bool {
	return slices.ContainsFunc(s.table.Load().order, func(one *server) bool { return needsToken(one.conf.Load()) })
}

// TakesAuthorization is called by the session manager. takes says that the server of a request gets the
// client's token itself; keeps says that a conversation keeps the rights of the token that it began with, as
// one with all servers opens them with that token.
func (s *Set) TakesAuthorization(r *http.Request) (takes, keeps bool) {
	name := front.NameOf(r.Context())
	t := s.table.Load()
	if name == config.MergedName {
		for _, one := range t.order {
			conf := one.conf.Load()
			takes, keeps = takes || conf.Auth.Passthrough, keeps || needsToken(conf)
		}
		return takes, keeps
	}
	one := t.byName[name]
	if one == nil {
		return false, false
	}
	conf := one.conf.Load()
	return conf.Auth.Passthrough, needsToken(conf) && strings.HasPrefix(conf.URL, "ws")
}

// MayRefuse reports whether the server of a request may refuse a message for the client's token. Where all servers are
// one, that is the server of the tool or the prompt that the message names.
func (s *Set) MayRefuse(r *http.Request, m *jsonrpc.Message) bool {
	takes, _ := s.TakesAuthorization(r)
	if !takes || front.NameOf(r.Context()) != config.MergedName || m.Method != protocol.MethodCallTool && m.Method != protocol.MethodGetPrompt {
		return takes
	}
	t := s.table.Load()
	i, _, ok := merge.Route(s.membersOf(t), jsonrpc.String(jsonrpc.Field(m.Params, "name")))
	return ok && t.order[i].conf.Load().Auth.Passthrough
}

func needsToken(conf *config.Server) bool {
	return conf.Auth.Passthrough || conf.Auth.Token != nil && conf.Auth.Token.Exchange
}

// Network returns the HTTP client for the server at a URL, which gets a token of Holdfast's as q says; nil
// if q is nil.
func Network(server string, q *config.TokenRequest, log *slog.Logger) *http.Client {
	if q == nil {
		return nil
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConns, base.MaxIdleConnsPerHost = 0, 512 // as a remote.Backend has it
	base.DisableCompression = true
	base.MaxResponseHeaderBytes = 256 << 10
	return &http.Client{Transport: auth.NewTransport(base, server, auth.Grant{
		TokenURL: q.URL, ID: q.ID, Secret: q.Secret, Scopes: q.Scopes, Resource: q.Resource, Audience: q.Audience, Exchange: q.Exchange,
	}, log)}
}
