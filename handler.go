package holdfast

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend"
	"holdfast/backend/sdk"
	"holdfast/engine"
	"holdfast/internal/budget"
	"holdfast/internal/cluster"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/stream"
	"holdfast/webhook"
)

// Response says how POST requests are answered.
type Response = server.Response

// The ways to answer a POST.
const (
	ResponseAuto = server.ResponseAuto
	ResponseJSON = server.ResponseJSON
	ResponseSSE  = server.ResponseSSE
)

// Options say how a [Handler] behaves. The zero value is useful, and the zero
// value of each field stands for the default given with it.
type Options struct {
	// Response says how requests are answered. By default, lists, reads and calls
	// of tools that may be called again without harm (readOnlyHint,
	// idempotentHint) get plain JSON if they are answered at once; everything else,
	// also a method that the specification does not have, gets a stream that can be
	// resumed.
	Response Response
	// UpgradeAfter is how long plain JSON is waited for before the answer becomes
	// a stream; 50 ms.
	UpgradeAfter time.Duration
	// DisconnectAfter is the age at which the connection of a stream is ended, for
	// its client to come back and go on (SEP-1699). By default never.
	DisconnectAfter time.Duration
	// Retry is how long clients are told to wait before they come back; 1 s.
	Retry time.Duration
	// KeepAlive is the silence after which a comment is sent on a stream; 15 s.
	// Negative: never.
	KeepAlive time.Duration
	// PingAfter is the silence after which a client of a revision before 2025-11-25
	// is pinged on the stream of its call; 1 s. It resumes the call by the id of that
	// event, if its connection is cut. Negative: never.
	PingAfter time.Duration
	// SessionTTL is how long a session lives that has nothing in flight and no
	// client connected; 30 minutes.
	SessionTTL time.Duration
	// Keep is how long a finished call can still be read; 10 minutes. A Store keeps
	// it for as long as that was told; then Keep says how long that is, if it is
	// known.
	Keep time.Duration
	// MaxWait is how long a client of SEP-975 may stay away from a call before it is
	// cancelled; 1 h; negative: for ever. Such clients are told of no more than
	// SessionTTL and Keep, as what became of the call is kept no longer.
	MaxWait time.Duration
	// MaxBody bounds a request's body, in bytes; 4 MiB.
	MaxBody int64
	// MaxSessions and MaxCalls bound what is open and in flight at a time; 250,000
	// and 1,000,000. What is over a limit is answered with 429.
	MaxSessions, MaxCalls int
	// MaxProcesses bounds how many server processes run at a time, for a backend that
	// starts one for each session; 256. Negative: no bound. For any other backend it
	// bounds, if it is set, how many sessions have the backend open.
	MaxProcesses int
	// MaxShare is how much of each of these three, and of Memory, one client may have: its
	// principal, or, if that is "", its address (of IPv6 the /64); 0.75. Set it to 1 where
	// all clients come from one address, as behind a proxy.
	MaxShare float64
	// UnusedProcess is how long the process of a session is kept in which nothing was
	// done since its initialize, and whose client is not connected: it is started again
	// when it is needed; 1 minute. Negative: for as long as the session. If it is set it
	// holds for any other backend, too.
	UnusedProcess time.Duration
	// Memory bounds what is kept and held for clients, in bytes: three quarters of it
	// what calls have said, and a quarter what is on its way, in requests that are read
	// or run. By default it is a quarter of what the process may have (GOMEMLIMIT, its
	// cgroup's limit, the machine's memory), and 1 GiB at the most. Requests over it are
	// answered with 429. A Store bounds what it keeps itself: give [holdfast/engine.Options]
	// the same Memory, and MaxShare.
	Memory int64
	// Stateless serves without sessions: each POST stands alone, and nothing can
	// be resumed.
	Stateless bool
	// AllowedOrigins are web origins whose pages may use the server, such as
	// "https://example.com"; "*" allows any. By default only pages of the server's
	// own address, and, for a server on a loopback address, pages of this machine.
	AllowedOrigins []string
	// AllowedHosts are the names that a Host header may carry; "*" allows any. By
	// default a server on a loopback address answers only to loopback names, and
	// another to any.
	AllowedHosts []string
	// Principal returns who makes a request, or "" for nobody in particular. A
	// session can be used only by the principal that began it. By default it is
	// the user of the go-sdk's auth.TokenInfo in the request's context.
	Principal func(*http.Request) string
	// ForwardHeader says which headers of a client's request go to another node, with a
	// request whose session is there, for a backend that reads them (the go-sdk's
	// RequestExtra.Header). What goes to another node goes through the Store's engine. By
	// default all go but those that look as if they held a credential: Authorization,
	// Cookie, X-Api-Key and the like. Those of the protocol, Traceparent, Tracestate and
	// User-Agent always go, the Principal too, and auth.TokenInfo. Names are in the
	// canonical form of net/http.
	ForwardHeader func(name string) bool
	// Safe says which tools may be called again without harm, beside those that
	// say so in their annotations.
	Safe func(tool string) bool
	// Webhooks has requests told of to whom their client names in
	// _meta["holdfast/webhook"], when they end with nobody connected. By default,
	// and without sessions, there are none. [webhook.Options] says where they may
	// go.
	Webhooks *webhook.Options
	// Store keeps the calls. By default it is memory, bounded as
	// [holdfast/internal/engine/memory.Options] says; then Shutdown closes it.
	//
	// With one that outlives the process ([holdfast/engine.Open]: "file:DIR",
	// "nats://…", "redis://…") so do sessions and their calls. Handlers in any number
	// of processes that share such a store serve one endpoint: each takes any
	// request, and takes over the sessions of a process that is gone. They reach each
	// other through the store; the processes must be each other's equals, as one
	// sees what clients say to another, and is told who they are. [Handler.Shutdown]
	// must be called, and then the store closed.
	Store stream.Store
	// Logger takes what is worth telling the operator; slog.Default().
	Logger *slog.Logger
}

