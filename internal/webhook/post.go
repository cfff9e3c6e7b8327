package webhook

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// transport returns the transport of tries. It makes a new connection for each try, without a
// proxy, to an address that was looked up and checked for that try. It is used without an
// http.Client, so redirects are not followed.
func (s *Sender) transport() *http.Transport {
	dialer := net.Dialer{Timeout: s.opts.Timeout, Resolver: s.opts.Resolver, ControlContext: s.control}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        s.opts.TLS,
		DisableKeepAlives:      true, // a connection is good only for the try that its address was checked for
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
	}
}

// targetKey is the context key for the target of a connection.
type targetKey struct{}

// control is called before a connection is made, with its address: nothing can change between this
// check and the use.
func (s *Sender) control(ctx context.Context, _, address string, _ syscall.RawConn) error {
	to, ok := ctx.Value(targetKey{}).(target)
	at, err := netip.ParseAddrPort(address)
	if !ok || err != nil {
		return fmt.Errorf("%w: no target or address to check", errRefused)
	}
	return s.policy.check(to, at)
}

// result is the outcome of a try.
type result struct {
	err   error         // nil: the receiver has it
	final bool          // with err: no other try is wanted
	after time.Duration // how long the receiver asked to wait; 0 if it did not
}

// mostAnswer is how many bytes of an answer's body are read, and ignored, so that the receiver can
// finish.
const mostAnswer = 4 << 10

// try makes one POST.
func (s *Sender) try(d *delivery) result {
	ctx, stop := context.WithTimeout(context.WithValue(s.ctx, targetKey{}, d.to), s.opts.Timeout)
	defer stop()
	r, err := s.request(ctx, d)
	if err != nil {
		return result{err: err, final: true}
	}
	res, err := s.http.RoundTrip(r)
	if err != nil {
		return result{err: err}
	}
	_, _ = io.CopyN(io.Discard, res.Body, mostAnswer)
	_ = res.Body.Close()
	switch {
	case res.StatusCode >= 200 && res.StatusCode <= 299:
		return result{}
	case res.StatusCode == http.StatusGone:
		return result{err: fmt.Errorf("it answered %d: it wants no more", res.StatusCode), final: true}
	}
	return result{
		err:   fmt.Errorf("it answered %d", res.StatusCode),
		after: retryAfter(res.Header.Get("Retry-After"), saidAt(res)),
	}
}

// request returns the request of one try, signed for now (Standard Webhooks,
// "Webhook headers").
func (s *Sender) request(ctx context.Context, d *delivery) (*http.Request, error) {
	now := time.Now()
	signature, err := s.signer.Sign(d.id, now, d.body)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	r := (&http.Request{
		Method:        http.MethodPost,
		URL:           d.to.url,
		Host:          d.to.url.Host,
		Header:        make(http.Header),
		Body:          io.NopCloser(bytes.NewReader(d.body)),
		ContentLength: int64(len(d.body)),
	}).WithContext(ctx)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "Holdfast-Webhook")
	r.Header.Set(standardwebhooks.HeaderWebhookID, d.id)
	r.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	r.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	return r, nil
}

// saidAt returns the time of an answer by the receiver's clock, as a time in its Retry-After is by
// that clock.
func saidAt(res *http.Response) time.Time {
	if at, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		return at
	}
	return time.Now()
}

// longestAfter is the longest wait that retryAfter returns: times can be added to it.
const longestAfter = math.MaxInt32 * time.Second

// retryAfter returns how long a receiver asks to wait, or 0 (RFC 9110, section 10.2.3).
func retryAfter(text string, now time.Time) time.Duration {
	text = strings.TrimSpace(text)
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), longestAfter)
	}
	return 0
}
