package client

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/redact"
	"holdfast/internal/sse"
)

// probes has the system find out within 35 s that a connection on which nothing is sent is dead, also where the server
// sends no keep-alives.
var probes = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}

// idleFor is how long a connection is kept without a request. What lies between may forget it without a word, and a
// request that is sent on it then cannot always be sent again.
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

// Bounds, in bytes, of what a server sends and the client has to remember, repeat with each
// request, and store in a [State]: the header of a response; a session id; and an event id,
// stream URL, endpoint or resume token.
const (
	mostHeader  = 256 << 10
	mostSession = 64 << 10
	mostWay     = 8 << 10
)

// An exchange is one HTTP request to be made, and how long its answer may take.
type exchange struct {
	method  string
	url     *url.URL // nil: the endpoint
	body    []byte   // nil: none
	session *session
	last    string            // Last-Event-ID, or ""
	key     string            // Idempotency-Key, or ""
	wait    time.Duration     // how long the header of the answer may take
	sent    *atomic.Bool      // set once the request may have left, if not nil
	headers func(http.Header) // sets more; may be nil
	message bool              // it carries a message of the host, if ctx says which ([sentWith])
}

// A response is an HTTP response whose body is watched: it ends when nothing has come for
// too long.
type response struct {
	*http.Response
	cancel context.CancelCauseFunc
	watch  *time.Timer
	ctx    context.Context
	quiet  time.Duration // how long nothing may come; 0: for ever
	events bool          // only what is read as a whole counts, not each byte
	alive  time.Duration // how long nothing may come once a keep-alive has; 0: as before
	ended  bool          // there is no more of the body
}

// errSilent is why a connection was ended on which nothing came.
var errSilent error = silence{}

type silence struct{}

func (silence) Error() string { return "nothing came for too long" }

// Timeout is that of [net.Error].
func (silence) Timeout() bool { return true }

// Close ends the response.
func (r *response) Close() {
	r.watch.Reset(drainFor)
	// A short rest is read, so that the connection can be used again. The end of a stream
	// is not waited for.
	if !r.ended && r.ContentLength >= 0 && r.ContentLength <= 4<<10 {
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength)
	}
	r.watch.Stop()
	r.cancel(context.Canceled)
	_ = r.Body.Close()
}

// drain reads what is left of a stream whose last message has come, so that the
// connection can be used again. A server that does not end it is not waited for.
func (r *response) drain() {
	r.quiet = 0
	r.watch.Reset(drainFor)
	_, _ = io.CopyN(io.Discard, r.Body, 4<<10)
}

const drainFor = 100 * time.Millisecond

// Read implements io.Reader for the body.
func (r *response) Read(p []byte) (int, error) {
	n, err := r.Body.Read(p)
	if n > 0 && r.alive > 0 && p[0] == ':' {
		r.quiet, r.alive = r.alive, 0
	}
	if r.quiet > 0 && n > 0 && !r.events {
		r.watch.Reset(r.quiet)
	}
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		r.ended = true
	default:
		if cause := context.Cause(r.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

// expect sets how long nothing may come from now on; 0: for ever.
func (r *response) expect(quiet time.Duration) {
	r.quiet = quiet
	if quiet > 0 {
		r.watch.Reset(quiet)
	} else {
		r.watch.Stop()
	}
}

// pause stops the watch while nobody reads, and starts it again.
func (r *response) pause(stop bool) {
	switch {
	case r.quiet == 0:
	case stop:
		r.watch.Stop()
	default:
		r.watch.Reset(r.quiet)
	}
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

// redirect returns the target of a redirect. One to another origin is refused: requests carry
// secrets.
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
		// have arrived. Here call.run decides that. Other requests it sends again only if
		// nothing of them has left, over a connection that was idle for too long.
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
		var in *url.Error
		if errors.As(err, &in) {
			err = in.Err // without the URL, which may hold secrets
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if errors.Is(err, errSilent) {
			s.http.CloseIdleConnections() // which are likely to be as dead
		}
		cancel(err)
		return nil, nil, plainly(err)
	}
	if resp.StatusCode < http.StatusInternalServerError {
		s.outage.Reached()
	}
	unpack(resp)
	if s.own == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &body{resp.Body, s.opts.Logger}
	}
	return req, &response{Response: resp, cancel: cancel, watch: watch, ctx: ctx, quiet: x.wait}, nil
}

// unpack has a body decoded that the server has compressed, although it was not asked to. How long the body may be is a
// matter of those who read it.
func unpack(resp *http.Response) {
	u := &unpacked{packed: resp.Body}
	switch strings.ToLower(resp.Header.Get("Content-Encoding")) {
	case "gzip", "x-gzip": // which is the same (RFC 9110, section 8.4.1.3)
		u.open = func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }
	case "deflate":
		u.open = inflate
	default:
		return
	}
	resp.Header.Del("Content-Encoding")
	resp.Header.Del("Content-Length")
	resp.ContentLength = -1
	resp.Body = u
}

// inflate reads what is compressed with deflate: in the zlib format (RFC 9110, section 8.4.1.2), or without it, as some
// servers have it.
func inflate(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(2)
	if err != nil {
		return nil, err
	}
	if head[0]&0xf == 8 && (uint(head[0])<<8|uint(head[1]))%31 == 0 { // RFC 1950, section 2.2
		return zlib.NewReader(b)
	}
	return flate.NewReader(b), nil
}

// unpacked is the body of a response without its compression.
type unpacked struct {
	packed io.ReadCloser
	open   func(io.Reader) (io.Reader, error)
	plain  io.Reader // nil before the first Read: to make one waits for the body
}

// Read implements io.Reader.
func (u *unpacked) Read(p []byte) (n int, err error) {
	if u.plain == nil {
		if u.plain, err = u.open(u.packed); err != nil {
			return 0, err
		}
	}
	return u.plain.Read(p)
}

// Close implements io.Closer.
func (u *unpacked) Close() error { return u.packed.Close() }

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

// media returns a response's media type.
func (r *response) media() string {
	v := r.Header.Get("Content-Type")
	if v == "application/json" || v == sse.ContentType {
		return v
	}
	m, _, err := mime.ParseMediaType(v)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return strings.TrimSpace(v)
	}
	return m
}

// retryAfter returns how long a response asks to wait, or 0 (RFC 9110, section
// 10.2.3).
func (r *response) retryAfter() time.Duration {
	v := r.Header.Get("Retry-After")
	if s, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(r.Header.Get("Date")) // by the same clock
	if err != nil {
		now = time.Now()
	}
	return min(max(at.Sub(now), 0), mostAfter)
}

// mostAfter bounds a Retry-After, so that no sum of times overflows.
const mostAfter = 1 << 31 * time.Second

// errTooLarge refuses a message larger than Options.MaxMessage.
var errTooLarge = errors.New("message is too large")

// all reads a body of at most max bytes. arrival counts it; nil: nothing does.
func (r *response) all(max int, arrival *budget.Arrival) ([]byte, error) {
	n := r.ContentLength
	if n > int64(max) {
		return nil, fmt.Errorf("%w: %d bytes, and at most %d are taken", errTooLarge, n, max)
	}
	data, err := arrival.ReadAll(r, n, int64(max)+1)
	if err == nil && len(data) > max {
		err = fmt.Errorf("%w: at most %d bytes are taken", errTooLarge, max)
	}
	return data, err
}
