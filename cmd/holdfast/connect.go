package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/backend/process"
	"holdfast/internal/bridge"
	"holdfast/internal/defaults"
	"holdfast/internal/login"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// connectFlags are the flags of holdfast connect.
type connectFlags struct {
	remoteFlags
	login     loginFlags
	state     string
	taskAfter time.Duration
}

func newConnect() *cobra.Command {
	f := connectFlags{remoteFlags: newRemoteFlags(), login: newLoginFlags()}
	cmd := &cobra.Command{
		Use:   "connect [flags] URL\n  holdfast connect [flags] -- COMMAND ARG...",
		Short: "Make a remote server available to a stdio host",

		SuggestFor: []string{"client", "stdio", "bridge", "remote"},

		Long: `Connect carries messages between an MCP host, over stdio, and a remote server, over
HTTP or a WebSocket. In the host's configuration it is the command of a server, which
'holdfast install' puts there. When a connection is cut, it reconnects and resumes; the
host does not notice.

A host may also kill connect and start it again. The session continues. If a call
was in flight, and the host repeats it within ten minutes, the call does not run a
second time: the host gets the response of the first.

Host and server may speak different revisions of the protocol. For a host of revision
2026-07-28 that knows tasks, a call that takes longer than --task-after becomes one. If
the server has tasks itself, the host gets those.

When stdin ends, connect waits for the responses to all requests. SIGTERM ends it at
once: a request without a response gets an error, and a call goes on at the server. With
--state '', connect keeps nothing on disk, and ends the session with itself.

With a COMMAND, connect runs a stdio server itself, and stands between it and the host. If
the server's process ends, its calls fail at once, the outcome of calls that may have run
is said to be unknown, and the process is started again. The server ends with connect.`,
		Example: `  holdfast connect https://example.com/mcp --header 'Authorization: Bearer TOKEN'
  holdfast connect -- npx -y @modelcontextprotocol/server-everything stdio

In the configuration of a host:
  {"mcpServers": {"example": {"command": "holdfast", "args": ["connect", "https://example.com/mcp"]}}}`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 || len(args) == 0 {
				return oneServer(cmd, args)
			}
			for _, name := range []string{"header", "transport", "state"} {
				if cmd.Flags().Changed(name) {
					return usagef("--%s is for a server with a URL, and not for a command: leave it out", name)
				}
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() == 0 {
				return f.run(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout())
			}
			return f.connect(cmd.Context(), urlOf(args[0]), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f.add(cmd)
	f.login.add(cmd)
	addState(cmd, &f.state, "sessions and calls in flight")
	offDurationVar(cmd.Flags(), &f.taskAfter, "task-after", defaults.TaskAfter, "how long a call may take before it becomes a task, for a host that supports tasks; 0: never")
	return cmd
}

// serverWithin is how long a server may be out of reach at the start: hosts wait for 30 s, and never ask again.
const serverWithin = 25 * time.Second

// connect carries messages between a host and a server until the host leaves.
func (f *connectFlags) connect(ctx context.Context, to string, in io.Reader, out io.Writer) error {
	opts, err := f.options(slog.Default())
	if err != nil {
		return err
	}
	opts.BeginWithin = serverWithin
	done, err := f.login.authorize(to, opts, func(o *login.Options) {
		o.Once = true // a host may start connect again and again
		o.Command = "holdfast login " + redacted(to)
	})
	if err != nil {
		return err
	}
	defer done()
	conn, err := dial(to, opts)
	if err != nil {
		return err // the URL is wrong
	}
	conn.Detach()
	explain := func(text string) string { return f.explained(errors.New(text)).Error() }
	return bridge.Run(ctx, to, in, out, &bridge.Options{Client: *opts, Transport: f.transport.value, State: f.state, TaskAfter: max(f.taskAfter, 0), Explain: explain})
}

// Bounds of the end of a command that connect runs: how long calls may go on after SIGTERM, and how long the host may take
// to read that they have ended.
const (
	callsEndWithin = 100 * time.Millisecond
	leaveWithin    = 2 * time.Second
	beginsWithin   = 2 * time.Second // how long a server may go on to begin when the host, which asked for nothing else, has left
)

// A beginning reads the messages of a host. It notes whether there are more than those that begin a conversation.
type beginning struct {
	io.Reader
	left func() // called at the end of the input if there are no more

	line []byte // the beginning of a line; nil: there is none
	more bool
	over bool
}

// mostBeginning bounds a line that begins a conversation, in bytes.
const mostBeginning = 64 << 10

// Read implements [io.Reader].
func (b *beginning) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if !b.more {
		b.note(p[:n])
	}
	if err != nil && !b.over {
		b.over = true
		if b.note([]byte{'\n'}); !b.more {
			b.left()
		}
	}
	return n, err
}

// note takes in the bytes that were read.
func (b *beginning) note(text []byte) {
	for len(text) > 0 && !b.more {
		part, rest, whole := bytes.Cut(text, []byte{'\n'})
		b.line, text = append(b.line, part...), rest
		b.more = len(b.line) > mostBeginning
		if whole {
			msgs, err := rpc.Parse(bytes.TrimSpace(b.line))
			b.more = b.more || err != nil && len(bytes.TrimSpace(b.line)) > 0 || slices.ContainsFunc(msgs, func(m jsonrpc.Message) bool {
				return m.Kind == jsonrpc.Request && m.Method != protocol.MethodInitialize && m.Method != protocol.MethodDiscover
			})
			b.line = b.line[:0]
		}
	}
	if b.more {
		b.line = nil
	}
}

// run carries messages between a host and a command until the host leaves.
func (f *connectFlags) run(ctx context.Context, command []string, in io.Reader, out io.Writer) error {
	b, err := process.New(command, nil)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	handler := holdfast.NewBackendHandler(b, &holdfast.Options{
		Eras: holdfast.ErasBoth, TaskAfter: f.taskAfter, MaxShare: 1,
		CutGrace: holdfast.Never, // the host is gone for good when its pipe ends
	})
	served, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	shutDown := sync.OnceFunc(func() {
		last, cancel := context.WithTimeout(served, callsEndWithin)
		defer cancel()
		_ = handler.Shutdown(last) // calls that are in flight then end with an error
	})
	// At SIGTERM calls end, and are answered before connect ends.
	defer context.AfterFunc(ctx, func() {
		shutDown()
		time.AfterFunc(leaveWithin, stop)
	})()
	// A host that has asked for nothing but the beginning, and leaves, gave up on a server that does not begin.
	begins := &beginning{Reader: in, left: func() {
		time.AfterFunc(beginsWithin, func() {
			shutDown()
			time.AfterFunc(leaveWithin, stop)
		})
	}}
	err = handler.ServeConn(served, begins, out)
	shutDown()
	if ctx.Err() != nil {
		return nil // this is how hosts end their servers
	}
	return err
}
