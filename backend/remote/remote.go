// Package remote is a backend that stands in front of an MCP server of any revision, over
// Streamable HTTP, HTTP+SSE (2024-11-05) or a WebSocket. It gives clients calls that
// survive cuts and restarts, which the server may not have.
//
// Each session has a session of its own at the server, with its own streams, through a
// [holdfast/client.Conn]. When the connection to the server is cut, that resumes a call if
// the server can do so. If the server ends the session, the client's initialize request is
// sent again, and the session goes on in a new one. A call that may have run and has lost its
// response ends with the error "outcome unknown".
package remote

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/client"
	"holdfast/internal/outagelog"
	"holdfast/internal/protocol"
	"holdfast/internal/redact"
)

// Options configure a [Backend]. The zero value of each field stands for the default given
// with it.
type Options struct {
	// Header is added to each HTTP request to the server. By default only the messages of
	// the client's requests are passed on.
	Header http.Header
	// PassAuthorization passes on the Authorization header of the client. Each message of the client
	// goes to the server with the header that it came with. A message without it goes with the last
	// header that came in the session. Over a WebSocket to the server, all messages have the header
	// that the conversation began with. Set it only if the server expects tokens that were issued
	// for the address at which Holdfast serves (2025-11-25, Authorization, "Token Handling").
	PassAuthorization bool
	// Transport is the wire protocol to the server; client.Auto.
	Transport client.Transport
	// NoListen keeps a session from opening the standalone stream at the server, on which the server
	// sends messages that belong to no request. It is for a handler without sessions (Stateless).
	NoListen bool
	// GiveUp is how long the server may be out of reach before the calls that wait for it
	// fail; 5 minutes. The first request of a session fails within seconds.
	GiveUp time.Duration
	// HTTPClient sends the HTTP requests; one that all sessions share. Its Timeout and
	// CheckRedirect are not used.
	HTTPClient *http.Client
	// Logger takes lines for the operator; slog.Default().
	Logger *slog.Logger
	// Checked gets from New a function that a check of the caller's own, such as one before the first session, calls if the server is
	// out of reach. So the log has one line about that, for the check and for all sessions. By default there is no such check.
	Checked func(unreached func(error))
}

// A Backend is a [backend.Backend] in front of one server. Its methods may be called
// concurrently.
type Backend struct {
	url  string
	opts Options

	away *outagelog.Outage // the server is out of reach
	busy *answering        // it takes no more for now
	ill  *answering        // it answers with errors of its own

	mu    sync.Mutex
	conns map[*conn]struct{}

	refused atomic.Int32 // the status with which the server refuses the operator's credentials; 0: it has answered since
}

// New returns a backend in front of the server at a URL that begins with http://, https://,
// ws:// or wss://. A wrong URL is the error of each Open. opts may be nil.
func New(url string, opts *Options) *Backend {
	b := &Backend{url: url, conns: make(map[*conn]struct{})}
	if opts != nil {
		b.opts = *opts
	}
	if b.opts.GiveUp <= 0 {
		b.opts.GiveUp = 5 * time.Minute
	}
	if b.opts.Logger == nil {
		b.opts.Logger = slog.Default()
	}
	if t, ok := http.DefaultTransport.(*http.Transport); ok && b.opts.HTTPClient == nil {
		own := t.Clone()
		own.MaxIdleConns, own.MaxIdleConnsPerHost = 0, mostIdle // all sessions have the same host
		own.DisableCompression = true                           // a compressed stream may be held back
		own.MaxResponseHeaderBytes = 256 << 10
		b.opts.HTTPClient = &http.Client{Transport: own}
	}
	b.watch()
	return b
}

// conversationCost is how many bytes a conversation counts for: it takes about three times as many, with its
// connection for the server's stream.
const conversationCost = 16 << 10

// mostIdle is how many idle connections to the server are kept. A call has a connection of its own while it runs.
const mostIdle = 512

// Eras implements [backend.EraSpeaker]. It returns [backend.Unknown].
func (b *Backend) Eras() backend.Eras { return backend.Unknown }

