package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/backend/process"
	"holdfast/engine"
)

// serveFlags are the flags of holdfast serve.
type serveFlags struct {
	demo            bool
	listen          string
	path, ssePath   string
	store           string
	response        string
	upgradeAfter    time.Duration
	disconnectAfter time.Duration
	retry           time.Duration
	keepAlive       time.Duration
	sessionTTL      time.Duration
	keep            time.Duration
	drain           time.Duration
	maxBody         byteSize
	origins, hosts  []string
	stateless       bool
}

func newServe() *cobra.Command {
	f := serveFlags{maxBody: 4 << 20}
	cmd := &cobra.Command{
		Use:   "serve [flags] --demo\n  holdfast serve [flags] -- COMMAND ARG...",
		Short: "Serve an MCP server over Streamable HTTP",
		Long: `Serve runs a stdio MCP server, in any language, and gives its clients a Streamable
HTTP endpoint at which no call is lost when a connection is cut. Each session gets
a process of its own.`,
		Example: `  holdfast serve --demo
  holdfast serve -- npx -y @modelcontextprotocol/server-everything stdio`,
		Args: func(_ *cobra.Command, args []string) error {
			if f.demo == (len(args) > 0) {
				return usageError{errors.New("serve wants either --demo or a command (holdfast serve -- COMMAND ARG)")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.serve(cmd.Context(), args, cmd.ErrOrStderr()) },
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.demo, "demo", false, "serve a built-in MCP server to try things on")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address to listen on")
	fs.StringVar(&f.path, "path", "/mcp", "path of the Streamable HTTP endpoint")
	fs.StringVar(&f.ssePath, "sse-path", "/sse", "path of the HTTP+SSE endpoint for 2024-11-05 clients; empty: none")
	fs.StringVar(&f.store, "store", "memory:", "where calls are kept")
	fs.StringVar(&f.response, "response", "auto", "how requests are answered: auto, json or sse")
	fs.DurationVar(&f.upgradeAfter, "upgrade-after", 50*time.Millisecond, "how long JSON is waited for before the answer becomes a stream")
	fs.DurationVar(&f.disconnectAfter, "disconnect-after", 0, "age at which a stream's connection is ended, to be resumed; 0: never")
	fs.DurationVar(&f.retry, "retry", time.Second, "how long clients are told to wait before they come back")
	fs.DurationVar(&f.keepAlive, "keepalive", 15*time.Second, "silence after which a comment is sent on a stream; 0: never")
	fs.DurationVar(&f.sessionTTL, "session-ttl", 30*time.Minute, "how long an idle session lives")
	fs.DurationVar(&f.keep, "keep", 10*time.Minute, "how long a finished call can still be read")
	fs.DurationVar(&f.drain, "drain", 10*time.Second, "how long running calls may take to finish after SIGTERM")
	fs.Var(&f.maxBody, "max-body", "largest request body")
	fs.StringArrayVar(&f.origins, "allow-origin", nil, "web origin whose pages may connect (repeat for more; * for any)")
	fs.StringArrayVar(&f.hosts, "allow-host", nil, "host name that clients may use (repeat for more; * for any)")
	fs.BoolVar(&f.stateless, "stateless", false, "serve without sessions: each request stands alone")
	return cmd
}

// check finds what is wrong with the flags' values.
func (f *serveFlags) check() error {
	for name, p := range map[string]string{"--path": f.path, "--sse-path": f.ssePath} {
		if p != "" && !strings.HasPrefix(p, "/") || strings.ContainsAny(p, " ?#{}") {
			return usageError{fmt.Errorf("%s %q: want an absolute path like /mcp", name, p)}
		}
	}
	switch {
	case f.path == "":
		return usageError{errors.New("--path is empty")}
	case f.path == f.ssePath:
		return usageError{errors.New("--path and --sse-path are the same")}
	case f.upgradeAfter <= 0 || f.retry <= 0 || f.sessionTTL <= 0 || f.keep <= 0:
		return usageError{errors.New("--upgrade-after, --retry, --session-ttl and --keep must be positive")}
	case f.disconnectAfter < 0 || f.keepAlive < 0 || f.drain < 0:
		return usageError{errors.New("--disconnect-after, --keepalive and --drain must not be negative")}
	}
	return nil
}

func (f *serveFlags) options() (*holdfast.Options, error) {
	response, ok := map[string]holdfast.Response{
		"auto": holdfast.ResponseAuto, "json": holdfast.ResponseJSON, "sse": holdfast.ResponseSSE,
	}[f.response]
	if !ok {
		return nil, usageError{fmt.Errorf("--response %q: want auto, json or sse", f.response)}
	}
	keepAlive := f.keepAlive
	if keepAlive == 0 {
		keepAlive = -1
	}
	return &holdfast.Options{
		Response:        response,
		UpgradeAfter:    f.upgradeAfter,
		DisconnectAfter: f.disconnectAfter,
		Retry:           f.retry,
		KeepAlive:       keepAlive,
		SessionTTL:      f.sessionTTL,
		MaxBody:         int64(f.maxBody),
		Stateless:       f.stateless,
		AllowedOrigins:  f.origins,
		AllowedHosts:    f.hosts,
	}, nil
}

// serve runs until ctx is done, then drains.
func (f *serveFlags) serve(ctx context.Context, command []string, out io.Writer) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	opts, err := f.options()
	if err != nil {
		return err
	}
	store, err := engine.Open(f.store, f.keep)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	opts.Store = store

	var handler *holdfast.Handler
	if f.demo {
		demo := newDemo()
		handler = holdfast.NewHandler(func(*http.Request) *mcp.Server { return demo }, opts)
	} else {
		backend, err := process.New(command, nil)
		if err != nil {
			return err
		}
		defer backend.Close()
		handler = holdfast.NewBackendHandler(backend, opts)
	}

	mux := http.NewServeMux()
	mux.Handle(f.path, handler)
	if f.ssePath != "" && !f.stateless {
		messages := path.Join(path.Dir(f.ssePath), "messages")
		doors := handler.SSE(messages)
		mux.Handle(f.ssePath, doors)
		mux.Handle(messages, doors)
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		_ = handler.Shutdown(ctx)
		return err
	}
	f.greet(out, listener.Addr().String())
	return serveUntil(ctx, listener, mux, handler, f.drain)
}

// greet says where the server is and how to try it.
func (f *serveFlags) greet(out io.Writer, addr string) {
	if host, port, err := net.SplitHostPort(addr); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			addr = net.JoinHostPort("127.0.0.1", port)
		}
	}
	url := "http://" + addr + f.path
	fmt.Fprintf(out, "Serving MCP at %s\n", url)
	if f.ssePath != "" && !f.stateless {
		fmt.Fprintf(out, "  and for 2024-11-05 clients at http://%s%s\n", addr, f.ssePath)
	}
	try := "--method tools/list"
	if f.demo {
		try = "--method tools/call --tool-name count --tool-arg to=5 --tool-arg delay_ms=500"
	}
	fmt.Fprintf(out, "Try it: npx -y @modelcontextprotocol/inspector --cli %s --transport http %s\n", url, try)
}

