// Package client is the client that does not let go: a connection to a remote
// MCP server that outlives the connections under it.
//
// A [Conn] takes the host's messages and gives back the server's. Each request
// has a life of its own (call.go): it is sent, its answer is read from wherever
// the server offers it, and when a connection breaks it goes on by the best door
// there is: the stream URL (SEP-1335), the last event id (2025-11-25, Transports,
// "Resumability and Redelivery"), requests/resume (SEP-975), or the request sent
// again under the same idempotency key. A request that may have run is not sent
// again otherwise; where nothing can be known its answer is an error that begins
// with "outcome unknown".
//
// Messages are not decoded beyond their top level.
package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/redact"
	"holdfast/jsonrpc"
)

// Transport says how the server is spoken to.
type Transport int

// The transports.
const (
	// Auto tries Streamable HTTP, and falls back to HTTP+SSE where the first
	// request is answered with 400, 404 or 405 (2025-11-25, Transports, "Backwards
	// Compatibility"). URLs that begin with ws are WebSockets.
	Auto Transport = iota
	// HTTP is Streamable HTTP.
	HTTP
	// SSE is the HTTP+SSE pair of revision 2024-11-05.
	SSE
	// WebSocket is one socket for all messages.
	WebSocket
)

// An Authorizer authorizes requests. Its methods may be called concurrently.
type Authorizer interface {
	// Authorization returns the value of the Authorization header; "" for none.
	Authorization(ctx context.Context) (string, error)
	// Authorize is called when a request was refused with 401 or 403. If it
	// returns nil the request is sent once more. It closes the response's body.
	Authorize(ctx context.Context, req *http.Request, resp *http.Response) error
}

// Options say how a [Conn] behaves. The zero value is useful.
type Options struct {
	// HTTPClient sends the requests. Its Timeout and CheckRedirect are not used:
	// streams last, and redirects are followed within one origin only. By default
	// it is one of the Conn's own.
	HTTPClient *http.Client
	// Header is sent with each request.
	Header http.Header
	// Auth authorizes requests; nil: nobody does.
	Auth Authorizer
	// Transport says how the server is spoken to; Auto.
	Transport Transport
	// NoListen keeps the Conn from opening the standalone stream, on which the
	// server says what belongs to no request.
	NoListen bool
	// State is where another Conn was ([Conn.State]): this one goes on from there.
	State *State
	// Changed is called after each change of what [Conn.State] returns, often, and
	// must not wait. It is called for a request before that is sent: who writes the
	// State down there and then finds the request again, whenever the process ends.
	Changed func()
	// Away is called when the server can't be reached for a call that is waited for,
	// once for each call and time. It must not wait. Nil: it is logged.
	Away func(error)
	// Lost is called when the server has ended the session and another takes its
	// place, before the error responses of the calls that are lost are given out.
	// It must not wait. Nil: it is logged.
	Lost func(Lost)
	// MaxMessage bounds a message of the server, in bytes; 16 MiB.
	MaxMessage int
	// Silence is how long a connection may be without a byte, not even a
	// keep-alive, before it is given up for another; 1 minute. It counts only where
	// the call could be gone on with.
	Silence time.Duration
	// AnswerTimeout is how long a server that offers no way to ask again may take
	// to begin its answer; 15 minutes.
	AnswerTimeout time.Duration
	// ConnectTimeout is how long the server may take to answer the first request,
	// and how long it is tried to be reached; 30 seconds.
	ConnectTimeout time.Duration
	// GiveUp is how long the server may be out of reach before what waits for it
	// fails; 30 minutes.
	GiveUp time.Duration
	// Logger takes what is worth telling; slog.Default().
	Logger *slog.Logger
}

// Lost says what went with a session that the server has ended.
type Lost struct {
	// Calls are the ids of requests in flight, as raw JSON. Each still gets a
	// response: what its stream yet brings, or else an error that says that its
	// outcome is unknown.
	Calls []string
}

// A Conn is a connection to one server. Its methods may be called concurrently,
// but for Receive, which has one caller at a time.
type Conn struct {
	remote remote
	opts   Options
	logger *slog.Logger
	ids    ids

	ctx     context.Context // of all that the Conn does
	stop    context.CancelFunc
	work    sync.WaitGroup
	started sync.Once // continues what State told of
	in      chan jsonrpc.Message
	out     outbox
	workers workers
	asks    serverRequests

	mu         sync.Mutex
	state      connState
	session    session
	opening    opening
	standalone standalone
	seen       eventIDs         // events of all streams, but those of a mux
	calls      map[string]*call // in flight, by the key of their id
	restored   []*call          // those of State, until they are continued
	mux        *mux             // what carries everything, where that is one connection; or nil
	cancelling cancelling
}

