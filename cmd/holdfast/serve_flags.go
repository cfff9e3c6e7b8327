package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast"
	"holdfast/internal/defaults"
)

// groups are the flags of holdfast serve, in the order of its help: those that a new user needs are first. A flag is declared
// here alone, with its variable, its default and its help. The variable of a flag for an option of the library is that option.
func (f *serveFlags) groups() []flagGroup {
	o := &f.opts
	return []flagGroup{
		{"What to serve", func(fs *pflag.FlagSet) {
			fs.BoolVar(&f.demo, "demo", false, "serve a built-in MCP server for experiments")
			fs.StringVar(&f.upstream.url, "upstream", "", "`URL` of the HTTP server to serve, as http://HOST/PATH")
			fs.StringVar(&f.config.file, "config", "", "configuration `file` of a host, whose servers are served at /NAME/mcp; it is read again when it changes, and at SIGHUP")
			_ = cobra.MarkFlagFilename(fs, "config", "json") // fails for unknown flags only
			fs.BoolVar(&f.command.share, "share", false, "run COMMAND once for all sessions, not once for each: for servers without state, which cannot ask clients then")
		}},
		{"Where to listen", func(fs *pflag.FlagSet) {
			fs.StringVar(&f.listen, "listen", "127.0.0.1:8080", "`address` to listen on, as HOST:PORT; port 0: a free one")
			fs.StringVar(&f.path, "path", "/mcp", "`path` of the Streamable HTTP endpoint")
			fs.StringVar(&f.ssePath, "sse-path", "/sse", "`path` of the HTTP+SSE endpoint for 2024-11-05 clients; empty: none")
			fs.StringArrayVar(&o.AllowedHosts, "allow-host", nil, "`host` name that clients may use (can be repeated; * for any)")
			fs.StringArrayVar(&o.AllowedOrigins, "allow-origin", nil, "web `origin` whose pages may connect (can be repeated; * for any)")
			fs.StringArrayVar(&f.proxies, "trust-proxy", nil, "`address` or CIDR of proxies whose X-Forwarded-For header is trusted (can be repeated)")
		}},
		{"Calls and sessions", func(fs *pflag.FlagSet) {
			fs.StringVar(&f.store, "store", "memory:", "`URL` of the store for calls: memory:, file:DIR, nats://HOST,…, redis://HOST")
			f.positive(fs, &o.Keep, "keep", defaults.Keep, "how long a finished call can be resumed")
			f.positive(fs, &o.SessionTTL, "session-ttl", defaults.SessionTTL, "how long a session is kept without use; a client that comes back later has it revived (--session-life)")
			offDurationVar(fs, &o.SleepAfter, "sleep-after", defaults.SleepAfter, "how long a session is idle before it falls asleep, if its server would remember nothing of it: it costs nothing, and its client wakes it (--session-life); 0: never")
			offDurationVar(fs, &o.SessionLife, "session-life", defaults.SessionLife, "how long after its beginning a session that has expired, or that a restart has lost, is revived when its client comes back; 0: never")
			fs.StringVar(&f.keysFile, "session-keys", "", "`file` of the keys of session ids, one on each line, as openssl rand -hex 32 makes them; the first seals, and all open (default a key in the --store, or in --state-dir)")
			fs.StringVar(&o.StateDir, "state-dir", "", "`directory` where a server with --store memory: keeps the key of session ids, and which sessions were ended, so that sessions outlive a restart; empty: none (default one of the user's for --listen, if that has a port)")
			offDurationVar(fs, &o.MaxWait, "max-wait", defaults.MaxWait, "how long a client that resumes requests (SEP-975) may be disconnected from a running call before the call is cancelled; 0: for ever")
			fs.DurationVar(&f.drain, "drain", 30*time.Second, "how long calls in flight may take to finish after SIGTERM")
			choiceVar(fs, &f.role.choice, "role", []string{"both", "door", "worker"}, "what this node does, if nodes share the store; door: takes connections of clients, runs no server; worker: runs servers, has no port, is reached through the store")
			fs.BoolVar(&o.Stateless, "stateless", false, "serve without sessions: requests are independent")
		}},
		{"Slow calls", func(fs *pflag.FlagSet) {
			offDurationVar(fs, &o.TaskAfter, "task-after", defaults.TaskAfter, "how long a call may take before it becomes a task, for a client that supports tasks; 0: never")
			autoDurationVar(fs, &o.HandoffAfter, "handoff-after", "how long a call may take before it is handed off: its client, which knows no tasks, gets a handle for the tool holdfast_wait; auto: ten seconds before its host gives up, by what is known of the host; 0: never")
			autoDurationVar(fs, &o.ProgressEvery, "progress-every", "how long a call may be silent before a client that gave a progress token is sent progress, which says that the call runs; auto: 15s, for hosts that are known to wait longer then; 0: never")
			offDurationVar(fs, &o.DisconnectAfter, "disconnect-after", holdfast.Never, "age at which the connection of a call is closed; the client then resumes on another; 0: never")
		}},
		{"Calls that come again", func(fs *pflag.FlagSet) {
			offDurationVar(fs, &o.AttachWithin, "attach-within", defaults.AttachWithin, "how long after its connection has broken a call is found by a request for the same tool with the same arguments, which gets its result and does not run; 0: never")
			fs.StringArrayVar(&o.CallIDs, "call-id", nil, "`member` of _meta in which a host gives a call an id of its own, besides those of Claude Code and Codex (can be repeated)")
			offDurationVar(fs, &o.CutGrace, "cut-grace", defaults.CutGrace, "how long the call of a tool goes on whose client speaks 2026-07-28 and has lost its connection, or closed it; 0: it is cancelled at once")
		}},
		{"Limits", func(fs *pflag.FlagSet) {
			sizeVar(fs, &o.Memory, "memory", 0, "maximum memory for messages and sessions that are kept, and for messages on their way; at least --max-body (default a quarter of the memory of the process, but not more than 1GiB)")
			fs.Float64Var(&o.MaxShare, "max-share", defaults.MaxShare, "share of --memory and of each maximum number that one client may use (a principal, or else an IP address); 1: all, for clients behind a proxy")
			f.atLeast(fs, 1, &o.MaxSessions, "max-sessions", defaults.MaxSessions, "maximum number of open sessions")
			f.atLeast(fs, 1, &o.MaxCalls, "max-calls", defaults.MaxCalls, "maximum number of requests in flight")
			fs.IntVar(&o.MaxProcesses, "max-processes", defaults.MaxProcesses, "maximum number of processes of the command; -1: any number")
			sizeVar(fs, &o.MaxBody, "max-body", defaults.MaxBody, "maximum size of a request body, at least 1KiB")
			offDurationVar(fs, &o.UnusedProcess, "unused-process", defaults.UnusedProcess, "how long a process is kept whose client has only initialized the session and is not connected; 0: as long as the session")
		}},
		{"Limits for each client", func(fs *pflag.FlagSet) {
			fs.Var((*callRate)(&o.Limits.Rate), "rate", "calls that one client (a principal, or else an IP address) may begin, like 50/s or 600/m; a call beyond it gets status 429 (default any number)")
			f.atLeast(fs, 0, &o.Limits.Burst, "rate-burst", 0, "how many calls of --rate may begin at once (default: those of one second, and at least 1)")
			fs.Var((*callRate)(&o.Limits.AddressRate), "rate-address", "calls and sessions that all clients of one IP address may begin, like 100/s (default any number)")
			f.atLeast(fs, 0, &o.Limits.AddressBurst, "rate-address-burst", 0, "how many calls of --rate-address may begin at once (default: those of one second, and at least 1)")
			f.atLeast(fs, 0, &o.Limits.Calls, "max-calls-principal", 0, "maximum number of calls in flight of one client (a principal, or else an IP address); 0: any")
			f.atLeast(fs, 0, &o.Limits.ToolCalls, "max-calls-tool", 0, "maximum number of calls in flight of one tool; 0: any")
			f.atLeast(fs, 0, &o.Limits.Queue, "queue", 0, "how many calls beyond --max-calls-principal and --max-calls-tool may wait for others to end; the rest get status 429")
			f.positive(fs, &o.Limits.QueueWait, "queue-wait", defaults.QueueWait, "how long a call may wait in the --queue")
		}},
		{"Who may connect", func(fs *pflag.FlagSet) {
			fs.StringVar(&f.auth.issuer, "auth-issuer", "", "`URL` of the authorization server (OAuth 2.1) whose tokens clients must have, as https://HOST; empty: clients need none")
			fs.StringArrayVar(&f.auth.audience, "auth-audience", nil, "`audience` that a token must be for (can be repeated; default the URL of the endpoint, if --auth-resource is given)")
			fs.StringArrayVar(&f.auth.scopes, "auth-scopes", nil, "`scopes` that a token must have, separated by spaces (can be repeated)")
			fs.StringVar(&f.auth.resource, "auth-resource", "", "`URL` by which clients reach this server, as https://HOST, or an endpoint of it, as https://HOST/mcp (default: from the Host of each request)")
			fs.StringVar(&f.auth.clientID, "auth-client-id", "", "`id` of Holdfast at the authorization server, to ask it about tokens that are no JWTs (RFC 7662); the secret is in HOLDFAST_AUTH_CLIENT_SECRET or --auth-client-secret-file")
			fs.StringVar(&f.auth.secretFile, "auth-client-secret-file", "", "`file` with the secret for --auth-client-id")
			fs.StringVar(&f.auth.introspection, "auth-introspection", "", "`URL` of the introspection endpoint (default: from the issuer's metadata)")
			fs.BoolVar(&f.auth.proofsOnly, "auth-dpop-required", false, "take only tokens that are bound to a key of their client (DPoP, RFC 9449); others are refused. Without it both kinds are taken")
			fs.BoolVar(&f.auth.nonces, "auth-dpop-nonce", false, "have the proofs of clients with DPoP carry a nonce of this server, so that a proof that was seen by others is of use for 5 minutes at most, and to no client with a wrong clock")
			fs.StringVar(&f.auth.keys, "auth-keys", "", "`file` of static keys, made by 'holdfast key', that clients may send instead of tokens; it is read again when it changes, and at SIGHUP")
			fs.DurationVar(&f.auth.grace, "auth-grace", 30*time.Second, "for how long streams and WebSockets that were opened with a token or a client certificate go on after its end, so that a client with a new one loses nothing; 0: they end with it")
			fs.StringVar(&f.tls.cert, "tls-cert", "", "`file` with the server's certificate and its chain (PEM); empty: no TLS. It is read again when it changes, and at SIGHUP")
			fs.StringVar(&f.tls.key, "tls-key", "", "`file` with the key of --tls-cert (PEM)")
			fs.StringVar(&f.tls.clientCA, "tls-client-ca", "", "`file` with certificates of authorities (PEM): clients must have a certificate of one of them; empty: clients need none")
			for _, name := range []string{"tls-cert", "tls-key", "tls-client-ca"} {
				_ = cobra.MarkFlagFilename(fs, name, "pem", "crt", "key") // as above
			}
		}},
		{"The server behind --upstream", func(fs *pflag.FlagSet) {
			fs.DurationVar(&f.upstream.wait, "upstream-wait", 5*time.Minute, "how long the upstream server may be out of reach before the calls that wait for it fail")
			fs.StringArrayVar(&f.upstream.headers, "upstream-header", nil, "`header` for the upstream server, as 'Name: value' (can be repeated). Other users can see a command line: better set HOLDFAST_UPSTREAM_HEADER")
			choiceVar(fs, &f.upstream.auth, "upstream-auth", []string{"none", authPassthrough, authClient, authExchange}, "which token the upstream server gets; passthrough: the client's; client-credentials: a token for Holdfast (RFC 6749, section 4.4); token-exchange: one in exchange for the client's (RFC 8693), which needs --auth-issuer")
			fs.StringVar(&f.upstream.token.url, "upstream-token-url", "", "`URL` of the token endpoint that gives tokens for the upstream server, as https://HOST/PATH")
			fs.StringVar(&f.upstream.token.clientID, "upstream-client-id", "", "`id` of Holdfast at --upstream-token-url. The secret is in HOLDFAST_UPSTREAM_CLIENT_SECRET or --upstream-client-secret-file")
			fs.StringVar(&f.upstream.token.secretFile, "upstream-client-secret-file", "", "`file` with the secret for --upstream-client-id")
			fs.StringArrayVar(&f.upstream.token.scopes, "upstream-scopes", nil, "`scopes` of the token, separated by spaces (can be repeated)")
			fs.StringVar(&f.upstream.token.audience, "upstream-audience", "", "`audience` of the token")
			fs.StringVar(&f.upstream.token.resource, "upstream-resource", "", "`URL` of the resource that the token is for (RFC 8707; default: that of --upstream)")
		}},
		{"Variables of --config", f.config.addValues},
		{"For operators", func(fs *pflag.FlagSet) {
			fs.StringVar(&f.admin, "admin", "", "`address` for probes, metrics and the live page, as HOST:PORT: /healthz, /readyz, /metrics and /; empty: none (default for --demo "+demoPage+", or a free port)")
			fs.StringVar(&o.PageToken, "admin-token", "", "`token` for actions on the live page (default a new one, which is printed). Other users can see a command line: better set HOLDFAST_ADMIN_TOKEN")
			fs.StringVar(&f.audit.file, "audit", "", "`file` for one JSON line about each call that has ended, and about requests refused with 401 or 403; -: stdout; empty: none. SIGHUP opens it again")
			fs.BoolVar(&o.AuditArguments, "audit-arguments", false, "write the arguments of tools and prompts to the audit too")
			fs.BoolVar(&f.command.stderrToClient, "stderr-to-client", false, "add the last lines of a server's stderr to the error that clients get when its process exits; they are always in the log")
			choiceVar(fs, &f.traces.parent, "trace-parent", []string{"message", "http"}, "parent of a call's span, if traces are on (OTEL_EXPORTER_OTLP_ENDPOINT); message: the span in _meta.traceparent; http: the span in the header of the HTTP request. The other one is linked")
			fs.StringVar(&f.webhook.secret, "webhook-secret", "", "`secret` (whsec_...) that signs webhooks; without it there are none. Other users can see a command line: better set HOLDFAST_WEBHOOK_SECRET")
			fs.StringArrayVar(&f.webhook.allow, "webhook-allow", nil, "`destination` that webhooks may go to although it is private, or not https on port 443: a CIDR, IP address or host name (can be repeated)")
		}},
		{"Protocol", func(fs *pflag.FlagSet) {
			choiceVar(fs, &f.eras, "eras", []string{"auto", "both", "legacy", "modern"}, "which clients may speak revision 2026-07-28, in which a cut connection ends a call; auto: all, but those that also know an older one and no tasks are led to that; both: all; legacy: none; modern: it is the only one")
			choiceVar(fs, &f.response, "response", []string{"auto", "json", "sse"}, "form of responses; auto: JSON or a stream, as needed; json, sse: always that one, if possible")
			f.positive(fs, &o.UpgradeAfter, "upgrade-after", defaults.UpgradeAfter, "how long a request may wait for its response before the answer becomes a stream")
			f.positive(fs, &o.Retry, "retry", defaults.Retry, "how long clients are told to wait before they reconnect")
			offDurationVar(fs, &o.KeepAlive, "keepalive", defaults.KeepAlive, "time without a message after which a comment is sent on a stream; 0: never")
			offDurationVar(fs, &o.PingAfter, "ping-after", defaults.PingAfter, "time without a message after which a client of a revision before 2025-11-25 gets a ping, whose event id it can resume from; 0: never")
			fs.BoolVar(&f.legacyOnly, "legacy-only", false, "the same as --eras legacy")
		}},
	}
}

// positive adds a flag for a time, which must be more than 0.
func (f *serveFlags) positive(fs *pflag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	fs.DurationVar(d, name, value, usage)
	f.bounds = append(f.bounds, func() error {
		if *d <= 0 {
			return usagef("--%s %v: want more than 0", name, *d)
		}
		return nil
	})
}

// atLeast adds a flag for a number that must not be less than another.
func (f *serveFlags) atLeast(fs *pflag.FlagSet, least int, n *int, name string, value int, usage string) {
	fs.IntVar(n, name, value, usage)
	f.bounds = append(f.bounds, func() error {
		if *n < least {
			return usagef("--%s %d: want %d or more", name, *n, least)
		}
		return nil
	})
}
