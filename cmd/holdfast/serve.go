package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/engine"
	"holdfast/webhook"
)

// serveFlags are the flags of holdfast serve: one field for each, and so more than a struct of
// ours has else.
type serveFlags struct {
	greeting        io.Writer // for a person: where it serves
	demo            bool
	listen          string
	path, ssePath   string
	store           string
	admin           string
	adminToken      string
	ownPage         bool // the page of the demo, for whose address nobody has asked
	response        choice
	upgradeAfter    time.Duration
	disconnectAfter offDuration
	retry           time.Duration
	pingAfter       offDuration
	taskAfter       offDuration
	handoffAfter    autoDuration
	progressEvery   autoDuration
	keepAlive       offDuration
	sessionTTL      time.Duration
	keep            time.Duration
	maxWait         offDuration
	drain           time.Duration
	maxBody         byteSize
	maxSessions     int
	maxCalls        int
	maxProcesses    int
	maxShare        float64
	unusedProcess   offDuration
	memory          byteSize // 0: the default of [holdfast.Options]
	origins, hosts  []string
	stateless       bool
	eras            choice
	legacyOnly      bool // --eras legacy
	upstream        upstreamFlags
	config          configFlags
	sessions        sessionFlags
	attach          attachFlags
	command         commandFlags
	auth            authFlags
	tls             tlsFlags
	role            roleFlags
	limits          limitFlags
	audit           auditFlags
	traces          traceFlags
	webhook         webhookFlags
	webhooks        *webhook.Options // made of webhook
	found           *sessionCount    // of the store
	storeAt         string           // its address, as it says itself
}

func newServe() *cobra.Command {
	cmd, _ := newServeFlags()
	return cmd
}

