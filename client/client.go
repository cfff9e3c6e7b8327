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
	raw    string // the URL as it was given
	url    *url.URL
	opts   Options
	http   *http.Client
	own    *http.Transport // to close, or nil
	logger *slog.Logger
	// secrets are what nobody is to read in an error: of the URL and the headers.
	secrets *redact.Secrets

	ctx  context.Context // of all that the Conn does
	stop context.CancelFunc
	work sync.WaitGroup
	in   chan jsonrpc.Message
	once sync.Once // starts what State tells to go on with
	out  outbox

	workers workers
	sending chan struct{} // has place for each answer that is being sent

	ours  string        // begins the ids of our own requests
	wires atomic.Uint64 // how many of those there have been

	mu        sync.Mutex
	closed    bool
	session   session
	opener    []byte               // the host's initialize request, as it is sent
	result    []byte               // what initialize gave
	policies  bool                 // the host wants to see resume policies itself
	ready     bool                 // the host has sent notifications/initialized
	listening bool                 // there is a listener
	heard     string               // its last event id
	seen      eventIDs             // events of all streams, but those of lines
	renewing  chan struct{}        // closed when the session has been begun anew
	renewed   error                // how that ended
	calls     map[string]*call     // in flight, by the key of their id
	stale     map[string]struct{}  // those that nobody waits for any more
	asked     map[string]*question // the server's requests that the host has not answered
	answers   int                  // of the host, that the server has not taken yet
	crowded   bool                 // the server has asked too much at a time
	old       []*call              // those of State, until they are gone on with
	settings  []setting            // what the host has set in the session
	endpoint  string               // where messages are posted to (HTTP+SSE)
	mux       *mux                 // what carries everything, where that is one connection; or nil
	parting   int                  // cancelled calls of which the server is being told
	parted    chan struct{}        // closed when there are none; nil: nobody waits
}

// New returns a Conn to the server at the URL. Nothing is sent yet.
func New(rawURL string, opts *Options) (*Conn, error) {
	u, err := url.Parse(rawURL)
	if err != nil { // which repeats the URL, or a part of it
		return nil, errors.New("server URL: it cannot be read: want one like http://HOST:PORT/PATH; " +
			"in a user or password the characters @ : / ? # [ ] % and space are written %40 %3A %2F %3F %23 %5B %5D %25 %20")
	}
	c := &Conn{raw: rawURL, url: u, calls: make(map[string]*call), asked: make(map[string]*question), in: make(chan jsonrpc.Message, 16)}
	if opts != nil {
		c.opts = *opts
	}
	switch u.Scheme {
	case "http", "https":
	case "ws", "wss":
		if c.opts.Transport == Auto {
			c.opts.Transport = WebSocket
		}
		c.url = plain(u)
	default:
		return nil, fmt.Errorf("server URL %q: want one that begins with http://, https://, ws:// or wss://", redact.URL(rawURL))
	}
	if u.Host == "" {
		return nil, fmt.Errorf("server URL: it has no host: want one like %s://HOST:PORT/PATH", u.Scheme)
	}
	c.opts.defaults()
	c.secrets = secretsOf(rawURL, c.opts.Header)
	c.logger = c.opts.Logger
	c.seen.seed = maphash.MakeSeed()
	c.ours = "holdfast-" + strings.ToLower(rand.Text()[:10])
	c.client()
	c.workers.calls, c.sending = make(chan *call), make(chan struct{}, mostAnswering)
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

// begin goes on, once, with what the State had in flight.
func (c *Conn) begin() { c.once.Do(c.goOn) }

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
	if c.closed {
		return false
	}
	c.work.Go(f)
	return true
}

// closeTimeout bounds how long the end of a session may take.
const closeTimeout = 5 * time.Second

// Close ends the session: the server is told, and what is in flight is given up.
// It waits for the server for five seconds at the most.
func (c *Conn) Close() error {
	if !c.end() {
		return nil
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(c.ctx), closeTimeout)
	defer stop()
	c.out.wait(ctx)
	c.part() // a call of another session does not end with this one
	err := c.delete(ctx)
	c.finish()
	return err
}

// partTimeout bounds how long the server may take to be told what was cancelled.
const partTimeout = time.Second

// Detach ends the Conn and leaves the session, and what is in flight in it, to
// whoever goes on with its State. What the host has cancelled before is told to the
// server first, for a second at the most: nobody will go on with that.
func (c *Conn) Detach() {
	if c.end() {
		c.part()
		c.finish()
	}
}

// part waits until the server was told of what the host has cancelled.
func (c *Conn) part() {
	c.mu.Lock()
	if c.parting == 0 {
		c.mu.Unlock()
		return
	}
	parted := make(chan struct{})
	c.parted = parted
	c.mu.Unlock()
	late := time.NewTimer(partTimeout)
	defer late.Stop()
	select {
	case <-parted:
	case <-late.C:
	}
}

// parts notes that the server is being told of one more cancelled call, or one less.
func (c *Conn) parts(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parting += n; c.parting == 0 && c.parted != nil {
		close(c.parted)
		c.parted = nil
	}
}

// end keeps new work from beginning, and says whether it was the first to.
func (c *Conn) end() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := !c.closed
	c.closed = true
	return first
}

func (c *Conn) finish() {
	c.stop()
	c.work.Wait()
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// delete ends the session on the server (2025-11-25, Transports, "Session
// Management"). A server that does not have it any more, or does not let clients
// end sessions, is no error.
func (c *Conn) delete(ctx context.Context) error {
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	if s.id == "" || s.lost {
		return nil
	}
	x := exchange{method: http.MethodDelete, session: &s, wait: closeTimeout / 2}
	resp, err := c.do(ctx, x)
	if err != nil {
		resp, err = c.do(ctx, x) // it may have been the connection
	}
	if err != nil {
		return fmt.Errorf("end of session: %w", err)
	}
	resp.Close()
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return nil
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("end of session: %s", resp.Status)
	}
	return nil
}

// SessionID returns the id that the server has given the session, or "".
func (c *Conn) SessionID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.id
}
