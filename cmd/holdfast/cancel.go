package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/followcall"
	"holdfast/internal/protocol"
	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// cancelFlags are the flags of holdfast cancel.
type cancelFlags struct {
	callTokenFlags
	state string
}

func newCancel() *cobra.Command {
	f := cancelFlags{callTokenFlags: newCallTokenFlags()}
	cmd := &cobra.Command{
		Use:   "cancel [flags] " + callArgs,
		Short: "Cancel a call",
		Long: `Cancel tells the server to cancel a call. ` + namedHelp + `
Without any, it is the only unfinished call of this machine.

The server may end the call later, or not at all: holdfast status shows that.

` + trustHelp + `

Exit codes: 0 the server was told, or the call has ended, 1 it could not be told, 2 wrong
command line, 3 the outcome of the call is unknown.`,
		Example: `  holdfast cancel
  holdfast cancel count-k3f9`,
		Args:              tokenArg,
		ValidArgsFunction: completeCalls,
		RunE:              f.cancel,
	}
	f.add(cmd)
	addState(cmd, &f.state, "unfinished calls")
	return cmd
}

// cancelWithin bounds how long the server may take to hear of a cancellation.
const cancelWithin = 10 * time.Second

func (f *cancelFlags) cancel(cmd *cobra.Command, args []string) error {
	calls := followcall.SavedCallsIn(f.state)
	named, err := find(cmd, args, calls, false)
	if err != nil {
		return err
	}
	state := named.state
	f.headersOf(named)
	if err := f.trust(cmd.Context(), named, calls, prompterFor(cmd, args, state.URL)); err != nil {
		return err
	}
	opts, err := f.options(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	call := state.Calls[0]
	notice := time.AfterFunc(tellAfter, func() { slog.Info("no answer yet, waiting", "server", redacted(state.URL), "at most", cancelWithin) })
	defer notice.Stop()
	if followcall.HasStatus(call) { // a cancellation has no answer that says more
		status, err := askStatus(cmd, state, &f.callTokenFlags, slog.New(slog.DiscardHandler), cancelWithin)
		switch {
		case err != nil:
			return err
		case status.Status != "processing":
			fmt.Fprintf(cmd.OutOrStdout(), "it has ended already: %s\n", terminal.OneLine(status.Status))
			return nil
		}
	}
	opts.State, opts.NoListen = &state, true
	done, err := f.login.authorize(state.URL, opts, briefly(cmd, cancelWithin))
	if err != nil {
		return err
	}
	defer done()
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
	calls.Cancelled(state)
	fmt.Fprintln(cmd.OutOrStdout(), "the server was told to cancel it")
	return nil
}
