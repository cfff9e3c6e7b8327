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
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/sse"
)

// Bounds, in bytes, of the values that a server sends and the client has to remember,
// repeat with each request, and store in a [State]: the header of a response; a session id;
// and an event id, stream URL, endpoint or resume token.
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
	headers func(http.Header) // sets more headers; may be nil
	message bool              // it carries a message: the host's, if ctx has the host's context ([sentWith])
}

// A response is an HTTP response with a watch on its body: it ends when nothing has come for too long.
type response struct {
	*http.Response
	cancel context.CancelCauseFunc
	watch  *time.Timer
	ctx    context.Context
	quiet  time.Duration // how long nothing may come; 0: for ever
	events bool          // bytes do not restart the watch, only pause and expect do
	alive  time.Duration // becomes quiet when a keep-alive has come; 0: quiet stays
	ended  bool          // the body was read to its end
}

// errSilent is the cause that ends a connection on which nothing came.
var errSilent error = silence{}

type silence struct{}

func (silence) Error() string { return "nothing came for too long" }

// Timeout is that of [net.Error].
func (silence) Timeout() bool { return true }

// Close ends the response.
func (r *response) Close() {
	r.watch.Reset(drainFor)
	// A short rest is read, so that the connection can be used again. Close does not wait for the end of a stream.
	if !r.ended && r.ContentLength >= 0 && r.ContentLength <= 4<<10 {
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength)
	}
	r.watch.Stop()
	r.cancel(context.Canceled)
	_ = r.Body.Close()
}

// drain reads the rest of a stream after its last message, so that the connection can be
// used again. It does not wait for a server that does not end the stream.
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

// pause stops the watch while the stream is not being read, and starts it again.
func (r *response) pause(stop bool) {
	switch {
	case r.quiet == 0:
	case stop:
		r.watch.Stop()
	default:
		r.watch.Reset(r.quiet)
	}
}

// unpack makes resp.Body decode a body that the server has compressed, although it was not asked to. Its readers bound its length.
func unpack(resp *http.Response) {
	u := &unpacked{packed: resp.Body}
	switch strings.ToLower(resp.Header.Get("Content-Encoding")) {
	case "gzip", "x-gzip": // x-gzip is the same (RFC 9110, section 8.4.1.3)
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

// inflate decodes deflate: in the zlib format (RFC 9110, section 8.4.1.2), or without it, as some servers send it.
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
	plain  io.Reader // nil before the first Read, as making it waits for the body
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

// isPage reports whether a response without a message is a web page, as a proxy or a network's login shows it for a while in
// the place of the server. Servers that take a message also say 202, or say so in HTML that has no tags: these are no pages.
func (r *response) isPage() bool {
	if r.StatusCode != http.StatusOK || r.media() != "text/html" {
		return false
	}
	begin := make([]byte, 512)
	n, _ := io.ReadFull(r, begin)
	return bytes.HasPrefix(bytes.TrimSpace(bytes.TrimPrefix(begin[:n], []byte("\xef\xbb\xbf"))), []byte("<"))
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
	now, err := http.ParseTime(r.Header.Get("Date")) // by the server's clock
	if err != nil {
		now = time.Now()
	}
	return min(max(at.Sub(now), 0), mostAfter)
}

// mostAfter bounds a Retry-After, so that no sum of times overflows.
const mostAfter = 1 << 31 * time.Second

// errTooLarge refuses a message larger than Options.MaxMessage.
var errTooLarge = errors.New("message is too large")

// all reads a body of at most max bytes. arrival counts the bytes; nil: they are not counted.
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
