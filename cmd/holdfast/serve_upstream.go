package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"holdfast/backend/remote"
	"holdfast/client"
)

// upstreamFlags are the flags of holdfast serve for a server that it stands in front of.
type upstreamFlags struct {
	url     string
	headers []string
	auth    choice
	wait    time.Duration
	header  http.Header // made of headers
}

func newUpstreamFlags() upstreamFlags {
	return upstreamFlags{auth: choice{"none", []string{"none", "passthrough"}}}
}

func (f *upstreamFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.url, "upstream", "", "`URL` of the HTTP server to serve, as http://HOST/PATH")
	fs.StringArrayVar(&f.headers, "upstream-header", nil, "`header` for the upstream server, as 'Name: value' (can be repeated). Other users can see a command line: better set HOLDFAST_UPSTREAM_HEADER")
	fs.Var(&f.auth, "upstream-auth", "what becomes of the client's Authorization header; passthrough: the upstream server gets it")
	fs.DurationVar(&f.wait, "upstream-wait", 5*time.Minute, "how long the upstream server may be out of reach before the calls that wait for it fail")
	_ = cmd.RegisterFlagCompletionFunc("upstream-auth", f.auth.complete) // fails for unknown flags only
}

// passes reports whether the client's Authorization is passed on.
func (f *upstreamFlags) passes() bool { return f.auth.value == "passthrough" }

// check returns an error for wrong values of flags, and sets f.header.
func (f *upstreamFlags) check() (err error) {
	switch {
	case f.url == "" && len(f.headers) > 0:
		return usagef("--upstream-header is for an upstream server: give its URL with --upstream")
	case f.url == "" && f.passes():
		return usagef("--upstream-auth passthrough is for an upstream server: give its URL with --upstream")
	case f.url == "":
		return nil
	case f.wait <= 0:
		return usagef("--upstream-wait %v: want more than 0", f.wait)
	}
	if f.header, err = headerOf("--upstream-header", f.headers); err != nil {
		return err
	}
	if f.passes() && f.header.Get("Authorization") != "" {
		return usagef("both --upstream-auth passthrough and an Authorization in --upstream-header are given: remove one")
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
		Header: f.header, PassAuthorization: f.passes(), GiveUp: f.wait, NoListen: stateless,
	})
}

// forwardHeader returns which headers of a client another node gets.
func (f *upstreamFlags) forwardHeader() func(string) bool {
	passes := f.passes()
	return func(name string) bool { return passes && name == "Authorization" }
}
