// Package client connects to a remote MCP server, and keeps calls alive when
// connections break. Messages are raw JSON-RPC: to use it below an official
// mcp.Client, see holdfast.NewClientTransport.
//
// A [Conn] takes the host's messages ([Conn.Send]) and returns the server's
// ([Conn.Receive]). Each request is a call. When a connection breaks, its calls
// continue by the best way that the server offers:
//
//   - the stream URL (SEP-1335),
//   - the last event id (2025-11-25, Transports, "Resumability and Redelivery"),
//   - requests/resume with a resume token (SEP-975),
//   - the request itself, sent again under the same idempotency key,
//   - the request itself, sent again, if it is retry-safe.
//
// A request that may have run is never sent again in another way. If nothing leads
// back to it, its response is an error of code [CodeOutcomeUnknown].
//
// Every request gets exactly one response, unless the host cancels it. A call never hangs:
// see [Options.GiveUp] and [Options.AnswerTimeout].
package client

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"

	"holdfast/internal/budget"
	"holdfast/internal/redact"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// A Conn is a connection to one server. Its methods may be called concurrently,
// except Receive, which has one caller at a time.
//
// Locks are taken in this order: Conn.mu, then mux.mu, inFlight.mu or serverRequests.mu, then
// call.mu, then turns.mu. None is held during I/O, or while code of the user runs.
type Conn struct {
	remote  remote
	opts    Options
	logger  *slog.Logger
	account budget.Account
	ids     rpc.OwnIDs  // ids of our own requests, which no host uses
	noise   atomic.Bool // the server has sent a text that is not a message
	running
	messages

	mu         sync.Mutex
	state      connState
	session    session
	opening    opening
	modern     modern
	standalone standalone
	seen       eventIDs // events of all streams, except those of a mux
	mux        *mux     // nil where each message is an HTTP exchange of its own
}

// running is the work that a Conn does by itself, and how it ends.
type running struct {
	ctx      context.Context // of all work of the Conn
	stop     context.CancelFunc
	work     sync.WaitGroup
	started  sync.Once // continues the calls of State
	restored []*call   // the calls of State, until they are continued
}

// messages are the messages on their way between the host and the server.
type messages struct {
	in         chan jsonrpc.Message // to the host
	out        outbox
	calls      inFlight
	cancelling cancelling
	workers    workers
	requests   serverRequests
}

// New returns a Conn to the server at rawURL, which begins with http://, https://, ws://
// or wss://. opts may be nil. Nothing is sent before the first [Conn.Send] or
// [Conn.Receive]. The caller ends the Conn with [Conn.Close] or [Conn.Detach].
func New(rawURL string, opts *Options) (*Conn, error) {
	u, err := url.Parse(rawURL)
	if err != nil { // err repeats the URL, or a part of it
		return nil, errors.New("server URL: it cannot be read: want one like http://HOST:PORT/PATH; " +
			"in a user or password the characters @ : / ? # [ ] % and space are written %40 %3A %2F %3F %23 %5B %5D %25 %20")
	}
	c := &Conn{remote: remote{raw: rawURL, url: u}}
	c.calls.byRecord = make(map[string]*call)
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.Receive == nil { // Receive takes the messages otherwise, and the channel takes 2 KB
		c.in = make(chan jsonrpc.Message, 16)
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
	if p := u.Port(); p != "" {
		if _, err := strconv.ParseUint(p, 10, 16); err != nil { // err is not shown, as the port may be a part of a password
			return nil, errors.New("server URL: its port is none: want a number up to 65535 after the host")
		}
	}
	c.opts.defaults()
	c.remote.opts = &c.opts
	c.remote.secrets = secretsOf(rawURL, c.opts.Header)
	c.logger = c.opts.Logger
	if c.opts.Away == nil {
		c.watch(rawURL)
	}
	c.account = budget.Of(c.opts.Auth) // of the conversation of a backend
	c.seen.seed = maphash.MakeSeed()
	c.remote.http, c.remote.own = newHTTPClient(c.opts.HTTPClient)
	c.workers.calls = make(chan *call)
	c.requests.init(c)
	c.ctx, c.stop = context.WithCancel(context.Background())
	if s := c.opts.State; s != nil {
		c.restore(s)
	}
	return c, nil
}

// Errors of Send.
var (
	// ErrClosed says that the Conn has been closed.
	ErrClosed = errors.New("connection closed")
	// ErrDuplicate refuses a request with an id that is in flight.
	ErrDuplicate = errors.New("a request with this id is in flight")
)

// Send takes a message of the host: a request, a notification, or the response to a
// request of the server. It returns before the message is sent, except for
// notifications/initialized, for which it waits until the server has it or ctx ends.
// Messages keep their order to the server only as far as the protocol needs it:
// notifications among themselves, and a cancellation after its request.
//
// A request gets its response through [Conn.Receive], whatever happens, unless the host
// cancels it with notifications/cancelled. Errors: [ErrClosed], [ErrDuplicate], or
// [jsonrpc.ErrInvalid].
func (c *Conn) Send(ctx context.Context, m jsonrpc.Message) error {
	c.begin()
	switch m.Kind {
	case jsonrpc.Request:
		return c.call(ctx, m)
	case jsonrpc.Response:
		return c.requests.reply(ctx, m)
	case jsonrpc.Notification:
		return c.notify(ctx, m)
	}
	return fmt.Errorf("send: %w", jsonrpc.ErrInvalid)
}

// Receive returns the next message of the server: a response, a request or a
// notification. It blocks until there is one. Its error is that of ctx, or io.EOF after
// [Conn.Close] and [Conn.Detach].
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
	case m := <-c.in: // it was delivered before the end
		return m, nil
	default:
		return jsonrpc.Message{}, io.EOF
	}
}

// begin continues, once, the calls that the State had in flight.
func (c *Conn) begin() { c.started.Do(c.continueRestored) }

// deliver passes a message to the host. k is the call of the stream on which it came, or
// nil. It reports false if the Conn ended first.
func (c *Conn) deliver(k *call, m jsonrpc.Message) bool {
	if receive := c.opts.Receive; receive != nil {
		if c.ctx.Err() != nil {
			return false
		}
		var request []byte
		if k != nil {
			request = k.id
		}
		inform(c.logger, "Options.Receive", func() { receive(request, m) })
		return true
	}
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

// SessionID returns the session id that the server has assigned, or "" if there is none.
func (c *Conn) SessionID() string {
	return c.current().id
}
