package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"holdfast/backend/remote"
	"holdfast/client"
	manyservers "holdfast/internal/servers"
)

// upstreamFlags are the flags of holdfast serve for a server that it stands in front of.
type upstreamFlags struct {
	url     string
	headers []string
	auth    choice
	token   tokenFlags
	wait    time.Duration
	header  http.Header // made of headers
}

// The values of --upstream-auth beside "none".
const (
	authPassthrough = "passthrough"
	authClient      = "client-credentials"
	authExchange    = "token-exchange"
)

func newUpstreamFlags() upstreamFlags {
	return upstreamFlags{auth: choice{"none", []string{"none", authPassthrough, authClient, authExchange}}}
}

func (f *upstreamFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.url, "upstream", "", "`URL` of the HTTP server to serve, as http://HOST/PATH")
	fs.StringArrayVar(&f.headers, "upstream-header", nil, "`header` for the upstream server, as 'Name: value' (can be repeated). Other users can see a command line: better set HOLDFAST_UPSTREAM_HEADER")
	fs.Var(&f.auth, "upstream-auth", "which token the upstream server gets; passthrough: the client's; client-credentials: a token for Holdfast (RFC 6749, section 4.4); token-exchange: one in exchange for the client's (RFC 8693), which needs --auth-issuer")
	f.token.add(fs)
	fs.DurationVar(&f.wait, "upstream-wait", 5*time.Minute, "how long the upstream server may be out of reach before the calls that wait for it fail")
	_ = cmd.RegisterFlagCompletionFunc("upstream-auth", f.auth.complete) // fails for unknown flags only
}

// passes reports whether the client's Authorization is passed on.
func (f *upstreamFlags) passes() bool { return f.auth.value == authPassthrough }

// needsClient reports whether the client's Authorization is needed where the upstream server is used.
func (f *upstreamFlags) needsClient() bool { return f.passes() || f.auth.value == authExchange }

// check returns an error for wrong values of flags, and sets f.header and the request of f.token.
func (f *upstreamFlags) check(role *roleFlags) (err error) {
	switch {
	case f.url == "" && len(f.headers) > 0:
		return usagef("--upstream-header is for an upstream server: give its URL with --upstream")
	case f.url == "" && f.auth.value != "none":
		return usagef("--upstream-auth %s is for an upstream server: give its URL with --upstream", f.auth.value)
	case f.wait <= 0 && f.url != "":
		return usagef("--upstream-wait %v: want more than 0", f.wait)
	}
	if err := f.token.check(f, role); err != nil || f.url == "" {
		return err
	}
	if f.header, err = headerOf("--upstream-header", f.headers); err != nil {
		return err
	}
	if f.auth.value != "none" && f.header.Get("Authorization") != "" {
		return usagef("both --upstream-auth %s and an Authorization in --upstream-header are given: remove one", f.auth.value)
	}
	conn, err := dial(f.url, &client.Options{Header: f.header})
	if err != nil {
		return usageError{fmt.Errorf("--upstream: %w", err)}
	}
	conn.Detach()
	return nil
}

// backend returns the backend in front of the server.
func (f *upstreamFlags) backend(stateless bool) *remote.Backend {
	return remote.New(f.url, &remote.Options{
		Header: f.header, PassAuthorization: f.needsClient(), GiveUp: f.wait, NoListen: stateless,
		HTTPClient: manyservers.Network(f.url, f.token.request, slog.Default()),
	})
}

// forwardHeader returns which headers of a client another node gets.
func (f *upstreamFlags) forwardHeader() func(string) bool {
	needs := f.needsClient()
	return func(name string) bool { return needs && name == "Authorization" }
}
