package holdfast

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend"
	"holdfast/backend/sdk"
	"holdfast/internal/audit"
	"holdfast/internal/budget"
	"holdfast/internal/cluster"
	"holdfast/internal/engine/memory"
	"holdfast/internal/feature/legacytask"
	"holdfast/internal/live"
	"holdfast/internal/lograte"
	"holdfast/internal/revival"
	"holdfast/internal/server"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/modernfront"
	"holdfast/internal/server/task"
	"holdfast/internal/session"
	"holdfast/internal/translate"
	sender "holdfast/internal/webhook"
	"holdfast/stream"
)

// A Handler serves MCP over Streamable HTTP. It is an [http.Handler] for one URL. No call
// is lost, run twice or left hanging because a connection is cut. Its methods may be
// called concurrently.
//
// A panic in the user's code (a backend, handlers and middleware of an mcp.Server, the
// functions of [Options]) ends the call concerned with an internal error, and is logged
// with its stack. [http.ErrAbortHandler] is not logged; it closes the connection if
// nothing has been answered yet. Panics of goroutines that such code starts, of the Logger
// and of the Store are not caught.
type Handler struct {
	server   *server.Handler
	sessions *session.Manager
	store    stream.Store   // to close, or nil
	node     *cluster.Node  // or nil
	health   *health        // or nil
	webhooks *sender.Sender // or nil

	audit  *audit.Log // or nil
	detach []func()   // end the observers of Options.Metrics and Traces
	page   *live.Live // or nil
	log    *lograte.Handler
}

// NewHandler returns a handler for servers of the official go-sdk. It takes the place of
// mcp.NewStreamableHTTPHandler, and clients have the era and the sessions that they had there
// (Options.Eras). getServer returns the server of a new session. It may return the same server each
// time, and nil refuses the session with status 400. It may be called concurrently. opts may be
// nil. The caller must call [Handler.Shutdown].
func NewHandler(getServer func(*http.Request) *mcp.Server, opts *Options) *Handler {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.boundLog()
	b := sdk.New(getServer)
	b.Logger = o.Logger
	return NewBackendHandler(b, &o)
}

// NewBackendHandler returns a handler for any backend: commands that speak MCP on stdio
// ([holdfast/backend/process]), functions that answer raw messages ([holdfast/backend/message]), or
// one of the program's own. opts may be nil. The caller must call [Handler.Shutdown], and then
// close the backend if it needs that.
func NewBackendHandler(b backend.Backend, opts *Options) *Handler {
	h := &Handler{}
	var o Options
	if opts != nil {
		o = *opts
	}
	o.defaults(b)
	h.log = lograte.New(o.Logger.Handler())
	h.watchStore(&o)
	served, forgets := b, !isOutside(b)
	limits := limiter(&o, b)
	b = translate.New(b, o.Logger)
	if o.Store == nil || o.Stateless { // without sessions, nothing has to be kept
		// Not by package engine, which has all engines: programs without them stay small.
		m := memory.Limits(o.Memory, o.MaxShare)
		m.Keep = o.Keep
		h.store = memory.New(m)
		o.Store = h.store
	}
	flight := budget.NewFlight(o.Memory, o.MaxBody, o.MaxShare)
	connections := budget.NewConnections(o.Memory, o.MaxShare)
	observers := h.observers(&o, counts{flight, connections}, limits)
	shared := session.Shared{
		Stateless: o.Stateless,
		Flight:    flight,
		Limits:    limits,
		Observers: observers,
		Outage:    h.health.outage(),
		Logger:    o.Logger,
	}
	sessions := session.Options{
		Shared:       shared,
		TTL:          o.SessionTTL,
		SleepAfter:   max(o.SleepAfter, 0),
		Forgets:      forgets,
		MaxSessions:  o.MaxSessions,
		MaxCalls:     o.MaxCalls,
		MaxProcesses: o.MaxProcesses,
		MaxShare:     o.MaxShare,
		Unused:       o.UnusedProcess,
		Polls:        o.TaskAfter > 0,
		Services:     []func(*session.Manager, *session.Options) session.Service{legacytask.New},
		MaxWait:      o.MaxWait,
		MinWait:      o.Retry,
		Keep:         o.Keep,
		Safe:         o.Safe,
		AttachWithin: o.AttachWithin,
		CallIDs:      o.CallIDs,
		OnEnded:      h.startWebhooks(&o, observers),
		Revival:      keeper(&o),
	}
	setPatience(&sessions, &o, served)
	h.sessions = session.NewManager(o.Store, b, sessions)
	h.join(&o)
	h.attendWebhooks(&o)
	taskAfter := o.TaskAfter
	if o.Stateless {
		taskAfter = 0
	}
	h.server = server.New(server.Options{
		Manager:         h.sessions,
		Shared:          shared,
		Response:        server.Response(o.Response),
		UpgradeAfter:    o.UpgradeAfter,
		DisconnectAfter: o.DisconnectAfter,
		Retry:           o.Retry,
		KeepAlive:       o.KeepAlive,
		PingAfter:       o.PingAfter,
		CutGrace:        o.CutGrace,
		MaxBody:         o.MaxBody,
		Connections:     connections,
		Eras:            modernfront.Eras(o.Eras),
		Features:        []modern.Feature{task.New(h.sessions, taskAfter, o.Logger)},
		Offers:          taskAfter > 0,
		AllowedOrigins:  o.AllowedOrigins,
		AllowedHosts:    o.AllowedHosts,
		TrustedProxies:  o.TrustedProxies,
		Principal:       o.Principal,
		Authenticate:    o.Authenticate,
		Node:            h.node,
		Role:            serverRole(&o),
		ForwardHeader:   o.ForwardHeader,
		Pack:            packToken,
		Unpack:          unpackToken,
		Page:            h.pagePeers(),
	})
	if h.health != nil {
		h.health.start(h.server.Verify)
	}
	h.startPage(&o)
	return h
}

