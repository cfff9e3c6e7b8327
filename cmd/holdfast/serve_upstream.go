package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

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
	// unreached tells the backend that the server was found to be out of reach; nil: there is no backend.
	unreached func(error)
}

// The values of --upstream-auth beside "none".
const (
	authPassthrough = "passthrough"
	authClient      = "client-credentials"
	authExchange    = "token-exchange"
)

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

// isNot returns an error if the URL of the upstream server is that of this one, which listens at an address: each
// request would come back as another.
func (f *upstreamFlags) isNot(ctx context.Context, at net.Addr) error {
	u, err := url.Parse(f.url)
	own, ok := at.(*net.TCPAddr)
	if f.url == "" || err != nil || !ok || portOf(u) != own.Port {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	ips, _ := net.DefaultResolver.LookupIP(ctx, "ip", u.Hostname()) // none if there is no such name
	for _, ip := range ips {
		if ip.Equal(own.IP) || own.IP.IsUnspecified() && (ip.IsLoopback() || isOwn(ip)) {
			return usagef("--upstream %s is this server itself (--listen): give the URL of the other server", redacted(f.url))
		}
	}
	return nil
}

// portOf returns the port of a server by its URL.
func portOf(u *url.URL) int {
	if n, err := strconv.Atoi(u.Port()); err == nil {
		return n
	}
	if u.Scheme == "https" || u.Scheme == "wss" {
		return 443
	}
	return 80
}

// isOwn reports whether an interface of this machine has an address.
func isOwn(ip net.IP) bool {
	all, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// tryWithin bounds the attempt to reach the upstream server at the start.
const tryWithin = 5 * time.Second

// tryUpstream tells the backend, which logs it, if no server takes connections at the URL of the upstream server. Clients are
// served anyway: it may start later. wait waits for the attempt.
func (f *serveFlags) tryUpstream(ctx context.Context) (wait func()) {
	u, err := url.Parse(f.upstream.url)
	if f.upstream.unreached == nil || f.role.isDoor() || err != nil {
		return func() {}
	}
	ctx, stop := context.WithTimeout(ctx, tryWithin)
	var work sync.WaitGroup
	work.Go(func() {
		defer stop()
		if err := reach(ctx, u); err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			f.upstream.unreached(errors.New(explainedText(err)))
		}
	})
	return work.Wait
}

// reach returns an error if no server takes connections at a URL. It makes no request: the server might count it, or
// take it for that of a client. Behind a proxy it tries nothing.
func reach(ctx context.Context, u *url.URL) error {
	secure := u.Scheme == "https" || u.Scheme == "wss"
	about := &http.Request{URL: &url.URL{Scheme: "http", Host: u.Host}}
	if secure {
		about.URL.Scheme = "https"
	}
	if proxy, err := http.ProxyFromEnvironment(about); err != nil || proxy != nil {
		return nil //nolint:nilerr // the first call tells of a wrong proxy
	}
	at := net.JoinHostPort(u.Hostname(), strconv.Itoa(portOf(u)))
	dial := (&net.Dialer{}).DialContext
	if secure {
		dial = (&tls.Dialer{}).DialContext
	}
	c, err := dial(ctx, "tcp", at)
	if err != nil {
		return err
	}
	return c.Close()
}

// backend returns the backend in front of the server.
func (f *upstreamFlags) backend(stateless bool) *remote.Backend {
	return remote.New(f.url, &remote.Options{
		Header: f.header, PassAuthorization: f.needsClient(), GiveUp: f.wait, NoListen: stateless,
		HTTPClient: manyservers.Network(f.url, f.token.request, slog.Default()),
		Checked:    func(unreached func(error)) { f.unreached = unreached },
	})
}

// forwardHeader returns a function that reports whether a header of a client goes to another node.
func (f *upstreamFlags) forwardHeader() func(string) bool {
	needs := f.needsClient()
	return func(name string) bool { return needs && name == "Authorization" }
}
