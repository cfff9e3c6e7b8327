// Package server has the transports over the log: POST, GET, DELETE, the stream URL of
// SEP-1335, the HTTP+SSE pair of revision 2024-11-05, WebSocket, and a pair of pipes.
//
// Each entry point decodes a request to an exchange (package exchange), and placement finds its session. One loop, in package
// copying, copies the messages of its stream to a sink: events, JSON, or messages of a connection that carries many exchanges
// (package mux).
package server

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/defaults"
	"holdfast/internal/placement"
	"holdfast/internal/redact"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/drain"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/guard"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/modernfront"
	"holdfast/internal/server/mux"
	"holdfast/internal/server/streaming"
	"holdfast/internal/server/watch"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// Response is the form in which POST requests are answered.
type Response int

// The forms.
const (
	// ResponseAuto answers with JSON if the requests are harmless to repeat and
	// answered at once, else with a stream.
	ResponseAuto Response = iota
	// ResponseJSON answers with JSON, unless the server sends another message before
	// its response. Where no other node may take the session over, a JSON answer is not
	// stored: a client that loses its connection can come back for it, with its session
	// id, only while the call runs. On a store that nodes share, a call that must not
	// run twice is stored before it runs, and its answer before it is sent.
	ResponseJSON
	// ResponseSSE answers every request with a stream, which can be resumed in
	// revisions that have resumption.
	ResponseSSE
)

// Options of a Handler. All fields but Manager may be left zero, which stands
// for the default given with each.
type Options struct {
	Manager        *session.Manager // required
	session.Shared                  // the manager's

	Response        Response
	UpgradeAfter    time.Duration       // how long a call may take to be answered with JSON, before a stream answers it; 50 ms
	DisconnectAfter time.Duration       // age at which a stream's connection is ended, for the client to resume; 0: never
	Retry           time.Duration       // how long clients are told to wait before they come back; 1 s
	KeepAlive       time.Duration       // silence after which a comment is sent, and how often a WebSocket is pinged; 15 s; negative: never
	PingAfter       time.Duration       // silence after which a client that knows no empty events gets an id with a ping; 1 s; negative: never
	WriteTimeout    time.Duration       // how long one write may wait for a slow client; 30 s
	BodyTimeout     time.Duration       // how long a request's body may take, beside a second for each 64 KiB, or the first message of a WebSocket; 30 s
	CutGrace        time.Duration       // how long a modern client's tool call goes on after a cut, for a repeated request to attach to it; 0 or less: not at all
	InputGrace      time.Duration       // how long a connection is held while its call waits for the client's input; 1 s
	DrainSpread     time.Duration       // the most over which a drain disconnects clients; 15 s
	MaxBody         int64               // bytes of a request body, or of a message; 4 MiB
	Connections     *budget.Connections // counts the memory of open connections; nil: it is not counted
	Eras            modernfront.Eras    // the eras in which clients are served; modernfront.ErasBoth
	Features        []modern.Feature    // added to revision 2026-07-28
	Offers          bool                // server/discover lists the extensions of the endpoint
	AllowedOrigins  []string            // beside the server's own; "*" allows any
	AllowedHosts    []string            // beside loopback names on a loopback address; "*" allows any
	TrustedProxies  []netip.Prefix      // proxies that are trusted to name their client's address
	// Principal returns the principal of a request, "" for an anonymous
	// client. A session can be used only by the principal that began it.
	Principal func(*http.Request) string
	// Authenticate wraps the handler of requests that passed the checks of Host and Origin; may be nil.
	Authenticate func(http.Handler) http.Handler

	// Node is this process as one of the nodes that share the manager's store; nil
	// if it is alone. The handler serves the other nodes on it, and takes their
	// sessions over when they are lost.
	Node *placement.Node
	Role Role // RoleBoth; the others need a Node
	// ForwardHeader reports whether a header goes to another node with its request, beside
	// the protocol's headers; nil: all go that do not look as if they held a credential.
	ForwardHeader func(name string) bool
	// Pack encodes the client's data in a request's context, to go to another node with the
	// request. On that node Unpack puts it into the request's context. Both may be nil.
	Pack   func(context.Context) []byte
	Unpack func(*http.Request, []byte) *http.Request
	// Page answers requests from the live pages of other nodes ([Handler.AskPage]); nil: this node has no live page.
	Page http.Handler
}

// A Handler serves MCP at one URL. It is an [http.Handler].
type Handler struct {
	opts     Options
	sessions *session.Manager
	logger   *slog.Logger
	guards   *guard.Guard

	entry http.Handler // the endpoint, behind Options.Authenticate

	watched   watch.Connections
	nodes     *placement.Nodes // nil without Options.Node
	answers   answering.Writer
	callers   callers
	bodies    bodyReader
	charges   charges
	life      drain.Life
	starter   exchange.Starter
	responses streaming.Responses
	modern    modernfront.Front
	mux       mux.Front
	untaken   exchange.Untaken
}

