package remote

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"holdfast/internal/outage"
	"holdfast/internal/protocol"
	"holdfast/internal/redact"
	"holdfast/jsonrpc"
)

// watch has all requests to the server tell whether it is reached. So the operator's log has one line when it is out of reach,
// however many sessions try.
func (b *Backend) watch() {
	about := outage.Options{Logger: b.opts.Logger, Attrs: []any{slog.String("url", redact.URL(b.url))}, Calls: b.inFlight, Confirm: time.Second, Wait: 4 * time.Second}
	wait := "calls wait for it for up to " + b.opts.GiveUp.String() + " (--upstream-wait), or their outcome is unknown where it cannot continue them; those that begin a session fail within seconds. If it stays so, see that it runs, that this machine reaches it, and that the URL is right"
	away := about
	away.Away, away.Still, away.Back = "the upstream server is out of reach: "+wait, "the upstream server is still out of reach: "+wait, "the upstream server is reached again"
	away.Lost = "the upstream server has lost calls or sessions, as one that was started again does: the sessions go on in new ones there, without what it kept of them"
	b.away = outage.New(away)
	const later = "requests are made again when it allows. If it stays so, raise its limit, or allow clients less (--limit)"
	busy := about
	busy.Away, busy.Still, busy.Back = "the upstream server takes no more for now: "+later, "the upstream server still takes no more: "+later, "the upstream server takes requests again"
	b.busy = outage.New(busy)
	sender := *b.opts.HTTPClient
	sender.Transport = &reach{next: sender.Transport, b: b}
	b.opts.HTTPClient = &sender
}

// inFlight returns how many requests the server has not answered.
func (b *Backend) inFlight() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		n += c.requests.Len()
	}
	return n
}

// ended notes that a request has ended with an error. opens says that it was to begin the session.
func (b *Backend) ended(e []byte, opens bool) {
	switch message := jsonrpc.String(jsonrpc.Field(e, "message")); {
	case unknown(e):
		b.away.Ended(1, 0)
	case opens && protocol.OutOfReach(message):
		b.away.Failed(errors.New(message))
		b.away.Ended(0, 1)
	case b.away.IsAway():
		b.away.Ended(0, 1)
	}
}

// silent notes that the server cannot be reached, as a conversation has found. What a request can tell, reach has noted.
func (b *Backend) silent(err error) {
	var late interface{ Timeout() bool }
	if errors.As(err, &late) && late.Timeout() {
		b.away.Failed(err)
	}
}

func isError(error) bool { return true }

// A reach is the transport of requests to the server, and notes which reach it.
type reach struct {
	next http.RoundTripper // nil: the default
	b    *Backend
}

// RoundTrip implements [http.RoundTripper].
func (t *reach) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.transport().RoundTrip(r)
	switch {
	case err != nil && r.Context().Err() == nil:
		t.b.away.Failed(redact.Of([]string{t.b.url}).Error(err))
	case err != nil: // it was given up
	case resp.StatusCode == http.StatusBadGateway, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		t.b.away.Failed(errors.New("status " + resp.Status))
	default:
		t.b.away.Reached()
		if resp.StatusCode == http.StatusTooManyRequests {
			t.b.busy.Failed(errors.New("status " + resp.Status))
		} else {
			t.b.busy.Reached()
		}
	}
	return resp, err
}

func (t *reach) transport() http.RoundTripper {
	if t.next == nil {
		return http.DefaultTransport
	}
	return t.next
}

// CloseIdleConnections does what http.Client's does.
func (t *reach) CloseIdleConnections() {
	if next, ok := t.transport().(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

// Traces reports whether the transport calls httptrace.ClientTrace.
func (t *reach) Traces() bool {
	_, ok := t.transport().(*http.Transport)
	return ok
}
