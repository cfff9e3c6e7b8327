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
)

// serveFlags are the values of the flags of holdfast serve, which [serveFlags.groups] declares, and values that are made of them.
type serveFlags struct {
	opts          holdfast.Options       // flags that are options of the library: see [serveFlags.options]
	given         func(flag string) bool // reports whether a flag was given
	bounds        []func() error         // return errors for values that are out of bounds
	greeting      io.Writer              // for a person: where it serves
	demo          bool
	listen        string
	path, ssePath string
	proxies       []string
	store         string
	keysFile      string
	admin         string
	ownPage       bool // the page of the demo, at an address that no flag gives
	drain         time.Duration
	response      choice
	eras          choice
	legacyOnly    bool // --eras legacy
	upstream      upstreamFlags
	config        configFlags
	command       commandFlags
	auth          authFlags
	tls           tlsFlags
	role          roleFlags
	audit         auditFlags
	traces        traceFlags
	webhook       webhookFlags
	found         *sessionCount // of the store
	storeAt       string        // the store's address, as the store says it
}

func newServe() *cobra.Command {
	cmd, _ := newServeFlags()
	return cmd
}

// newServeFlags returns the command, and its flags.
func newServeFlags() (*cobra.Command, *serveFlags) {
	f := &serveFlags{}
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
	cmd.Flags().SetInterspersed(false) // flags after COMMAND are its arguments
	f.given = cmd.Flags().Changed
	groupFlags(cmd, f.groups())
	return cmd, f
}

// check returns an error for wrong values of flags, and sets the options that are made of several.
func (f *serveFlags) check(command []string) error {
	if err := f.checkServed(command); err != nil {
		return err
	}
	for _, check := range append([]func() error{
		func() error { return f.upstream.check(&f.role) },
		f.config.check,
		func() error { return f.command.check(command) },
		f.tls.check,
		func() error { return f.auth.check(&f.upstream, &f.tls, &f.role) },
		f.checkLimits,
		f.readSessionKeys,
		func() error { return f.audit.check(f.opts.AuditArguments) },
		func() error { return f.role.check(f.store, f.opts.Stateless) },
	}, f.bounds...) {
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
	if f.drain < 0 {
		return usagef("--drain %v: want 0 or more", f.drain)
	}
	if f.opts.MaxProcesses == 0 {
		return usagef("--max-processes 0: want 1 or more, or -1 for any number")
	}
	if share := f.opts.MaxShare; !(share > 0 && share <= 1) {
		return usagef("--max-share %v: want more than 0, and at most 1", share)
	}
	for _, origin := range f.opts.AllowedOrigins {
		if u, err := url.Parse(origin); origin != "*" && origin != "null" && (err != nil || u.Scheme == "" || u.Host == "" || strings.Trim(u.Path, "/") != "") {
			return usagef("--allow-origin %q: want an origin like https://app.example.com, or *", origin)
		}
		if len(origin) > 1 && strings.Contains(origin, "*") {
			return usagef("--allow-origin %q: a * stands for any origin, and not for a part of one: give each origin, or * alone", origin)
		}
	}
	for _, host := range f.opts.AllowedHosts {
		if host != "*" && strings.ContainsAny(host, "/* ") || host == "" {
			return usagef("--allow-host %q: want the name of a host like mcp.example.com, or * alone", host)
		}
	}
	if slices.Contains(f.opts.CallIDs, "") {
		return usagef("--call-id: want the name of a member of _meta, such as claudecode/toolUseId")
	}
	body, memory := (*byteSize)(&f.opts.MaxBody), (*byteSize)(&f.opts.Memory)
	if *body < leastBody {
		return usagef("--max-body %v: want at least 1KiB, which a first request needs", body)
	}
	if *memory > 0 && *memory < *body {
		return usagef("--memory %v: want at least %v, so that a request of --max-body fits", memory, body)
	}
	if err := f.checkAddresses(); err != nil {
		return err
	}
	var err error
	f.opts.Webhooks, err = f.webhook.options(f.opts.Stateless)
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

// hasPair reports whether clients of revision 2024-11-05 are served, which need a session.
func (f *serveFlags) hasPair() bool {
	return f.ssePath != "" && !f.opts.Stateless && holdfast.Era(f.eras.value) != holdfast.ErasModern
}

// messagesPath returns the path to which clients of revision 2024-11-05 post messages.
func (f *serveFlags) messagesPath() string { return path.Join(path.Dir(f.ssePath), "messages") }

// options returns the options of the library: those that are flags themselves, and those that follow from others.
func (f *serveFlags) options() *holdfast.Options {
	opts := f.opts
	opts.Response = map[string]holdfast.Response{
		"auto": holdfast.ResponseAuto, "json": holdfast.ResponseJSON, "sse": holdfast.ResponseSSE,
	}[f.response.value]
	opts.Eras = holdfast.Era(f.eras.value)
	opts.Role = f.role.role()
	opts.ForwardHeader = f.upstream.forwardHeader() // a process gets no headers, and the demo reads none
	if !f.given("sleep-after") {
		opts.SleepAfter = 0 // its default depends on the backend
	}
	if !f.given("state-dir") && f.store == "memory:" {
		opts.StateDir = stateDir(f.listen)
	}
	if f.demo || f.upstream.url != "" || f.command.share {
		opts.MaxProcesses, opts.UnusedProcess = 0, 0
	}
	return &opts
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
	store, err := openStore(ctx, f.store, engine.Options{Keep: opts.Keep, SessionTTL: opts.SessionTTL, Memory: opts.Memory, MaxShare: opts.MaxShare})
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
		handler = holdfast.NewBackendHandler(f.upstream.backend(opts.Stateless), opts)
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
	listener = handler.Listener(listener) // below TLS: it bounds connections from the accept on
	if f.tls.files != nil {
		listener = tls.NewListener(listener, f.tls.files.Config())
	}
	return serveUntil(ctx, listener, routes, handler, admin, f.drain)
}

// greet prints the URL of the server and how to try it, and logs how it serves. It warns if other machines
// reach it without authentication.
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

// logStart logs how this program serves, and how many sessions the store had. It does not wait for the count.
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
		hosts := f.opts.AllowedHosts
		named := len(hosts) == 0 || slices.Contains(hosts, "*") || slices.Contains(hosts, ip.String())
		if named && (ip.To4() != nil || all.To4() == nil) {
			return ip.String()
		}
	}
	return "127.0.0.1"
}
