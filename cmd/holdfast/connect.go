package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/bridge"
)

// connectFlags are the flags of holdfast connect.
type connectFlags struct {
	remoteFlags
	state     string
	taskAfter time.Duration
}

func newConnect() *cobra.Command {
	f := connectFlags{remoteFlags: newRemoteFlags()}
	cmd := &cobra.Command{
		Use:   "connect [flags] URL",
		Short: "Make a remote server available to a stdio host",

		SuggestFor: []string{"client", "stdio", "bridge", "remote"},

		Long: `Connect carries messages between an MCP host, over stdio, and a remote server, over
HTTP or a WebSocket. In the host's configuration it is the command of a server. When
a connection is cut, it reconnects and resumes; the host does not notice.

A host may also kill connect and start it again. The session continues. If a call
was in flight, and the host repeats it within ten minutes, the call does not run a
second time: the host gets the response of the first.

Host and server may speak different revisions of the protocol. For a host of revision
2026-07-28 that knows tasks, a call that takes longer than --task-after becomes one. If
the server has tasks itself, the host gets those.

When stdin ends, connect waits for the responses to all requests. SIGTERM ends it at
once: a request without a response gets an error, and a call goes on at the server. With
--state '', connect keeps nothing on disk, and ends the session with itself.`,
		Example: `  holdfast connect https://example.com/mcp --header 'Authorization: Bearer TOKEN'

In the configuration of a host:
  {"mcpServers": {"example": {"command": "holdfast", "args": ["connect", "https://example.com/mcp"]}}}`,
		Args:              oneServer,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.connect(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f.add(cmd)
	addState(cmd, &f.state, "sessions and calls in flight")
	cmd.Flags().DurationVar(&f.taskAfter, "task-after", 2*time.Second, "how long a call may take before it becomes a task, for a host that supports tasks; 0: never")
	return cmd
}

// connect carries messages between a host and a server until the host leaves.
func (f *connectFlags) connect(ctx context.Context, to string, in io.Reader, out io.Writer) error {
	opts, err := f.options(slog.Default())
	if err != nil {
		return err
	}
	conn, err := dial(to, opts)
	if err != nil {
		return err // the URL is wrong
	}
	conn.Detach()
	explain := func(text string) string { return f.explained(errors.New(text)).Error() }
	return bridge.Run(ctx, to, in, out, &bridge.Options{Client: *opts, Transport: f.transport.value, State: f.state, TaskAfter: max(f.taskAfter, 0), Explain: explain})
}
