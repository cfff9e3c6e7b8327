package holdfast

import (
	"cmp"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/defaults"
	"holdfast/internal/lograte"
	"holdfast/stream"
	"holdfast/webhook"
)

// Response says how POST requests are answered.
type Response int

// The ways to answer a POST.
const (
	// ResponseAuto answers with JSON if the request is safe to retry and the server responds within
	// Options.UpgradeAfter, and with a stream that can be resumed otherwise. The specification's
	// methods that only read, or that set a value to the same again, are safe to retry, and so are
	// tools that are annotated with readOnlyHint or idempotentHint.
	ResponseAuto Response = iota
	// ResponseJSON answers with JSON unless the server sends another message before its
	// response. A response that is lost with its connection cannot be read again
	// once the call has ended, except where the Store is shared and the call is not
	// safe to retry.
	ResponseJSON
	// ResponseSSE answers every request with a stream. The stream can be resumed, except in
	// revision 2026-07-28, which has no resuming.
	ResponseSSE
)

// A Role is the part of a node in the work of the nodes that share a Store. Nodes of all roles, and of versions without
// roles, may share a Store.
type Role string

// The roles of nodes.
const (
	// RoleBoth takes clients' connections, and owns sessions.
	RoleBoth Role = ""
	// RoleDoor takes clients' connections, owns no sessions and never opens its backend. A new
	// session goes to the least busy node that is not a door. The loss of a door ends no session
	// and no call. A door answers with status 503 if there is no other node.
	RoleDoor Role = "door"
	// RoleWorker owns sessions, and is reached through the Store's engine alone: requests that
	// come to [Handler.ServeHTTP] are answered with status 503.
	RoleWorker Role = "worker"
)

// An Era says which clients are served in which era of the protocol. In the legacy era (revisions up to
// 2025-11-25) a client has a session, and its calls survive the connection. In the modern era
// (2026-07-28 and later) each request stands alone, and the end of its connection cancels it, unless it
// has become a task.
type Era string

// The choices of eras.
const (
	// ErasAuto serves every request in its era, except that server/discover, by which clients choose
	// the modern era, is refused. A client that knows both eras then goes on with initialize.
	// server/discover is answered if the client declares tasks (the extension
	// io.modelcontextprotocol/tasks), or if there are no sessions (Stateless).
	ErasAuto Era = "auto"
	// ErasBoth serves every request in its era.
	ErasBoth Era = "both"
	// ErasLegacy refuses modern requests.
	ErasLegacy Era = "legacy"
	// ErasModern refuses legacy requests, and with them HTTP+SSE, WebSockets and pipes.
	ErasModern Era = "modern"
)

// Limits bound the calls that clients may begin. A client is a tenant: see Options.MaxShare. A field
// that is zero sets no bound. A request beyond a limit is answered with status 429 and Retry-After,
// and begins no call. Requests about a call that has begun are never refused: to resume it, to ask
// for it, or to make it again under its idempotency key. Nodes that share a Store exchange their
// counts four times a second.
type Limits struct {
	// Rate is how many calls a second a client may begin. Burst is how many of them may begin
	// at once; by default as many as in a second, and at least 1.
	Rate  float64
	Burst int
	// AddressRate and AddressBurst are the same for all clients of one address together. New
	// sessions count too.
	AddressRate  float64
	AddressBurst int
	// Calls and ToolCalls are how many calls of one client, and of one tool, may be in flight.
	Calls, ToolCalls int
	// Queue is how many calls beyond Calls and ToolCalls may wait for others to end; the rest
	// are refused. QueueWait is how long a call may wait; 10 s.
	Queue     int
	QueueWait time.Duration
}

// Never is a time for options that a negative time switches off, such as Options.KeepAlive.
const Never time.Duration = -1