// TakesAuthorization reports whether the server gets the Authorization of clients, so that it may refuse
// any request, and whether a conversation keeps the Authorization that it began with, because its
// messages carry none: the server is reached over a WebSocket. Requests of revision 2026-07-28 then share
// a conversation only if they have the same Authorization.
func (b *Backend) TakesAuthorization(*http.Request) (takes, keeps bool) {
	takes = b.opts.PassAuthorization
	return takes, takes && b.socket()
}

// socket reports whether the server is reached over a WebSocket.
func (b *Backend) socket() bool {
	return b.opts.Transport == client.WebSocket || strings.HasPrefix(strings.ToLower(b.url), "ws")
}

// Open implements [backend.Backend]. It sends nothing: the client's initialize request is the first that the
// server gets. If the server answers that with status 401 or 403, so does Holdfast, with the same WWW-Authenticate
// header, unless Holdfast has begun a stream by then. But a client can do nothing about credentials in
// Options.Header, or that Options.HTTPClient adds: if those are refused the status is 502, and the log says so.
func (b *Backend) Open(_ context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	c := &conn{b: b, sink: sink, pass: b.opts.PassAuthorization, socket: b.socket(), closed: make(chan struct{})}
	if err := c.Account().Hold(conversationCost); err != nil {
		return nil, err
	}
	c.note(context.Background(), start.HTTP.Header, false)
	era := client.AnyEra
	if protocol.Modern(start.Revision) {
		era = client.Modern // the server is known to be modern: it is not asked for sessions again
	}
	up, err := client.New(b.url, &client.Options{
		Era:        era,
		HTTPClient: b.opts.HTTPClient,
		Header:     b.opts.Header,
		Transport:  b.opts.Transport,
		Auth:       c,
		NoListen:   b.opts.NoListen,
		Receive:    c.receive,
		GiveUp:     b.opts.GiveUp,
		Away:       b.silent,
		Lost:       func([]string) { b.lostSession() },
		Logger:     slog.New(b.covered(b.opts.Logger.Handler())).With("session", start.Session),
	})
	if err != nil {
		return nil, fmt.Errorf("open the upstream server: %w", err)
	}
	c.up = up
	b.mu.Lock()
	b.conns[c] = struct{}{}
	b.mu.Unlock()
	return c, nil
}

// ownRefused tells clients of refused credentials that are not theirs.
const ownRefused = "the upstream server refuses the credentials that Holdfast has for it: tell the operator, whose log says more"

// hasCredentials reports whether requests may have credentials of the operator.
func (b *Backend) hasCredentials() bool { return len(b.opts.Header) > 0 || b.opts.HTTPClient != nil }

// refuses reports whether a server that gets no credentials of clients has refused those of the
// operator, and logs the remedy: once, until the server has answered.
func (b *Backend) refuses(resp *http.Response) (own bool) {
	// The request of the response has the headers that a transport has added.
	token := resp.Request != nil && resp.Request.Header.Get("Authorization") != "" && b.opts.Header.Get("Authorization") == ""
	own = token || len(b.opts.Header) > 0
	if b.refused.Swap(int32(resp.StatusCode)) == int32(resp.StatusCode) { //nolint:gosec // three digits
		return own
	}
	at := slog.Group("upstream", "url", redact.URL(b.url), "status", resp.StatusCode)
	switch {
	case token: // the HTTPClient has added it
		b.opts.Logger.Error("the upstream server refuses Holdfast's token: see that --upstream-client-id, its secret and --upstream-scopes are right (in a configuration file: \"auth\")", at)
	case own:
		b.opts.Logger.Error("the upstream server refuses Holdfast's credentials: change them with --upstream-header or HOLDFAST_UPSTREAM_HEADER (in a configuration file: \"headers\")", at)
	default:
		b.opts.Logger.Warn("the upstream server wants authorization, and gets none: give it credentials with --upstream-header 'Authorization: Bearer TOKEN' (in a configuration file: \"headers\"), or those of clients with --upstream-auth passthrough", at)
	}
	return own
}