// A Handler serves MCP over Streamable HTTP so that no call is lost, doubled or
// hung when a connection is cut. It is an [http.Handler]; its methods may be
// called concurrently.
//
// Where code of its user panics (a backend, a server's handlers and middleware, the
// functions of [Options]) the call that it works for ends with an internal error, and
// the panic is logged with its stack; [http.ErrAbortHandler] is not logged, and ends the
// connection where there is no answer yet. Out of reach are goroutines that such code
// starts itself, the Logger, and the Store.
type Handler struct {
	*server.Handler
	sessions *session.Manager
	store    stream.Store    // to close, or nil
	node     *cluster.Node   // or nil
	health   *health         // or nil
	webhooks *webhook.Sender // or nil
}

// NewHandler returns a handler that answers with official MCP servers. It has the
// shape of mcp.NewStreamableHTTPHandler: getServer returns the server for a new
// session, may return the same one each time, and refuses with nil. opts may be
// nil.
func NewHandler(getServer func(*http.Request) *mcp.Server, opts *Options) *Handler {
	b := sdk.New(getServer)
	if opts != nil {
		b.Logger = opts.Logger
	}
	return NewBackendHandler(b, opts)
}

// NewBackendHandler returns a handler in front of any backend: a process
// ([holdfast/backend/process]), or code that answers raw messages
// ([holdfast/backend/message]). opts may be nil.
func NewBackendHandler(b backend.Backend, opts *Options) *Handler {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Principal == nil {
		o.Principal = tokenUser
	}
	o.MaxShare = cmp.Or(o.MaxShare, 0.75)
	h := &Handler{}
	if o.Store == nil || o.Stateless { // then there is nothing to keep
		if o.Keep <= 0 {
			o.Keep = 10 * time.Minute
		}
		h.store = engine.Memory(engine.Options{Keep: o.Keep, Memory: o.Memory, MaxShare: o.MaxShare})
		o.Store = h.store
	}
	var ended func(session.EndedRequest)
	if o.Webhooks != nil && !o.Stateless {
		opts := *o.Webhooks
		if opts.Logger == nil {
			opts.Logger = o.Logger
		}
		h.webhooks = webhook.New(opts)
		ended = func(e session.EndedRequest) {
			h.webhooks.Send(webhook.Event{URL: e.Webhook, RequestID: e.ID, Failed: e.Failed, Time: e.Time})
		}
	}
	if o.Memory <= 0 {
		o.Memory = budget.Default()
	}
	flight := budget.NewFlight(o.Memory, cmp.Or(o.MaxBody, 4<<20), o.MaxShare)
	if p, ok := b.(backend.ProcessStarter); ok && p.Processes() {
		o.MaxProcesses = cmp.Or(o.MaxProcesses, 256)
		o.UnusedProcess = cmp.Or(o.UnusedProcess, time.Minute)
	}
	h.sessions = session.NewManager(o.Store, b, session.Options{
		TTL:          o.SessionTTL,
		MaxSessions:  o.MaxSessions,
		MaxCalls:     o.MaxCalls,
		MaxProcesses: o.MaxProcesses,
		MaxShare:     o.MaxShare,
		Unused:       o.UnusedProcess,
		Stateless:    o.Stateless,
		MaxWait:      o.MaxWait,
		MinWait:      cmp.Or(o.Retry, time.Second),
		Keep:         o.Keep,
		Safe:         o.Safe,
		OnEnded:      ended,
		Flight:       flight,
		Logger:       o.Logger,
	})
	h.join(o.Store, o.Logger, o.Stateless)
	h.Handler = server.New(server.Options{
		Manager:         h.sessions,
		Response:        o.Response,
		UpgradeAfter:    o.UpgradeAfter,
		DisconnectAfter: o.DisconnectAfter,
		Retry:           o.Retry,
		KeepAlive:       o.KeepAlive,
		PingAfter:       o.PingAfter,
		MaxBody:         o.MaxBody,
		Flight:          flight,
		Stateless:       o.Stateless,
		AllowedOrigins:  o.AllowedOrigins,
		AllowedHosts:    o.AllowedHosts,
		Principal:       o.Principal,
		Logger:          o.Logger,
		Node:            h.node,
		ForwardHeader:   o.ForwardHeader,
		Pack:            packToken,
		Unpack:          unpackToken,
	})
	if h.health != nil {
		h.health.start(h.Verify)
	}
	return h
}