// Options configure a [Handler]. The zero value is useful, and the zero value of each field stands for the default given with it. Where
// the documentation of a field gives negative values a meaning, such a value switches the field off. Any other value that a field
// cannot have is logged as an error, and the default holds. docs/running.md compares the fields with the flags of holdfast serve.
type Options struct {
	// Response says how POST requests are answered; ResponseAuto.
	Response Response
	// UpgradeAfter is how long a request that is safe to retry waits for its response,
	// to be answered with JSON, before its answer becomes a stream; 50 ms.
	UpgradeAfter time.Duration
	// DisconnectAfter is how long one connection of a stream lasts: then it is closed, and the client
	// reconnects and resumes (SEP-1699). By default, and if DisconnectAfter is negative, the connection is
	// not closed before the stream ends.
	DisconnectAfter time.Duration
	// Retry is how long clients are told to wait before they reconnect; 1 s.
	Retry time.Duration
	// KeepAlive is how long a stream may be silent before a comment is sent on it; 15 s. Negative:
	// no comment is sent.
	KeepAlive time.Duration
	// PingAfter is how long the stream of a call may be silent before its client is sent a ping, if
	// its protocol revision is older than 2025-11-25. The ping's event id lets such a client resume
	// the call. 1 s; negative: no ping is sent.
	PingAfter time.Duration
	// TaskAfter is how long a call of a tool may take before it becomes a task, if its client
	// declares the extension io.modelcontextprotocol/tasks (revision 2026-07-28): the client
	// is given a task's id in the place of the response, and asks for the status; 2 s.
	// Negative: calls do not become tasks.
	TaskAfter time.Duration
	// HandoffAfter is how long a call of a tool may take before it is handed off, if it cannot become a task: its client
	// gets a handle instead of the result, and the call goes on. The handler adds the tools holdfast_wait, which returns
	// the result, and holdfast_cancel to the server's tools. It is for hosts that give up after a time: choose a shorter
	// time, such as 50 s for 60 s. Auto: ten seconds before the host gives up, a time that is known of some hosts by their
	// names; other hosts that listed these tools get the handle after 50 s; a client that never listed the tools waits for
	// the result. By default, and if it is negative otherwise, calls are not handed off.
	HandoffAfter time.Duration
	// ProgressEvery is how long a call may be silent before a client that gave a progress token is sent progress, which says that
	// the call runs. Auto: 15 s, for hosts that are known to wait longer for a call that makes progress; with HandoffAfter Auto
	// their calls are not handed off. By default, and if it is negative otherwise, no progress is sent.
	ProgressEvery time.Duration
	// AttachWithin is how long after its connection has broken a call can be found by a request for the same tool with the same
	// arguments, in the same session (revision 2026-07-28: of the same principal and kind of client): the request gets the result of
	// that call, and the tool does not run twice. It is for models that ask again when a call has failed. A call is never found once
	// its answer was read, and tools that are safe to call again are called again. 2 minutes; negative: never.
	AttachWithin time.Duration
	// CallIDs are members of _meta in which hosts give a call an id of their own, which stays the same when they make it again. If
	// the connection of a call has broken, a request with the same id, tool and arguments gets the result of that call. The
	// members of Claude Code and Codex are known.
	CallIDs []string
	// CutGrace is how long a call of a tool goes on after its client, of revision 2026-07-28, has lost its connection or closed
	// it: see AttachWithin. Then the call is canceled. 30 s; negative: it is canceled at once.
	CutGrace time.Duration
	// SessionTTL is how long a session lives while no call is in flight and no client
	// is connected; 30 minutes.
	SessionTTL time.Duration
	// SleepAfter is how long a session is idle before it falls asleep: its conversation with the server is closed, nothing is kept
	// of it, and its client wakes it with its id. Only sessions that lose nothing by it fall asleep: those with a server that is a
	// process, or behind HTTP, and with no message that the server may remember. 5 minutes; negative: never. Sessions of another
	// [backend.Backend], such as an mcp.Server, fall asleep only if SleepAfter is set, and lose all that the backend keeps for
	// them in memory. SleepAfter needs SessionLife.
	SleepAfter time.Duration
	// SessionLife is how long after its beginning a session can be revived if it has expired, or its Store has lost it:
	// its client comes back with its id, and the server's initialize is made again. The server's knowledge of the
	// session is gone, and its client is told to list the tools again. 30 days; negative: never.
	SessionLife time.Duration
	// SessionKeys seal into session ids the facts that a session is revived with: the first key seals, and all keys open. By
	// default nodes that share a Store share a key there, and a handler that is alone has one in StateDir, or a new one.
	SessionKeys [][32]byte
	// StateDir is a directory, of this handler alone, for a handler without a shared Store. It keeps there the session key and
	// the list of ended sessions, so that sessions can be revived after a restart. The directory is made if it does not exist. By
	// default nothing is kept.
	StateDir string
	// Keep is how long an ended call can still be read; 10 minutes. If Store is set, the store has
	// its own setting. Set Keep to the same value, because the handler promises it to clients.
	Keep time.Duration
	// MaxWait is how long a client may stay away from a resumable request before the
	// request is canceled (SEP-975); 1 h. Negative: for ever. Clients are promised no
	// more than SessionTTL and Keep, because the outcome is not kept for longer.
	MaxWait time.Duration
	// MaxBody is the maximum size of a request body, in bytes; 4 MiB.
	MaxBody int64
	// MaxSessions and MaxCalls are how many sessions may be open, and how many calls
	// in flight, at a time; 250,000 and 1,000,000. A request beyond them is answered with
	// status 429.
	MaxSessions, MaxCalls int
	// Limits bound the calls that clients may begin. By default there are none.
	Limits Limits
	// MaxProcesses is how many server processes may run at a time, for a backend that is a
	// [backend.ProcessStarter]; 256. Negative: any number. If it is set for another backend, it
	// bounds how many sessions have the backend open.
	MaxProcesses int
	// MaxShare is the part of MaxSessions, MaxCalls, MaxProcesses and Memory that one
	// tenant may use, between 0 and 1; 0.75. A tenant is a principal, or, if that is "",
	// a client address (of IPv6 the /64 network). Set it to 1 where all clients have one
	// address, behind a proxy for example.
	MaxShare float64
	// UnusedProcess is how long a server process runs for a session that has only been initialized,
	// while the client is not connected; 1 minute. It is started again when it is needed. Negative:
	// as long as the session. If it is set, it holds for other backends too.
	UnusedProcess time.Duration
	// Memory is the maximum size of the data that is kept for clients, in bytes: three quarters for the
	// messages of calls and other data of sessions, and a quarter for requests that are being read or run.
	// Beside it, messages of servers that are being read may take three sixteenths of Memory, and open
	// connections one and a half times Memory ([Handler.Listener]). A request beyond a bound is answered with
	// status 429. By default it is a quarter of the memory that the process may use (GOMEMLIMIT, the limit of
	// its cgroup, or the machine's memory), and at most 1 GiB. A Store that is set bounds its own data: give
	// [holdfast/engine.Options] the same Memory and MaxShare.
	Memory int64
	// Eras says which clients are served in which era of the protocol: ErasAuto, ErasBoth, ErasLegacy or
	// ErasModern. By default it is ErasLegacy, and ErasBoth if Stateless is set: the era in which the
	// go-sdk's handler would answer the same client. docs/eras.md lists the answers that each client gets.
	Eras Era
	// LegacyOnly is the same as ErasLegacy, for programs that are older than Eras.
	LegacyOnly bool
	// Stateless serves without sessions: each POST stands alone, and nothing can be
	// resumed.
	Stateless bool
	// AllowedOrigins are the web origins of pages that may use the server, such as
	// "https://example.com"; "*" allows any. By default they are the server's own address and, if
	// that is a loopback address, pages of this machine.
	AllowedOrigins []string
	// AllowedHosts are the names that a Host header may carry; "*" allows any. By
	// default a server on a loopback address accepts loopback names only, and any other
	// server accepts all names.
	AllowedHosts []string
	// TrustedProxies are the addresses of proxies that are trusted to set X-Forwarded-For. The
	// address in that header is then the client's: MaxShare and Limits count by it if there is no
	// Principal, and backends see it as RemoteAddr. By default the header is not read. Behind such
	// a proxy, [Handler.Listener] cannot see that a client left bytes unread.
	TrustedProxies []netip.Prefix
	// Principal returns the identity of the client that makes a request, or "" if it has
	// none. Only the principal that began a session can use it. By default it is the
	// user id of the go-sdk's auth.TokenInfo in the request's context. It may be called
	// concurrently.
	Principal func(*http.Request) string
	// Authenticate wraps the handling of requests, to authenticate clients: middleware such as the
	// go-sdk's auth.RequireBearerToken. It comes after the checks of Host and Origin, and preflight
	// requests are answered before it, so web pages can read its answers. Authenticate is called
	// once for each endpoint.
	Authenticate func(http.Handler) http.Handler
	// ForwardHeader reports whether a request header may be sent to another node, with a request
	// for a session of that node, so that a backend there can read it. The header travels through
	// the Store's engine. By default all headers may be sent, except those that look like
	// credentials: Authorization, Cookie, X-Api-Key and the like. The headers of the protocol,
	// Traceparent, Tracestate, User-Agent, the principal and auth.TokenInfo are always sent. Names
	// have the canonical form of net/http. It may be called concurrently.
	ForwardHeader func(name string) bool
	// Safe reports whether calls of a tool are safe to retry, in addition to the tools
	// that are annotated so. It may be called concurrently.
	Safe func(tool string) bool
	// Webhooks enables completion webhooks: when a request ends and no client is
	// connected, its outcome is POSTed to the URL that the client put into
	// _meta["holdfast/webhook"]. Nil disables them, and so does Stateless.
	Webhooks *webhook.Options
	// Store keeps sessions and calls. By default it is the memory of this process, and
	// Shutdown closes it.
	//
	// [holdfast/engine.Open] returns stores that outlive the process ("file:DIR",
	// "nats://…", "redis://…"). Handlers in several processes that share such a store
	// are the nodes of one endpoint: each accepts any request, forwards it to the node
	// that owns its session, and takes over the sessions of a node that is lost. The
	// nodes communicate through the store. They must trust each other: a node sees the
	// messages of other nodes' clients, and is told their principals. Call
	// [Handler.Shutdown], and then close the store.
	Store stream.Store
	// Role is the part of this node among the nodes that share its Store: RoleBoth, RoleDoor or
	// RoleWorker; RoleBoth.
	Role Role
	// Metrics counts calls for Prometheus, until Shutdown: [holdfast/metrics.New] returns it; nil: nothing is
	// counted. docs/observing.md lists the figures.
	Metrics Observer
	// Audit gets a record for each call that has ended: the principal, the method, the tool, the time it
	// took, the number of connections, and how the call ended; nil: there is no audit. A call that goes on
	// at another node has its record there. Requests that are refused because of Host or Origin have
	// records too, at most ten a second; requests that Authenticate refuses have none. One goroutine calls
	// Audit, and no call waits for it: records that Audit does not take in time are lost, and the loss is
	// logged. If Audit has a method Flush() error, that is called after the last of several records.
	Audit slog.Handler
	// AuditArguments adds the arguments of tools and prompts to these records.
	AuditArguments bool
	// Traces makes an OpenTelemetry span for each call: [holdfast/traces.New] returns it; nil: there are no spans.
	Traces Observer
	// Page is where the handler registers a live page for operators, at /. It shows sessions, and
	// calls while they run, with principals and the progress that tools report. It has no
	// authentication: serve it on an address that only operators reach. Nil: there is no page.
	Page *http.ServeMux
	// PageToken is needed on that page to cancel calls, cut connections and end sessions; "": the
	// page cannot.
	PageToken string
	// PageDrain is called when an operator of the page drains this node; nil: the page does not offer that.
	PageDrain func()
	// Logger is for the operator; slog.Default(). At most 30 lines of the same text are logged in a minute
	// (1,000 of level Info), and then the number of the others.
	Logger *slog.Logger
}

