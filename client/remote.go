package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	"holdfast/internal/outagelog"
	"holdfast/internal/redact"
)

// A remote is the server's address, and how HTTP gets there. It does not change.
type remote struct {
	opts    *Options // the options of the Conn
	raw     string   // the URL as it was given
	url     *url.URL
	http    *http.Client
	own     *http.Transport   // to close, or nil
	secrets *redact.Secrets   // of the URL and the headers; errors must not show them
	outage  *outagelog.Outage // tells the log that the server is out of reach; nil: Options.Away is told
}

// probes makes the system find out within 35 s that a connection on which nothing is sent is dead, also if the server
// sends no keep-alives.
var probes = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}

// idleFor is how long a connection is kept without a request. A proxy or router in between may forget the
// connection without a word, and a request that is sent on it then cannot always be sent again.
const idleFor = 30 * time.Second

// dialTimeout bounds how long it may take to make a connection.
const dialTimeout = 30 * time.Second

// newHTTPClient returns the http.Client that requests go through, and its own transport,
// to be closed, if it has one.
func newHTTPClient(given *http.Client) (*http.Client, *http.Transport) {
	var h http.Client
	var own *http.Transport
	if given != nil {
		h = *given
	} else if t, ok := http.DefaultTransport.(*http.Transport); ok {
		// Each call has a connection of its own while it runs, and returns it to the pool.
		own = t.Clone()
		own.MaxIdleConnsPerHost = 64
		own.DisableCompression = true // a compressed stream may be held back
		own.MaxResponseHeaderBytes = mostHeader
		own.IdleConnTimeout = idleFor
		own.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second}
		own.DialContext = (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: probes}).DialContext
		h.Transport = own
	}
	h.Timeout = 0
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &h, own
}

// secretsOf returns the secrets of a URL and of a header.
func secretsOf(rawURL string, header http.Header) *redact.Secrets {
	var values []string
	for name, list := range header {
		if !redact.Credential(name) {
			continue
		}
		for _, value := range list {
			values = append(values, value)
			if _, credential, ok := strings.Cut(value, " "); ok { // behind the scheme
				values = append(values, credential)
			}
		}
	}
	return redact.Of([]string{rawURL}).With(redact.Texts(values...))
}

// mostHops is how many redirects are followed.
const mostHops = 10

// do makes an exchange. Redirects within the origin are followed, and a request that was
// refused with 401 or 403 is sent once more after [Authorizer.Authorize]. The response is
// watched until it is closed. Errors show no secrets.
func (s *remote) do(ctx context.Context, x exchange) (*response, error) {
	resp, err := s.follow(ctx, x)
	return resp, s.secrets.Error(err)
}

// follow is do, but its errors may show secrets.
func (s *remote) follow(ctx context.Context, x exchange) (*response, error) {
	if x.url == nil {
		x.url = s.url
	}
	authorized, proven := false, false
	for hop := 0; ; hop++ {
		req, resp, err := s.send(ctx, x)
		if err != nil {
			return nil, err
		}
		again := s.answered(req, resp.Response) && !proven
		switch code := resp.StatusCode; {
		case again:
			proven = true
			resp.Close()
		case code == http.StatusMovedPermanently, code == http.StatusFound,
			code == http.StatusTemporaryRedirect, code == http.StatusPermanentRedirect:
			to, err := s.redirect(x.url, resp, hop)
			resp.Close()
			if err != nil {
				return nil, err
			}
			x.url = to
		case (code == http.StatusUnauthorized || code == http.StatusForbidden) && s.opts.Auth != nil && !authorized:
			authorized = true
			resp.watch.Stop() // a person may have to log in
			err := s.authorize(resp.ctx, x.message, req, resp.Response)
			resp.Close()
			if err != nil {
				return nil, &refusal{status: code, auth: true, text: fmt.Sprintf("not authorized: %v", err), why: err}
			}
		default:
			if code != http.StatusUnauthorized {
				s.taken(req.Header)
			}
			return resp, nil
		}
	}
}