// A remote is the server's address, and how HTTP gets there. It does not change.
type remote struct {
	raw     string // the URL as it was given
	url     *url.URL
	http    *http.Client
	own     *http.Transport // to close, or nil
	secrets *redact.Secrets // of the URL and the headers: nobody is to read them in an error
}

// ids are those of our own requests, which no host uses.
type ids struct {
	prefix string
	count  atomic.Uint64
}

// New returns a Conn to the server at the URL. Nothing is sent yet.
func New(rawURL string, opts *Options) (*Conn, error) {
	u, err := url.Parse(rawURL)
	if err != nil { // which repeats the URL, or a part of it
		return nil, errors.New("server URL: it cannot be read: want one like http://HOST:PORT/PATH; " +
			"in a user or password the characters @ : / ? # [ ] % and space are written %40 %3A %2F %3F %23 %5B %5D %25 %20")
	}
	c := &Conn{remote: remote{raw: rawURL, url: u}, calls: make(map[string]*call), in: make(chan jsonrpc.Message, 16)}
	if opts != nil {
		c.opts = *opts
	}
	switch u.Scheme {
	case "http", "https":
	case "ws", "wss":
		if c.opts.Transport == Auto {
			c.opts.Transport = WebSocket
		}
		c.remote.url = plain(u)
	default:
		return nil, fmt.Errorf("server URL %q: want one that begins with http://, https://, ws:// or wss://", redact.URL(rawURL))
	}
	if u.Host == "" {
		return nil, fmt.Errorf("server URL: it has no host: want one like %s://HOST:PORT/PATH", u.Scheme)
	}
	c.opts.defaults()
	c.remote.secrets = secretsOf(rawURL, c.opts.Header)
	c.logger = c.opts.Logger
	c.seen.seed = maphash.MakeSeed()
	c.ids.prefix = "holdfast-" + strings.ToLower(rand.Text()[:10])
	c.remote.http, c.remote.own = newHTTPClient(c.opts.HTTPClient)
	c.workers.calls = make(chan *call)
	c.asks.init()
	c.ctx, c.stop = context.WithCancel(context.Background())
	if s := c.opts.State; s != nil {
		c.restore(s)
	}
	return c, nil
}

func (o *Options) defaults() {
	def := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	def(&o.Silence, time.Minute)
	def(&o.AnswerTimeout, 15*time.Minute)
	def(&o.ConnectTimeout, 30*time.Second)
	def(&o.GiveUp, 30*time.Minute)
	if o.MaxMessage <= 0 {
		o.MaxMessage = 16 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Errors of Send.
var (
	// ErrClosed says that the Conn has been closed.
	ErrClosed = errors.New("connection closed")
	// ErrDuplicate refuses a request whose id is in flight.
	ErrDuplicate = errors.New("a request with this id is in flight")
)

// Send takes a message of the host. It does not wait for the server, but for
// notifications/initialized, which the server has when Send returns: other
// notifications are sent in their order, behind the caller's back. A request is
// answered through [Conn.Receive], whatever happens, unless the host cancels it
// with notifications/cancelled. ctx bounds only what is waited for.
func (c *Conn) Send(ctx context.Context, m jsonrpc.Message) error {
	c.begin()
	switch m.Kind {
	case jsonrpc.Request:
		return c.call(m)
	case jsonrpc.Response:
		return c.reply(m)
	case jsonrpc.Notification:
		return c.notify(ctx, m)
	}
	return fmt.Errorf("send: %w", jsonrpc.ErrInvalid)
}

// Receive returns the next message of the server. After [Conn.Close] and
// [Conn.Detach] it is io.EOF.
func (c *Conn) Receive(ctx context.Context) (jsonrpc.Message, error) {
	c.begin()
	select {
	case m := <-c.in:
		return m, nil
	case <-ctx.Done():
		return jsonrpc.Message{}, ctx.Err()
	case <-c.ctx.Done():
	}
	select {
	case m := <-c.in: // it was given out before the end
		return m, nil
	default:
		return jsonrpc.Message{}, io.EOF
	}
}

// begin continues, once, what the State had in flight.
func (c *Conn) begin() { c.started.Do(c.continueRestored) }

// deliver gives a message to the host. It reports false if the Conn ended first.
func (c *Conn) deliver(m jsonrpc.Message) bool {
	select {
	case c.in <- m:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// spawn runs f as part of the Conn, which waits for it when it ends. It reports
// false if the Conn has ended.
func (c *Conn) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != connOpen {
		return false
	}
	c.work.Go(f)
	return true
}

// SessionID returns the id that the server has given the session, or "".
func (c *Conn) SessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.id
}