// isOutside reports whether the servers of a backend are outside of this program, so that each
// conversation with them begins anew.
func isOutside(b backend.Backend) bool {
	if p, ok := b.(backend.ProcessStarter); ok && p.Processes() {
		return true
	}
	e, ok := b.(backend.EraSpeaker) // servers inside know their eras
	return ok && e.Eras() == backend.Unknown
}

// keeper returns the keeper by which sessions are revived, or nil.
func keeper(o *Options) *revival.Keeper {
	if o.Stateless || o.SessionLife < 0 || o.Eras == ErasModern {
		return nil
	}
	r := revival.Options{Life: o.SessionLife, Dir: o.StateDir, Logger: o.Logger}
	r.Values, _ = o.Store.(revival.Values)
	for _, key := range o.SessionKeys {
		r.Keys = append(r.Keys, key)
	}
	return revival.New(r)
}

// ServeHTTP serves the Streamable HTTP endpoint, and WebSockets at the same URL
// (2025-11-25, Transports, "Streamable HTTP").
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.server.ServeHTTP(w, r) }

// SSE returns a handler for clients of the HTTP+SSE transport (revision 2024-11-05). GET opens the
// stream of a session. Its first event gives the URL that messages are POSTed to: the argument,
// relative to the URL of the GET. Serve the same handler at both URLs. The stream can be resumed
// with Last-Event-ID.
func (h *Handler) SSE(messages string) http.Handler { return h.server.SSE(messages) }

// ErrClosing is the error of [Handler.ServeConn] when the handler shuts down.
var ErrClosing = session.ErrClosing

// ServeConn serves one client over a pair of pipes, such as the standard input and output of a
// process, with one JSON-RPC message on each line (2025-11-25, Transports, "stdio"). It begins a
// session, which outlives the connection: calls that are cut off continue, and their client can
// resume them on another connection (SEP-975). Requests of 2026-07-28 need no session, and are
// served as over POST, if Options.Eras allows modern requests. ServeConn may be called concurrently
// for different pipes.
//
// ServeConn returns nil when r has ended and all responses have been written; the error of ctx when
// ctx is done; an error that wraps [ErrClosing] when the handler shuts down and no call of the
// connection is in flight; and any other error of reading or writing. It closes neither r nor w. A
// Read or Write that is blocked when ServeConn returns stays blocked until the caller closes r or
// w.
//
// Options.Principal and backends get a request with the values of ctx in its context. A stateless
// handler cannot serve pipes.
func (h *Handler) ServeConn(ctx context.Context, r io.Reader, w io.Writer) error {
	return h.server.ServeConn(ctx, r, w)
}

