package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/backend/process"
	"holdfast/client"
	"holdfast/internal/config"
	"holdfast/internal/followcall"
	"holdfast/internal/login"
	"holdfast/internal/terminal"
)

// serverFlags are the flags of the commands that are about one server: at a URL, a command, or a server in the file of a host.
type serverFlags struct {
	remoteFlags
	login   loginFlags
	from    string
	timeout time.Duration
	// completes says that a command line is completed: cobra puts "--" at its end.
	completes bool
}

func newServerFlags() serverFlags {
	return serverFlags{remoteFlags: newRemoteFlags(), login: newLoginFlags()}
}

func (f *serverFlags) add(cmd *cobra.Command) {
	f.remoteFlags.add(cmd)
	f.login.add(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.from, "from", "", "`host` (such as cursor) or file whose servers can be given by their names (default: all hosts that 'holdfast install' knows)")
	fs.DurationVar(&f.timeout, "timeout", 0, "how long to wait for the server in all; 0: as long as it takes")
	_ = cmd.RegisterFlagCompletionFunc("from", completeHosts) // fails for unknown flags only
}

// serverHelp is the part of those commands' help about giving a server.
const serverHelp = `SERVER is a URL (without http:// or https:// it is http on this machine, and https
elsewhere), or the name of a server in the configuration file of a host, whose command, URL,
environment and headers are used. COMMAND is a stdio server, which ends with this command.`

// A target is the server that a command line is about.
type target struct {
	url     string
	command []string
	env     map[string]string // beside that of this program
	dir     string
	header  http.Header
	// transport is the one of the server's entry in the file of a host; "" if --transport says it.
	transport string
	entry     followcall.Entry // zero: the server has none
}

// name returns the name of the server in messages.
func (t *target) name() string {
	if t.command != nil {
		return terminal.OneLine(filepath.Base(t.command[0]))
	}
	return redacted(t.url)
}

// stdio reports whether the server is a process that ends with this one.
func (t *target) stdio() bool { return t.command != nil }

// target returns the server that arguments name, and the arguments that follow it. With dotted, these are not empty, and the first of them may follow
// the name of the server after a dot.
func (f *serverFlags) target(cmd *cobra.Command, args []string, dotted bool) (*target, []string, error) {
	if dash := cmd.ArgsLenAtDash(); dash >= 0 && !f.completes {
		command := args[dash:]
		switch {
		case len(command) == 0:
			return nil, nil, usagef("no command after --: give a program and its arguments, as in -- npx -y @modelcontextprotocol/server-everything stdio")
		case dash > 0 && isURL(args[0]) && cmd.Name() != "resources": // URIs of resources are URLs, too
			return nil, nil, usagef("both a URL and a command (%s) are given: remove one", terminal.OneLine(command[0]))
		}
		for _, name := range []string{"header", "transport", "from"} {
			if cmd.Flags().Changed(name) && cmd.Flag(name).Annotations[fromVariable] == nil {
				return nil, nil, usagef("--%s is for a server with a URL or a name, and not for a command: leave it out", name)
			}
		}
		return &target{command: command}, args[:dash], nil
	}
	if len(args) == 0 {
		return nil, nil, usagef("no server: give its URL, as in %s http://127.0.0.1:8080/mcp, its name in the file of a host, or -- and a command", cmd.CommandPath())
	}
	if isURL(args[0]) {
		return &target{url: withScheme(args[0])}, args[1:], nil
	}
	found, rest, err := f.named(args, dotted)
	if err != nil {
		return nil, nil, err
	}
	if found == nil {
		return &target{url: withScheme(args[0])}, args[1:], nil
	}
	t, err := targetOf(found)
	if err != nil {
		return nil, nil, err
	}
	if file, err := filepath.Abs(found.At.File); err == nil {
		t.entry = followcall.Entry{File: file, Name: found.Name}
	}
	return t, rest, nil
}

// isURL reports whether a text can only be meant as a URL, with or without a scheme.
func isURL(text string) bool {
	return strings.ContainsAny(text, "/:") || strings.EqualFold(text, "localhost") || net.ParseIP(text) != nil
}

// urlOf returns the URL of a server that is given with or without a scheme. A text with another meaning, such as the name of a file, stays.
func urlOf(text string) string {
	if strings.Contains(text, "://") || !isURL(text) && !couldBeHost(text) || strings.HasPrefix(text, ".") {
		return text
	}
	if _, err := os.Stat(text); err == nil {
		return text // as where "--" before a command was forgotten
	}
	return withScheme(text)
}

// couldBeHost reports whether a text could be the name of a machine.
func couldBeHost(text string) bool {
	u, err := url.Parse("https://" + text)
	return err == nil && u.Host == text && strings.Contains(strings.Trim(text, "."), ".") && !strings.ContainsAny(text, " _@")
}

