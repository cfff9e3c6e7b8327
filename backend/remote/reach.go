package remote

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"holdfast/internal/outagelog"
	"holdfast/internal/protocol"
	"holdfast/internal/redact"
	"holdfast/jsonrpc"
)

// watch makes all requests to the server note whether they reach it. So the operator's log has one line when the server is out
// of reach, however many sessions try.
func (b *Backend) watch() {
	about := outagelog.Options{Logger: b.opts.Logger, Attrs: []any{slog.String("url", redact.URL(b.url))}, Calls: b.inFlight, Confirm: time.Second, Wait: 4 * time.Second}
	wait := "calls wait for it for up to " + b.opts.GiveUp.String() + " (--upstream-wait), or their outcome is unknown where it cannot continue them; those that begin a session fail within seconds. If it stays so, see that it runs, that this machine reaches it, and that the URL is right"
	away := about
	away.Away, away.Still, away.Back = "the upstream server is out of reach: "+wait, "the upstream server is still out of reach: "+wait, "the upstream server is reached again"
	away.Lost = "the upstream server has lost calls or sessions, as one that was started again does: the sessions go on in new ones there, without what it kept of them"
	b.away = outagelog.New(away)
	if b.opts.Checked != nil {
		b.opts.Checked(func(err error) { b.away.Failed(redact.Of([]string{b.url}).Error(err)) })
	}
	const later = "requests are made again when it allows. If it stays so, raise its limit, or allow clients less (--rate, --max-calls-principal)"
	busy := about
	busy.Away, busy.Still, busy.Back = "the upstream server takes no more for now: "+later, "the upstream server still takes no more: "+later, "the upstream server takes requests again"
	b.busy = &answering{Outage: outagelog.New(busy)}
	const look = "calls fail, and their outcome is unknown where it may have begun them. See what its log says, or that of a proxy before it"
	ill := about
	ill.Away, ill.Still, ill.Back = "the upstream server answers with an error status: "+look, "the upstream server still answers with an error status: "+look, "the upstream server answers without errors again"
	ill.Certain = true
	b.ill = &answering{Outage: outagelog.New(ill)}
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

// ended notes that a request has ended with an error. opens says that the request was to begin the session.
func (b *Backend) ended(e []byte, opens bool) {
	message := jsonrpc.String(jsonrpc.Field(e, "message"))
	lost := b.away
	switch {
	case b.ill.Covers() && strings.Contains(message, ownStatus):
		lost = b.ill.Outage
	case b.busy.IsAway() && strings.Contains(message, busyStatus):
		lost = b.busy.Outage
	case opens && protocol.OutOfReach(message):
		b.away.Failed(errors.New(message))
	}
	switch {
	case unknown(e):
		lost.Ended(1, 0)
	case lost.IsAway():
		lost.Ended(0, 1)
	}
}

// lostSession notes that the server has ended a session, or refuses all requests in it.
func (b *Backend) lostSession() {
	if b.ill.Covers() {
		b.ill.LostSession()
		return
	}
	b.away.LostSession()
}

// Texts in errors by which the status of an answer is known.
const (
	ownStatus  = "HTTP 5"
	busyStatus = "HTTP 429"
)

// covered returns the handler of log lines about single tries.
func (b *Backend) covered(h slog.Handler) slog.Handler {
	h = b.busy.Handler(h, func(err error) bool { return strings.Contains(err.Error(), busyStatus) })
	h = b.ill.Handler(h, func(err error) bool { return strings.Contains(err.Error(), ownStatus) })
	return b.away.Handler(h, func(error) bool { return true })
}

// answering is the outage of a server that answers with an error status. If it answers a call of a tool so, only another answer to a
// call ends the outage, for callsCount: the server may answer initialize and pings all the time.
type answering struct {
	*outagelog.Outage
	call atomic.Int64 // when a call was last answered with an error, in Unix nanoseconds; 0: none was, since the server was well
}

const callsCount = time.Minute

func (a *answering) failed(resp *http.Response, call bool) {
	if call {
		a.call.Store(time.Now().UnixNano())
	}
	a.Failed(errors.New("status " + resp.Status))
	a.Refused()
}

func (a *answering) reached(call bool) {
	if last := a.call.Load(); last != 0 {
		if !call && time.Now().UnixNano()-last < int64(callsCount) {
			return
		}
		a.call.Store(0)
	}
	a.Reached()
}

// silent notes that a conversation has found the server silent. The transport, reach, notes the outcome of single requests.
func (b *Backend) silent(err error) {
	var late interface{ Timeout() bool }
	if errors.As(err, &late) && late.Timeout() {
		b.away.Failed(err)
	}
}

// A reach is the transport of requests to the server, and notes which of them reach it.
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
	default:
		t.b.answered(resp, r.Context().Value(callKey{}) != nil)
	}
	return resp, err
}

// answered notes the status of an answer. call says whether it answers a call of a tool.
func (b *Backend) answered(resp *http.Response, call bool) {
	switch status := resp.StatusCode; {
	case status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout:
		// A proxy may answer so for a server that is out of reach: if that is known already, it is no news.
		if b.away.IsAway() {
			b.away.Failed(errors.New("status " + resp.Status))
			return
		}
		b.ill.failed(resp, call)
		return
	case status >= http.StatusInternalServerError:
		b.ill.failed(resp, call)
	case status == http.StatusTooManyRequests:
		b.busy.failed(resp, call)
		b.ill.reached(call)
	default:
		b.busy.reached(call)
		b.ill.reached(call)
	}
	b.away.Reached()
}

func (t *reach) transport() http.RoundTripper {
	if t.next == nil {
		return http.DefaultTransport
	}
	return t.next
}

// CloseIdleConnections closes idle connections of the transport, for http.Client.
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