// New returns a handler. A handler with a Node must be closed.
func New(opts Options) *Handler {
	opts.UpgradeAfter = cmp.Or(opts.UpgradeAfter, defaults.UpgradeAfter)
	opts.Retry = cmp.Or(opts.Retry, defaults.Retry)
	opts.DrainSpread = cmp.Or(opts.DrainSpread, 15*time.Second)
	opts.KeepAlive = cmp.Or(opts.KeepAlive, defaults.KeepAlive)
	opts.PingAfter = cmp.Or(opts.PingAfter, defaults.PingAfter)
	opts.WriteTimeout = cmp.Or(opts.WriteTimeout, 30*time.Second)
	opts.BodyTimeout = cmp.Or(opts.BodyTimeout, 30*time.Second)
	opts.InputGrace = cmp.Or(opts.InputGrace, time.Second)
	if opts.MaxBody <= 0 {
		opts.MaxBody = defaults.MaxBody
	}
	if opts.Principal == nil {
		opts.Principal = func(*http.Request) string { return "" }
	}
	if opts.ForwardHeader == nil {
		opts.ForwardHeader = func(name string) bool { return !redact.Credential(name) }
	}
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	h := &Handler{
		opts:     opts,
		sessions: opts.Manager,
		logger:   opts.Logger,
		guards:   guard.New(opts.AllowedOrigins, opts.AllowedHosts, opts.TrustedProxies),
		answers: answering.Writer{
			WriteTimeout: opts.WriteTimeout, Outage: opts.Outage, Observers: opts.Observers, Server: NameOf, Logger: opts.Logger,
		},
		callers: newCallers(&opts),
	}
	h.bodies = bodyReader{answers: &h.answers, callers: &h.callers, most: opts.MaxBody, timeout: opts.BodyTimeout, flight: opts.Flight}
	h.untaken.Sessions, h.untaken.Flight = opts.Manager, opts.Flight
	h.charges = charges{memory: opts.Connections, guards: h.guards, answers: &h.answers, logger: opts.Logger}
	h.life.Sessions, h.life.Door, h.life.Retry, h.life.Spread = opts.Manager.Departure, opts.Role == RoleDoor, opts.Retry, opts.DrainSpread
	h.life.Begin()
	h.watched.Bound = h.charges.bound()
	h.entry = h.authenticated(h.endpoint)
	if opts.Node != nil {
		h.sessions.OnElsewhere(elsewhere{h})
		h.nodes = placement.New(placement.Options{
			Node:          opts.Node,
			Sessions:      h.sessions,
			Host:          host{h},
			Limits:        opts.Limits,
			Page:          opts.Page,
			Door:          h.life.Door,
			Draining:      h.life.Draining(),
			Leaving:       h.life.Leaving(),
			ForwardHeader: opts.ForwardHeader,
			WriteTimeout:  opts.WriteTimeout,
			Logger:        h.logger,
		})
	}
	h.life.Nodes = h.nodes
	h.starter = exchange.Starter{Sessions: h.sessions, Nodes: h.nodes, Watched: &h.watched, Draining: h.life.Draining(), Observers: opts.Observers}
	h.responses = streaming.Responses{
		Stateless: opts.Stateless, Retry: opts.Retry, Patience: max(2*opts.Retry, streaming.LeastPatience), KeepAlive: opts.KeepAlive, PingAfter: opts.PingAfter, DisconnectAfter: opts.DisconnectAfter,
		InputGrace: opts.InputGrace, WriteTimeout: opts.WriteTimeout,
		Life: &h.life, Nodes: h.nodes, Watched: &h.watched, Answers: &h.answers, Logger: h.logger,
	}
	h.modern = modernfront.Front{
		Sessions: h.sessions, Answers: &h.answers, Responses: &h.responses, Starter: &h.starter, Life: &h.life,
		Features: opts.Features, Eras: opts.Eras, Offers: opts.Offers, Stateless: opts.Stateless, Streams: opts.Response == ResponseSSE,
		Shares: h.nodes != nil, CutGrace: opts.CutGrace, Logger: h.logger,
		ServeOwn: func(to *placement.Answer, x *exchange.Exchange) { h.serve(to, x) },
	}
	h.mux = mux.Front{
		Responses: &h.responses, Sessions: h.sessions, Starter: &h.starter, Modern: &h.modern, BodyTimeout: opts.BodyTimeout, MaxBody: opts.MaxBody,
		Meter: h.bodies.meter, Permitted: h.callers.permitted, Asker: h.callers.asker, Light: h.light, Untaken: &h.untaken,
		Serve: func(to *placement.Answer, x *exchange.Exchange) error { return h.serveIn(to, x) },
		Place: func(to *placement.Answer, x *exchange.Exchange) *placement.Placement { return h.newPlacement(to, x) },
		Ask:   h.ask, ServeModern: h.serveModern,
	}
	if opts.Response != ResponseJSON {
		h.mux.UpgradeAfter = opts.UpgradeAfter
	}
	if h.nodes != nil {
		h.nodes.Start()
	}
	return h
}

