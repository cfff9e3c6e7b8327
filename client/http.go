package client

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/sse"
)

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