// boundLog bounds the rate of log lines. It may be called again.
func (o *Options) boundLog() {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Logger = slog.New(lograte.New(o.Logger.Handler()))
}

// eras returns the choice that Eras stands for.
func (o *Options) eras() Era {
	switch {
	case o.LegacyOnly:
		return ErasLegacy
	case slices.Contains([]Era{ErasAuto, ErasBoth, ErasLegacy, ErasModern}, o.Eras):
		return o.Eras
	case o.Eras != "":
		o.Logger.Error("Options.Eras is not one that is known: the default holds", "eras", o.Eras)
	}
	if o.Stateless {
		return ErasBoth
	}
	return ErasLegacy
}

// bounded resets an option to its default if it was not given, or its value is below 0, above most or not a number. It
// logs a value that the option cannot have.
func bounded[T int | int64 | float64 | time.Duration](o *Options, name string, value *T, want string, most, byDefault T) {
	if can := *value >= 0 && *value <= most; !can {
		o.wrong(name, *value, want)
		*value = 0
	}
	*value = cmp.Or(*value, byDefault)
}

func (o *Options) wrong(name string, value any, want string) {
	o.Logger.Error("an option has a value that it cannot have: the default holds", "option", "Options."+name, "value", value, "want", want)
}

// defaults sets the fields that were not given, or have a value that they cannot have.
func (o *Options) defaults(b backend.Backend) {
	o.boundLog()
	positive := func(name string, d *time.Duration, byDefault time.Duration) {
		bounded(o, name, d, "more than 0", math.MaxInt64, byDefault)
	}
	size := func(name string, n *int64, byDefault int64) {
		bounded(o, name, n, "more than 0", math.MaxInt64, byDefault)
	}
	count := func(name string, n *int, byDefault int) { bounded(o, name, n, "0 or more", math.MaxInt, byDefault) }
	rate := func(name string, f *float64) { bounded(o, name, f, "0 or more", math.MaxFloat64, 0) }

	if o.Response < ResponseAuto || o.Response > ResponseSSE {
		o.wrong("Response", int(o.Response), "ResponseAuto, ResponseJSON or ResponseSSE")
		o.Response = ResponseAuto
	}
	positive("UpgradeAfter", &o.UpgradeAfter, defaults.UpgradeAfter)
	positive("Retry", &o.Retry, defaults.Retry)
	o.KeepAlive = cmp.Or(o.KeepAlive, defaults.KeepAlive)
	o.PingAfter = cmp.Or(o.PingAfter, defaults.PingAfter)
	o.TaskAfter = cmp.Or(o.TaskAfter, defaults.TaskAfter)
	o.AttachWithin = cmp.Or(o.AttachWithin, defaults.AttachWithin)
	o.CutGrace = cmp.Or(o.CutGrace, defaults.CutGrace)
	positive("SessionTTL", &o.SessionTTL, defaults.SessionTTL)
	o.SessionLife = cmp.Or(o.SessionLife, defaults.SessionLife)
	if o.SleepAfter == 0 && isOutside(b) {
		o.SleepAfter = defaults.SleepAfter
	}
	positive("Keep", &o.Keep, 0)
	if o.Keep == 0 && (o.Store == nil || o.Stateless) { // how long another Store keeps calls is not known
		o.Keep = defaults.Keep
	}
	o.MaxWait = cmp.Or(o.MaxWait, defaults.MaxWait)
	size("MaxBody", &o.MaxBody, defaults.MaxBody)
	count("MaxSessions", &o.MaxSessions, defaults.MaxSessions)
	count("MaxCalls", &o.MaxCalls, defaults.MaxCalls)
	if p, ok := b.(backend.ProcessStarter); ok && p.Processes() {
		o.MaxProcesses = cmp.Or(o.MaxProcesses, defaults.MaxProcesses)
		o.UnusedProcess = cmp.Or(o.UnusedProcess, defaults.UnusedProcess)
	}
	bounded(o, "MaxShare", &o.MaxShare, "more than 0, and at most 1", 1, defaults.MaxShare)
	size("Memory", &o.Memory, budget.Default())
	rate("Limits.Rate", &o.Limits.Rate)
	count("Limits.Burst", &o.Limits.Burst, 0)
	rate("Limits.AddressRate", &o.Limits.AddressRate)
	count("Limits.AddressBurst", &o.Limits.AddressBurst, 0)
	count("Limits.Calls", &o.Limits.Calls, 0)
	count("Limits.ToolCalls", &o.Limits.ToolCalls, 0)
	count("Limits.Queue", &o.Limits.Queue, 0)
	positive("Limits.QueueWait", &o.Limits.QueueWait, defaults.QueueWait)
	o.Eras = o.eras()
	if o.Principal == nil {
		o.Principal = tokenUser
	}
}