// newServeFlags returns the command, and its flags.
func newServeFlags() (*cobra.Command, *serveFlags) {
	f := &serveFlags{maxBody: 4 << 20, response: choice{"auto", []string{"auto", "json", "sse"}}, eras: newEras(), handoffAfter: autoDuration(holdfast.Auto), progressEvery: autoDuration(holdfast.Auto), upstream: newUpstreamFlags(), role: newRoleFlags()}
	cmd := &cobra.Command{
		Use:   "serve [flags] --demo\n  holdfast serve [flags] --upstream URL\n  holdfast serve [flags] --config FILE\n  holdfast serve [flags] -- COMMAND ARG...",
		Short: "Serve an MCP server over Streamable HTTP",

		SuggestFor: []string{"run", "start", "server", "proxy", "gateway", "up", "demo"},
		Long: `Serve runs a stdio MCP server, in any language, and gives clients a Streamable HTTP
endpoint. No call is lost when a connection is cut. Each session has a process of
its own. With --share all sessions use one process: for servers without state.

With --upstream it serves an MCP server that already speaks HTTP, of any revision. Each
session has a session of its own there.

With --config it serves all servers of a host's configuration file, each at /NAME/mcp.
'holdfast check FILE' prints what would be served.`,
		Example: `  holdfast serve --demo
  holdfast serve -- npx -y @modelcontextprotocol/server-everything stdio
  holdfast serve --share -- npx -y @modelcontextprotocol/server-everything stdio
  holdfast serve --upstream http://127.0.0.1:3000/mcp
  holdfast serve --config claude_desktop_config.json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.audit.stdout = cmd.OutOrStdout()
			f.ownPage = f.demo && f.role.value == "both" && !cmd.Flags().Changed("admin")
			f.greeting = cmd.ErrOrStderr()
			if cmd.Flag("log-format").Value.String() == "json" {
				f.greeting = io.Discard // the log has the same, and stderr nothing but JSON
			}
			return f.serve(cmd.Context(), args, cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // flags after COMMAND are its arguments
	fs.BoolVar(&f.demo, "demo", false, "serve a built-in MCP server for experiments")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:8080", "`address` to listen on, as HOST:PORT; port 0: a free one")
	fs.StringVar(&f.path, "path", "/mcp", "`path` of the Streamable HTTP endpoint")
	fs.StringVar(&f.ssePath, "sse-path", "/sse", "`path` of the HTTP+SSE endpoint for 2024-11-05 clients; empty: none")
	fs.StringVar(&f.store, "store", "memory:", "`URL` of the store for calls: memory:, file:DIR, nats://HOST,…, redis://HOST")
	fs.StringVar(&f.admin, "admin", "", "`address` for probes, metrics and the live page, as HOST:PORT: /healthz, /readyz, /metrics and /; empty: none (default for --demo "+demoPage+", or a free port)")
	fs.StringVar(&f.adminToken, "admin-token", "", "`token` for actions on the live page (default a new one, which is printed). Other users can see a command line: better set HOLDFAST_ADMIN_TOKEN")
	fs.Var(&f.response, "response", "form of responses; auto: JSON or a stream, as needed; json, sse: always that one, if possible")
	fs.DurationVar(&f.upgradeAfter, "upgrade-after", 50*time.Millisecond, "how long a request may wait for its response before the answer becomes a stream")
	offDurationVar(fs, &f.disconnectAfter, "disconnect-after", holdfast.Never, "age at which the connection of a call is closed; the client then resumes on another; 0: never")
	fs.DurationVar(&f.retry, "retry", time.Second, "how long clients are told to wait before they reconnect")
	offDurationVar(fs, &f.keepAlive, "keepalive", 15*time.Second, "time without a message after which a comment is sent on a stream; 0: never")
	offDurationVar(fs, &f.pingAfter, "ping-after", time.Second, "time without a message after which a client of a revision before 2025-11-25 gets a ping, whose event id it can resume from; 0: never")
	offDurationVar(fs, &f.taskAfter, "task-after", 2*time.Second, "how long a call may take before it becomes a task, for a client that supports tasks; 0: never")
	fs.Var(&f.handoffAfter, "handoff-after", "how long a call may take before it is handed off: its client, which knows no tasks, gets a handle for the tool holdfast_wait; auto: ten seconds before its host gives up, by what is known of the host; 0: never")
	fs.Var(&f.progressEvery, "progress-every", "how long a call may be silent before a client that gave a progress token is sent progress, which says that the call runs; auto: 15s, for hosts that are known to wait longer then; 0: never")
	fs.DurationVar(&f.sessionTTL, "session-ttl", 30*time.Minute, "how long a session is kept without use; a client that comes back later has it revived (--session-life)")
	f.sessions.add(cmd)
	f.attach.add(cmd)
	fs.DurationVar(&f.keep, "keep", 10*time.Minute, "how long a finished call can be resumed")
	offDurationVar(fs, &f.maxWait, "max-wait", time.Hour, "how long a client that resumes requests (SEP-975) may be disconnected from a running call before the call is cancelled; 0: for ever")
	fs.DurationVar(&f.drain, "drain", 30*time.Second, "how long calls in flight may take to finish after SIGTERM")
	fs.Var(&f.maxBody, "max-body", "maximum size of a request body, at least 1KiB")
	fs.IntVar(&f.maxSessions, "max-sessions", 250_000, "maximum number of open sessions")
	fs.IntVar(&f.maxCalls, "max-calls", 1_000_000, "maximum number of requests in flight")
	fs.IntVar(&f.maxProcesses, "max-processes", 256, "maximum number of processes of the command; -1: any number")
	fs.Float64Var(&f.maxShare, "max-share", 0.75, "share of --memory and of each maximum number that one client may use (a principal, or else an IP address); 1: all, for clients behind a proxy")
	offDurationVar(fs, &f.unusedProcess, "unused-process", time.Minute, "how long a process is kept whose client has only initialized the session and is not connected; 0: as long as the session")
	fs.Var(&f.memory, "memory", "maximum memory for messages and sessions that are kept, and for messages on their way; at least --max-body (default a quarter of the memory of the process, but not more than 1GiB)")
	fs.StringArrayVar(&f.origins, "allow-origin", nil, "web `origin` whose pages may connect (can be repeated; * for any)")
	fs.StringArrayVar(&f.hosts, "allow-host", nil, "`host` name that clients may use (can be repeated; * for any)")
	fs.BoolVar(&f.stateless, "stateless", false, "serve without sessions: requests are independent")
	fs.Var(&f.eras, "eras", "which clients may speak revision 2026-07-28, in which a cut connection ends a call; auto: all, but those that also know an older one and no tasks are led to that; both: all; legacy: none; modern: it is the only one")
	fs.BoolVar(&f.legacyOnly, "legacy-only", false, "the same as --eras legacy")
	f.upstream.add(cmd)
	f.config.add(cmd)
	f.command.add(fs)
	f.auth.add(fs)
	f.tls.add(cmd)
	f.role.add(cmd)
	f.limits.add(fs)
	f.audit.add(fs)
	f.traces.add(cmd)
	f.webhook.add(fs)
	groupFlags(cmd, serveGroups())
	_ = cmd.RegisterFlagCompletionFunc("response", f.response.complete) // fails for unknown flags only
	_ = cmd.RegisterFlagCompletionFunc("eras", f.eras.complete)
	return cmd, f
}

// check returns an error for wrong values of flags, and sets f.webhooks.
func (f *serveFlags) check(command []string) error {
	if err := f.checkServed(command); err != nil {
		return err
	}
	for _, check := range []func() error{
		func() error { return f.upstream.check(&f.role) },
		f.config.check,
		func() error { return f.command.check(command) },
		f.tls.check,
		func() error { return f.auth.check(&f.upstream, &f.tls, &f.role) },
		f.limits.check,
		f.sessions.check,
		f.attach.check,
		f.audit.check,
		func() error { return f.role.check(f.store, f.stateless) },
	} {
		if err := check(); err != nil { // the first alone: often the others follow from it
			return err
		}
	}
	if f.legacyOnly {
		if f.eras.value != "auto" && f.eras.value != "legacy" {
			return usagef("--legacy-only stands for --eras legacy, and not for --eras %s: choose one", f.eras.value)
		}
		f.eras.value = "legacy"
	}
	for name, p := range map[string]string{"--path": f.path, "--sse-path": f.ssePath} {
		if p != "" && (!strings.HasPrefix(p, "/") || path.Clean(p) != p || strings.ContainsAny(p, " ?#{}")) {
			return usagef("%s %q: want an absolute path like /mcp", name, p)
		}
	}
	switch f.path {
	case "":
		return usagef("--path is empty: want a path like /mcp")
	case f.ssePath:
		return usagef("--path and --sse-path are both %s: each needs its own", f.path)
	}
	if m := f.messagesPath(); f.ssePath != "" && (m == f.path || m == f.ssePath) {
		return usagef("%s is the path to which clients of --sse-path %s post messages: choose other paths", m, f.ssePath)
	}
	for name, d := range map[string]time.Duration{
		"--upgrade-after": f.upgradeAfter, "--retry": f.retry, "--session-ttl": f.sessionTTL, "--keep": f.keep,
	} {
		if d <= 0 {
			return usagef("%s %v: want more than 0", name, d)
		}
	}
	if f.drain < 0 {
		return usagef("--drain %v: want 0 or more", f.drain)
	}
	if f.maxProcesses == 0 {
		return usagef("--max-processes 0: want 1 or more, or -1 for any number")
	}
	for name, n := range map[string]int{"--max-sessions": f.maxSessions, "--max-calls": f.maxCalls} {
		if n < 1 {
			return usagef("%s %d: want 1 or more", name, n)
		}
	}
	if !(f.maxShare > 0 && f.maxShare <= 1) {
		return usagef("--max-share %v: want more than 0, and at most 1", f.maxShare)
	}
	for _, origin := range f.origins {
		if u, err := url.Parse(origin); origin != "*" && origin != "null" && (err != nil || u.Scheme == "" || u.Host == "" || strings.Trim(u.Path, "/") != "") {
			return usagef("--allow-origin %q: want an origin like https://app.example.com, or *", origin)
		}
		if len(origin) > 1 && strings.Contains(origin, "*") {
			return usagef("--allow-origin %q: a * stands for any origin, and not for a part of one: give each origin, or * alone", origin)
		}
	}
	for _, host := range f.hosts {
		if host != "*" && strings.ContainsAny(host, "/* ") || host == "" {
			return usagef("--allow-host %q: want the name of a host like mcp.example.com, or * alone", host)
		}
	}
	if f.maxBody < leastBody {
		return usagef("--max-body %v: want at least 1KiB, which a first request needs", &f.maxBody)
	}
	if f.memory > 0 && f.memory < f.maxBody {
		return usagef("--memory %v: want at least %v, so that a request of --max-body fits", &f.memory, &f.maxBody)
	}
	if err := f.checkAddresses(); err != nil {
		return err
	}
	var err error
	f.webhooks, err = f.webhook.options(f.stateless)
	return err
}

// checkAddresses returns an error for addresses that cannot be listened on.
func (f *serveFlags) checkAddresses() error {
	if err := checkAddress("--listen", f.listen, "127.0.0.1:8080, or :8080 for all interfaces"); err != nil || f.admin == "" {
		return err
	}
	if f.admin == f.listen && !strings.HasSuffix(f.admin, ":0") && !f.role.isWorker() {
		return usagef("--listen and --admin are both %s: each needs its own port", f.admin)
	}
	return checkAddress("--admin", f.admin, "127.0.0.1:9090")
}

// leastBody is the least value of --max-body: 1 KiB.
const leastBody byteSize = 1 << 10

// newEras returns the value of --eras.
func newEras() choice {
	var all []string
	for _, era := range []holdfast.Era{holdfast.ErasAuto, holdfast.ErasBoth, holdfast.ErasLegacy, holdfast.ErasModern} {
		all = append(all, string(era))
	}
	return choice{all[0], all}
}

// hasPair reports whether clients of revision 2024-11-05 are served, which need a session.
func (f *serveFlags) hasPair() bool {
	return f.ssePath != "" && !f.stateless && holdfast.Era(f.eras.value) != holdfast.ErasModern
}

// messagesPath returns the path to which clients of revision 2024-11-05 post messages.
func (f *serveFlags) messagesPath() string { return path.Join(path.Dir(f.ssePath), "messages") }

func (f *serveFlags) options() *holdfast.Options {
	response := map[string]holdfast.Response{
		"auto": holdfast.ResponseAuto, "json": holdfast.ResponseJSON, "sse": holdfast.ResponseSSE,
	}[f.response.value]
	opts := &holdfast.Options{
		Response:        response,
		UpgradeAfter:    f.upgradeAfter,
		DisconnectAfter: time.Duration(f.disconnectAfter),
		Retry:           f.retry,
		KeepAlive:       time.Duration(f.keepAlive),
		PingAfter:       time.Duration(f.pingAfter),
		TaskAfter:       time.Duration(f.taskAfter),
		HandoffAfter:    time.Duration(f.handoffAfter),
		ProgressEvery:   time.Duration(f.progressEvery),
		SessionTTL:      f.sessionTTL,
		Keep:            f.keep,
		MaxWait:         time.Duration(f.maxWait),
		MaxBody:         int64(f.maxBody),
		Memory:          int64(f.memory),
		Stateless:       f.stateless,
		Eras:            holdfast.Era(f.eras.value),
		AllowedOrigins:  f.origins,
		AllowedHosts:    f.hosts,
		Webhooks:        f.webhooks,
		// A process gets no headers, and the demo reads none.
		ForwardHeader: f.upstream.forwardHeader(),
		MaxSessions:   f.maxSessions,
		MaxCalls:      f.maxCalls,
		MaxShare:      f.maxShare,
		Role:          f.role.role(),
	}
	f.limits.set(opts)
	f.sessions.set(opts, f.listen, f.store)
	f.attach.set(opts)
	if !f.demo && f.upstream.url == "" && !f.command.share {
		opts.MaxProcesses, opts.UnusedProcess = f.maxProcesses, time.Duration(f.unusedProcess)
	}
	return opts
}

// serve serves until ctx ends, then drains.
func (f *serveFlags) serve(ctx context.Context, command []string, out io.Writer) (err error) {
	if err := f.check(command); err != nil {
		return err
	}
	opts := f.options()
	admin, err := f.listenAdmin()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, admin.close()) }()
	store, err := openStore(ctx, f.store, engine.Options{Keep: f.keep, SessionTTL: f.sessionTTL, Memory: int64(f.memory), MaxShare: f.maxShare})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	opts.Store = store
	if at, ok := store.(interface{ Address() string }); ok {
		f.storeAt = at.Address()
	}
	f.found = countSessions(ctx, store)
	defer f.found.close()
	f.auth.require(opts)
	if f.config.file == "" {
		f.auth.takeEndpoint(f.servesAt)
	}
	f.servePage(opts, admin)
	if err := f.observe(opts, admin); err != nil {
		return err
	}

	var handler *holdfast.Handler
	var many *configured
	switch {
	case f.config.file != "":
		if many, err = f.config.open(out, f.auth.allows(f.role.isWorker()), f.command.stderrToClient, !f.role.isDoor()); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, many.close()) }()
		f.auth.takeEndpoint(func(path string) bool { return many.set.Serves(path, f.hasPair()) })
		f.auth.requireEach(opts, many.set)
		many.applied = f.auth.review
		handler = holdfast.NewBackendHandler(many.set, opts)
	case f.role.isDoor() && !f.demo && f.upstream.url == "":
		handler = holdfast.NewBackendHandler(noServer{}, opts)
	case f.demo:
		demo := newDemo()
		handler = holdfast.NewHandler(func(*http.Request) *mcp.Server { return demo }, opts)
	case f.upstream.url != "":
		handler = holdfast.NewBackendHandler(f.upstream.backend(f.stateless), opts)
	default:
		b, end, err := f.command.open(command)
		if err != nil {
			return err
		}
		defer func() { _ = end() }()
		handler = holdfast.NewBackendHandler(b, opts)
	}

	if f.role.isWorker() {
		f.announce(admin, opts.PageToken)
		return f.work(ctx, handler, many, admin)
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		_ = handler.Shutdown(ctx) // it has no clients yet
		return notListening("--listen", f.listen, err)
	}
	if err := f.upstream.isNot(ctx, listener.Addr()); err != nil {
		_ = listener.Close()
		_ = handler.Shutdown(ctx) // as above
		return err
	}
	f.announce(admin, opts.PageToken)
	routes := f.routes(ctx, handler, many)
	if f.auth.policy != nil && f.auth.policy.Keys != nil {
		watchFiles(ctx, f.auth.reload)
	}
	if f.tls.files != nil {
		watchFiles(ctx, func(asked bool) { f.tls.files.Reload(asked) })
	}
	f.greet(listener.Addr(), many)
	defer f.auth.tryIssuer(ctx)()
	defer f.tryUpstream(ctx)()
	if f.ownPage {
		f.greetPage(admin, opts.PageToken)
	}
	defer f.show(ctx, admin, listener.Addr())()
	admin.watch(handler.Ready)
	listener = handler.Listener(listener) // below TLS, as what it takes is bounded from the accept on
	if f.tls.files != nil {
		listener = tls.NewListener(listener, f.tls.files.Config())
	}
	return serveUntil(ctx, listener, routes, handler, admin, f.drain)
}

// greet prints the URL of the server and how to try it, and logs how it serves. It warns if other machines
// reach it.
func (f *serveFlags) greet(at net.Addr, many *configured) {
	out, addr := f.greeting, at.String()
	if tcp, ok := at.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		if !f.upstream.passes() && f.auth.policy == nil { // else the upstream server authenticates users
			slog.Warn("there is no authentication: everybody who reaches this port can call every tool; " +
				"use a proxy that authenticates users, or listen on 127.0.0.1 (--listen)")
		}
		if tcp.IP.IsUnspecified() {
			addr = net.JoinHostPort(f.reachable(tcp.IP), strconv.Itoa(tcp.Port))
		}
	}
	if many != nil {
		many.greet(out, f.tls.scheme()+"://"+addr)
		f.logStart("servers", many.paths(), "address", f.tls.scheme()+"://"+addr)
		return
	}
	url := f.tls.scheme() + "://" + addr + f.path
	fmt.Fprintf(out, "Serving MCP at %s\n", url)
	if f.hasPair() {
		fmt.Fprintf(out, "  and for 2024-11-05 clients at %s://%s%s\n", f.tls.scheme(), addr, f.ssePath)
	}
	if f.upstream.url != "" {
		fmt.Fprintf(out, "  in front of %s\n", redacted(f.upstream.url))
	}
	try := "--method tools/list"
	if f.demo {
		try = "--method tools/call --tool-name count --tool-arg to=5 --tool-arg delay_ms=500"
	}
	fmt.Fprintf(out, "Try it: npx -y @modelcontextprotocol/inspector --cli %s --transport http %s\n", url, try)
	f.logStart("url", url)
}

// storeShown is the address of the store, without a password.
func (f *serveFlags) storeShown() string {
	if f.storeAt != "" {
		return f.storeAt
	}
	if strings.Contains(f.store, "//") {
		return redacted(f.store)
	}
	return f.store // memory: or file:
}

// logStart logs how this program serves, and how many sessions it has found, for whose count it does not wait.
func (f *serveFlags) logStart(where ...any) {
	f.found.tell(func(found ...any) {
		slog.Info("serving", slices.Concat(where, []any{"version", versionText(), "store", f.storeShown()}, found,
			[]any{"eras", f.eras.value, "authentication", f.auth.kind(&f.upstream)})...)
	})
}

// reachable returns an address for a server that listens on all addresses: one that other
// machines reach, if there is one and the server accepts it as a host name.
func (f *serveFlags) reachable(all net.IP) string {
	for _, to := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // documentation addresses: nothing is sent
		c, err := net.Dial("udp", to)
		if err != nil {
			continue
		}
		ip := c.LocalAddr().(*net.UDPAddr).IP
		_ = c.Close()
		named := len(f.hosts) == 0 || slices.Contains(f.hosts, "*") || slices.Contains(f.hosts, ip.String())
		if named && (ip.To4() != nil || all.To4() == nil) {
			return ip.String()
		}
	}
	return "127.0.0.1"
}