// redirect returns the target of a redirect. A redirect to another origin is refused: requests carry secrets.
func (s *remote) redirect(from *url.URL, resp *response, hop int) (*url.URL, error) {
	to, err := resp.Location()
	switch {
	case errors.Is(err, http.ErrNoLocation):
		return nil, &refusal{status: resp.StatusCode, text: "redirected to nowhere"}
	case err != nil:
		return nil, &refusal{status: resp.StatusCode, text: fmt.Sprintf("redirected to nowhere: %.200v", err)}
	case hop >= mostHops:
		return nil, &refusal{status: resp.StatusCode, text: fmt.Sprintf("redirected more than %d times", mostHops)}
	case !sameOrigin(from, to) && !upgrades(from, to):
		return nil, &refusal{status: resp.StatusCode, text: fmt.Sprintf("redirected to another origin: %.200s", originOf(to))}
	}
	return to, nil
}

// blank is copied for each request: that is faster than http.NewRequest, which would parse
// the URL again.
var blank = &http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}

// send sends one request, and waits for the header of its answer.
func (s *remote) send(ctx context.Context, x exchange) (*http.Request, *response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	if x.sent != nil {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { x.sent.Store(true) },
		})
	}
	req := blank.WithContext(ctx)
	req.Method, req.URL, req.Host, req.Header = x.method, x.url, strings.TrimSuffix(x.url.Host, ":"), make(http.Header, 8)
	if x.body != nil {
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
		// net/http sends a request with an idempotency key again by itself, even if it may
		// have arrived. Here call.run decides that. net/http sends other requests again
		// only if no byte of them has left, over a connection that was idle for too long.
		if x.key == "" {
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.body)), nil }
		}
	}
	if host := s.opts.Header.Get("Host"); host != "" {
		req.Host = host // net/http looks for it there
	}
	if err := s.head(ctx, req, x); err != nil {
		cancel(err)
		return nil, nil, &refusal{auth: true, text: err.Error(), why: err}
	}
	watch := time.AfterFunc(x.wait, func() { cancel(errSilent) })
	resp, err := s.roundTrip(req) //nolint:bodyclose // the response closes it
	if x.sent != nil && (err == nil || !s.traces() && !dialing(err)) {
		x.sent.Store(true)
	}
	if err != nil {
		watch.Stop()
		if in, ok := errors.AsType[*url.Error](err); ok {
			err = in.Err // without the URL, which may hold secrets
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if errors.Is(err, errSilent) {
			s.http.CloseIdleConnections() // they are likely to be as dead
		}
		cancel(err)
		return nil, nil, plainly(err)
	}
	if page := resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html"); !page && resp.StatusCode < http.StatusInternalServerError {
		s.outage.Reached()
	}
	unpack(resp)
	if s.own == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &body{resp.Body, s.opts.Logger}
	}
	return req, &response{Response: resp, cancel: cancel, watch: watch, ctx: ctx, quiet: x.wait}, nil
}

// plainly returns net/http's error for an answer that is not HTTP in plainer words.
func plainly(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the server closed the connection without an answer")
	}
	if _, why, ok := strings.Cut(err.Error(), "transport connection broken: "); ok {
		return fmt.Errorf("the server's answer is not HTTP: %.200s", strings.TrimPrefix(why, "net/http: "))
	}
	return err
}

// traces reports whether the http.Client's transport calls httptrace.ClientTrace.
func (s *remote) traces() bool {
	switch t := s.http.Transport.(type) {
	case nil, *http.Transport:
		return true
	case interface{ Traces() bool }:
		return t.Traces()
	}
	return false
}

// dialing reports whether an error says that there was no connection.
func dialing(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// opensWithin returns how long the server may take to connect at first, and to answer a request that begins a session.
func (s *remote) opensWithin() time.Duration {
	if p, ok := s.opts.Auth.(patient); ok {
		return p.OpensWithin()
	}
	return s.opts.ConnectTimeout
}