// Drain ends the work of this node: [drain.Life.Drain]. The caller closes the Manager afterwards.
func (h *Handler) Drain(ctx context.Context) error { return h.life.Drain(ctx) }

// Leaving returns a channel that is closed when the handler takes no more requests, as it is about to end:
// [drain.Life.Leaving].
func (h *Handler) Leaving() <-chan struct{} { return h.life.Leaving() }

// Verify checks whether this node still owns its sessions: [placement.Nodes.Verify].
func (h *Handler) Verify() {
	if h.nodes != nil {
		h.nodes.Verify()
	}
}

// AskPage sends a request to the live page of another node: [placement.Nodes.AskPage].
func (h *Handler) AskPage(r *http.Request) (*http.Response, error) {
	if h.nodes == nil {
		return nil, placement.ErrUnreached
	}
	return h.nodes.AskPage(r)
}

// Listener wraps l, on which the handler is served. It bounds the memory of connections, and tells the handler of clients
// that left with bytes unread (package watch). Such a client gets the end of its call again when it comes back, even with
// nothing but its session id. Without Listener it does not.
func (h *Handler) Listener(l net.Listener) net.Listener { return h.watched.Listener(l) }

// Close ends the handler's work with other nodes: their requests that it serves
// are cut off. It does nothing for a handler without a Node.
func (h *Handler) Close() {
	if h.nodes != nil {
		h.nodes.Close()
	}
}

// ServeHTTP serves the Streamable HTTP endpoint (2025-11-25, Transports).
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.enter(w, r, h.allow(), h.entry)
}

// authenticated returns a handler that serves requests behind Options.Authenticate.
func (h *Handler) authenticated(serve http.HandlerFunc) http.Handler {
	if h.opts.Authenticate == nil {
		return serve
	}
	behind := h.opts.Authenticate(serve)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { behind.ServeHTTP(w, h.told(r)) })
}

// enter serves a client's request that passes the checks which do not depend on the principal, and answers others. methods is
// the value of Allow.
func (h *Handler) enter(w http.ResponseWriter, r *http.Request, methods string, serve http.Handler) {
	defer h.answers.Caught(w)
	if h.refuseAtWorker(w) || h.refuseHeader(w, r) {
		return
	}
	r, cost := h.charges.carries(r)
	if cost > 0 {
		if !h.charges.takes(w, r, cost) {
			return
		}
		defer h.charges.gives(r, cost)
	}
	h.bodies.limit(w, r)
	if h.guard(w, r, methods) {
		serve.ServeHTTP(w, r)
	}
}

// mostFields bounds the fields of a request's header. net/http keeps them for as long as the request lasts, and each
// takes many times its bytes.
const mostFields = 250

// refuseHeader refuses a request with too many fields in its header. It reports whether it did.
func (h *Handler) refuseHeader(w http.ResponseWriter, r *http.Request) bool {
	n := 0
	for _, values := range r.Header {
		n += len(values)
	}
	if n <= mostFields {
		return false
	}
	w.Header().Set("Connection", "close") // else net/http keeps the header in memory while it waits for the body
	h.answers.Reject(w, http.StatusRequestHeaderFieldsTooLarge, errf(codeInvalid, "the request's header has more than %d fields", mostFields))
	return true
}

// guard checks Host and Origin, and reports whether the request passes. If not, it was answered.
func (h *Handler) guard(w http.ResponseWriter, r *http.Request, methods string) bool {
	passes, refusal := h.guards.Check(w, r, methods)
	if refusal != nil {
		h.answers.Forbid(w, r, refusal)
	}
	return passes
}

// hasNoSessions reports whether clients can't have sessions here.
func (h *Handler) hasNoSessions() bool { return h.opts.Stateless || h.opts.Eras.RefusesLegacy() }

// allow returns the endpoint's methods, as the value of Allow.
func (h *Handler) allow() string {
	if h.hasNoSessions() {
		return "POST, OPTIONS"
	}
	return "GET, POST, DELETE, OPTIONS"
}

// A Role is a node's part in the work of the nodes that share a store.
// See docs/decisions/0028-doors-and-workers.md.
type Role int

// The roles.
const (
	RoleBoth   Role = iota // it takes clients' connections, and owns sessions
	RoleDoor               // it takes clients' connections, and sends their requests to other nodes
	RoleWorker             // it owns sessions, and takes requests of other nodes only
)

// refuseAtWorker refuses a client's request if this node is a worker, and reports whether it did.
func (h *Handler) refuseAtWorker(w http.ResponseWriter) bool {
	if h.opts.Role != RoleWorker {
		return false
	}
	w.Header().Set("Retry-After", "1")
	h.answers.Reject(w, http.StatusServiceUnavailable, errf(jsonrpc.CodeServer, "this node is a worker and serves no clients: connect to a door"))
	return true
}
