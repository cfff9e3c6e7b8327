package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/follow"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// cancelFlags are the flags of holdfast cancel.
type cancelFlags struct {
	remoteFlags
	state string
}

func newCancel() *cobra.Command {
	f := cancelFlags{remoteFlags: newRemoteFlags()}
	cmd := &cobra.Command{
		Use:   "cancel [flags] [TOKEN | URL TASK]",
		Short: "Cancel a call",
		Long: `Cancel tells the server to cancel a call. TOKEN is what holdfast call has printed; -
reads it from stdin. A task is named by the server's URL and its id. Without either, it
is the newest call that is saved here and that no other command follows.

The server may end the call later, or not at all: holdfast status shows that.`,
		Example:           `  holdfast cancel`,
		Args:              tokenArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              f.cancel,
	}
	f.add(cmd)
	addState(cmd, &f.state, "unfinished calls")
	return cmd
}

// cancelWithin bounds how long the server may take to hear of a cancellation.
const cancelWithin = 10 * time.Second

func (f *cancelFlags) cancel(cmd *cobra.Command, args []string) error {
	state, err := find(cmd, args, follow.SavedCallsIn(f.state), true)
	if err != nil {
		return err
	}
	opts, err := f.options(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	call := state.Calls[0]
	opts.State, opts.NoListen = &state, true
	conn, err := dial(state.URL, opts)
	if err != nil {
		return err
	}
	defer conn.Detach()
	params := fmt.Appendf(nil, `{"requestId":%s,"reason":"the user cancelled it"}`, call.ID)
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, nil, protocol.MethodCancelled, params))
	if err != nil {
		return err
	}
	if err := conn.Send(cmd.Context(), m); err != nil {
		return err
	}
	late := time.After(cancelWithin)
	for len(conn.State().Calls) > 0 {
		select {
		case <-late:
			return fmt.Errorf("%s: the server could not be told to cancel the call", redacted(state.URL))
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	fmt.Fprintln(cmd.OutOrStdout(), "the server was told to cancel it")
	return nil
}