// tokenUser returns the user whom the go-sdk's auth middleware has made out.
func tokenUser(r *http.Request) string {
	if t := auth.TokenInfoFromContext(r.Context()); t != nil {
		return t.UserID
	}
	return ""
}

// Shutdown ends the handler. Where the Store is shared with other processes, or
// outlives this one, sessions are handed over to those, or given up for who comes
// after; calls in flight are waited for until ctx is done, and go on elsewhere where
// they may be made again. Clients that only listen are sent away over a third of the
// time, fifteen seconds at most. Near the end nothing new is taken any more: close the
// listener when the channel that Leaving returns is closed, so that it goes elsewhere.
//
// Otherwise it refuses new sessions and calls, tells clients
// that only listen when to come back, waits until calls in flight have ended and
// their clients have read how, or ctx is done, and then ends all sessions: calls
// still in flight fail, saying so. It returns ctx's error if it could not wait
// for all. Once ctx is done it may take five seconds more for clients that are
// still reading how their calls ended, and, at the same time, as long as the
// backend needs to close: five seconds for handlers of an mcp.Server that do not
// heed their cancellation, twice its Grace for a process. Call it before http.Server.Shutdown, so that clients can still come
// back for what they miss.
//
// Webhooks that are not sent yet are tried once more, until ctx is done: two
// seconds more if calls were cut short when its time was up.
func (h *Handler) Shutdown(ctx context.Context) error {
	if h.health != nil {
		h.health.drain()
	}
	err := h.Drain(ctx)
	h.sessions.Close()
	h.Close()
	if h.webhooks != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			// How the calls that were cut short ended is not known before now.
			late, stop := context.WithTimeout(context.WithoutCancel(ctx), webhookGrace)
			defer stop()
			ctx = late
		}
		err = errors.Join(err, h.webhooks.Close(ctx))
	}
	if h.node != nil {
		err = errors.Join(err, h.node.Close())
		h.node = nil
	}
	if h.health != nil {
		h.health.stop()
	}
	if h.store != nil {
		err = errors.Join(err, h.store.Close())
		h.store = nil
	}
	return err
}

// webhookGrace is how long webhooks of calls that were cut short are tried.
const webhookGrace = 2 * time.Second

// Disconnect ends the connection on which the client reads the call that ctx
// belongs to (the context of a tool's handler), after telling it to come back
// after retry; 0 stands for Options.Retry. The call goes on, and what it says
// meanwhile is kept for the client. It does nothing where there is no such call,
// or no connection, or a client that could not come back. (SEP-1699)
func Disconnect(ctx context.Context, retry time.Duration) {
	if retry == 0 {
		retry = -1
	}
	if call := backend.FromContext(ctx); call != nil {
		call.Disconnect(retry)
	}
}