// serveUntil serves until ctx is done. Then it drains: clients that only listen
// are told to come back later, and calls in flight get the given time.
func serveUntil(ctx context.Context, l net.Listener, mux http.Handler, handler *holdfast.Handler, drain time.Duration) error {
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	var cause error
	select {
	case cause = <-failed:
	case <-ctx.Done():
		slog.Info("draining", "for", drain)
	}
	// A second signal ends it at once.
	impatient, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	bounded, cancel := context.WithTimeout(impatient, drain)
	defer cancel()
	if err := handler.Shutdown(bounded); err != nil {
		slog.Warn("calls were cut short", "error", err)
	}
	last, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		_ = server.Close()
	}
	slog.Info("stopped")
	return cause
}

// byteSize is a flag for a number of bytes, as 4MiB.
type byteSize int64

var units = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1}, {"", 1}}

// String implements [pflag.Value].
func (b *byteSize) String() string {
	for _, u := range units[:3] {
		if *b > 0 && int64(*b)%u.bytes == 0 {
			return strconv.FormatInt(int64(*b)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Set implements [pflag.Value].
func (b *byteSize) Set(s string) error {
	for _, u := range units {
		if number, ok := strings.CutSuffix(s, u.suffix); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
			if err != nil || n <= 0 || n > (1<<62)/u.bytes {
				return fmt.Errorf("want a size like 4MiB")
			}
			*b = byteSize(n * u.bytes)
			return nil
		}
	}
	return nil
}

// Type implements [pflag.Value].
func (b *byteSize) Type() string { return "size" }