// Listener returns a listener for the http.Server that serves h, in the place of l. With this
// listener, h learns that a client has closed its connection without reading all bytes that were
// sent (the network reports a reset). If the answer of a call was written to its end on such a
// connection, it is sent again when the client resumes with nothing but its session id. Without
// Listener that loss cannot be seen, and on connections below TLS it cannot either.
//
// Listener also bounds the memory that open connections take beside Options.Memory: each counts for its
// client's address from when it is accepted until it is closed. Without room it is closed at once, if
// possible after an answer with status 503 and the reason. l must come from net.Listen; with TLS, pass
// h.Listener(l) to tls.NewListener. Without Listener only large uses are bounded: WebSockets, streams that
// a GET opens, and requests over HTTP/2 or of proxies that are trusted. The http.Server bounds a
// connection until the end of a request's header: set its ReadHeaderTimeout and MaxHeaderBytes.
//
// It also turns the statuses 501 and 505, which net/http itself answers to a client of another
// version of HTTP, into 400.
func (h *Handler) Listener(l net.Listener) net.Listener { return h.server.Listener(l) }

// Leaving returns a channel that is closed during [Handler.Shutdown], when the handler stops
// accepting requests. With other nodes, the handler stops shortly before the time of Shutdown is
// over, or when all sessions are handed over; without them, when the calls in flight have ended, or
// the time is over. From then on requests are answered with status 503, which some clients take for
// the end of the server. Close the listener at that time, so that clients connect to another node.
// Without a shared Store the channel is never closed.
func (h *Handler) Leaving() <-chan struct{} { return h.server.Leaving() }

// Shutdown ends the handler. Call it once, before http.Server.Shutdown, so that clients can still
// reconnect for the messages that they miss.
//
// Without a shared Store it refuses new sessions and calls, closes the streams that only
// listen, and waits until all calls in flight have ended and their clients have read the
// responses, or ctx is done. Then it ends all sessions: calls that are still in flight fail
// with an error that says so.
//
// With a shared Store it hands sessions over to other nodes, or releases them for the next process.
// It waits for calls in flight until ctx is done; after that, calls that are safe to retry are run
// again elsewhere. Clients that only listen are disconnected during a third of that time, at most
// 15 s. Shortly before the end the handler stops accepting requests: see [Handler.Leaving].
//
// Shutdown returns the error of ctx if not all calls ended in time. After ctx is done it may take 5 s more
// for clients that are still reading, and, at the same time, as long as backends need to close: 5 s for
// handlers of an mcp.Server that ignore their cancellation, and twice its Grace for a process. Webhooks
// that have not been sent are tried once more until ctx is done, and for 2 s more if calls were cut short.
// With a shared Store, webhooks that wait for another try are left to other nodes, or to the next process.
func (h *Handler) Shutdown(ctx context.Context) error {
	if h.health != nil {
		h.health.drain()
	}
	err := h.server.Drain(ctx)
	h.sessions.Close()
	h.server.Close()
	err = errors.Join(err, h.closeWebhooks(ctx))
	if h.node != nil {
		err = errors.Join(err, h.node.Close())
		h.node = nil
	}
	if h.health != nil {
		h.health.close()
	}
	if h.store != nil {
		err = errors.Join(err, h.store.Close())
		h.store = nil
	}
	err = errors.Join(err, h.stopObserving(ctx))
	h.log.Flush()
	return err
}

// Disconnect closes the connection on which the client reads the call that ctx belongs to,
// and tells the client to reconnect after retry; 0 stands for Options.Retry. ctx is the
// context of a tool's handler. The call continues, and its messages are kept for the
// client. Disconnect does nothing if ctx belongs to no call, if no client is connected, or
// if the client could not resume. It may be called concurrently. (SEP-1699)
func Disconnect(ctx context.Context, retry time.Duration) {
	if retry == 0 {
		retry = -1
	}
	if call := backend.FromContext(ctx); call != nil {
		call.Disconnect(retry)
	}
}
