package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"holdfast/internal/bridge"
)

// connectFlags are the flags of holdfast connect.
type connectFlags struct {
	remoteFlags
	state string
}

func newConnect() *cobra.Command {
	f := connectFlags{remoteFlags: newRemoteFlags()}
	cmd := &cobra.Command{
		Use:   "connect [flags] URL",
		Short: "Be the stdio server that a host wants, for a remote one",
		Long: `Connect speaks stdio to the program that runs it, an MCP host, and HTTP to a remote
server, over as many connections as it takes. It is what a host's configuration
names as the command of a server.

A host that kills it and runs it again loses nothing: the session goes on, and a
call that was in flight is not made a second time when the host makes the same one
again within ten minutes, but gets the answer of the first.

With --state '' it keeps nothing, and ends the session when its stdin ends and
everything has been answered.`,
		Example: `  holdfast connect https://example.com/mcp --header 'Authorization: Bearer TOKEN'

In the configuration of a host:
  {"mcpServers": {"example": {"command": "holdfast", "args": ["connect", "https://example.com/mcp"]}}}`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("which server? Give its URL, as in %s http://127.0.0.1:8080/mcp", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.connect(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f.add(cmd)
	addState(cmd, &f.state, "sessions and what is in flight")
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
	return bridge.Run(ctx, to, in, out, &bridge.Options{Client: *opts, Transport: f.transport.value, State: f.state})
}