// targetOf returns the target for a server of a host's file. If its entry runs 'holdfast connect', the target is the server behind that: then
// calls survive this process.
func targetOf(s *config.Server) (*target, error) {
	if s.Type != config.Stdio {
		t := &target{url: s.URL, header: s.Header}
		switch s.Type {
		case config.HTTP:
			t.transport = "http"
		case config.SSE:
			t.transport = "sse"
		}
		return t, nil
	}
	t := &target{command: s.Command, env: s.Env, dir: s.Dir}
	if base := strings.TrimSuffix(filepath.Base(s.Command[0]), ".exe"); base != "holdfast" || len(s.Command) < 3 || s.Command[1] != "connect" {
		return t, nil
	}
	connect := newConnect()
	if err := connect.ParseFlags(s.Command[2:]); err != nil {
		return t, nil //nolint:nilerr // the command says what is wrong
	}
	plain := true
	fs := connect.Flags()
	for _, name := range changed(fs) {
		plain = plain && slices.Contains([]string{"header", "transport", "state", "task-after"}, name)
	}
	for name := range s.Env {
		plain = plain && (name == "HOLDFAST_HEADER" || name == "HOLDFAST_TRANSPORT")
	}
	switch rest := fs.Args(); {
	case !plain:
	case fs.ArgsLenAtDash() == 0 && len(rest) > 0:
		t.command = rest
	case fs.ArgsLenAtDash() < 0 && len(rest) == 1:
		headers, _ := fs.GetStringArray("header")
		if own := s.Env["HOLDFAST_HEADER"]; own != "" && !fs.Changed("header") {
			headers = listOf(own)
		}
		h, err := headerOf("the headers of the server in the host's file", headers)
		if err != nil {
			return nil, err
		}
		transport := fs.Lookup("transport").Value.String()
		if own := s.Env["HOLDFAST_TRANSPORT"]; own != "" && !fs.Changed("transport") {
			transport = own
		}
		return &target{url: rest[0], header: h, transport: transport}, nil
	}
	return t, nil
}

// dial returns a connection to a server, and a function that ends both. It sends nothing, but it starts the process of a command.
func (f *serverFlags) dial(t *target, opts *client.Options, change func(*login.Options)) (conn *client.Conn, done func(), err error) {
	to, stop := t.url, func() {}
	logout := func() {}
	if t.stdio() {
		if to, stop, err = t.start(opts); err != nil {
			return nil, nil, err
		}
	} else {
		for name, values := range t.header {
			if opts.Header.Get(name) == "" {
				opts.Header[name] = values
			}
		}
		if f.transport.value == "auto" && t.transport != "" {
			opts.Transport = transports[t.transport]
		}
		if logout, err = f.login.authorize(to, opts, change); err != nil {
			return nil, nil, err
		}
	}
	if conn, err = dial(to, opts); err != nil {
		logout()
		stop()
		return nil, nil, err
	}
	return conn, func() {
		_ = conn.Close()
		logout()
		stop()
	}, nil
}

// open begins a conversation with a server. done ends it; it may be called at any time.
func (f *serverFlags) open(cmd *cobra.Command, t *target) (ctx context.Context, p *peer, done func(), err error) {
	opts, err := f.options(slog.Default())
	if err != nil {
		return nil, nil, nil, err
	}
	opts.NoListen = true
	ctx, cancel := f.bounded(cmd.Context())
	conn, end, err := f.dial(t, opts, onTerminal(cmd.InOrStdin(), cmd.ErrOrStderr()))
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	done = func() {
		end()
		cancel()
	}
	if p, err = f.begin(ctx, conn, t.name(), nil); err != nil {
		done()
		return nil, nil, nil, f.late(ctx, err)
	}
	return ctx, p, done, nil
}

// bounded returns a context that ends after --timeout.
func (f *serverFlags) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if f.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, f.timeout, errTimeout)
}

// errTimeout is the cause of a context that --timeout has ended.
var errTimeout = errors.New("the time of --timeout is over")

// late returns the error of a command, or that of --timeout if that has ended the command.
func (f *serverFlags) late(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errTimeout) {
		return fmt.Errorf("no answer within %v (--timeout)", f.timeout)
	}
	return err
}

// start starts the process of a command, and returns the URL for the HTTP client of opts at which it is reached. No other program can reach it.
func (t *target) start(opts *client.Options) (to string, stop func(), err error) {
	log := opts.Logger
	if !log.Enabled(context.Background(), slog.LevelDebug) {
		log = slog.New(slog.DiscardHandler) // the user did not ask for the server's messages at its start; its end is an error of a request
	}
	o := &process.Options{Dir: t.dir, Logger: log, StderrToClient: true, Grace: time.Second}
	if t.env != nil {
		for _, v := range os.Environ() {
			if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "HOLDFAST_") {
				o.Env = append(o.Env, v)
			}
		}
		for name, value := range t.env {
			o.Env = append(o.Env, name+"="+value)
		}
	}
	b, err := process.New(t.command, o)
	if err != nil {
		return "", nil, err
	}
	handler := holdfast.NewBackendHandler(b, &holdfast.Options{Eras: holdfast.ErasBoth, MaxShare: 1, TaskAfter: -1, Logger: log})
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx) }}
	opts.HTTPClient, opts.Transport = &http.Client{Transport: transport}, client.HTTP
	return "http://localhost/mcp", func() {
		ctx, cancel := context.WithTimeout(context.Background(), callsEndWithin)
		defer cancel()
		_ = handler.Shutdown(ctx)
		transport.CloseIdleConnections()
		_ = server.Close()
		_ = b.Close()
	}, nil
}

// pipes is a listener within this process.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipes) dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements [net.Listener].
func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, io.EOF
	}
}

// Close implements [net.Listener].
func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements [net.Listener].
func (l *pipes) Addr() net.Addr { return pipeAddr{} }

// A pipeAddr is the address of pipes.
type pipeAddr struct{}

// Network implements [net.Addr].
func (pipeAddr) Network() string { return "pipe" }

// String implements [net.Addr].
func (pipeAddr) String() string { return "localhost" }

// hostServer is a server of a host's file.
type hostServer struct {
	*config.Server
	host string
}

// where says in which file a server is.
func (s *hostServer) where() string {
	return fmt.Sprintf("%s (%s)", s.At.File, cmp.Or(s.host, "--from"))
}
