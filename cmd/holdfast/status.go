package main

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/internal/follow"
	"holdfast/internal/terminal"
)

// statusFlags are the flags of holdfast status.
type statusFlags struct {
	remoteFlags
	state string
}

func newStatus() *cobra.Command {
	f := statusFlags{remoteFlags: newRemoteFlags()}
	cmd := &cobra.Command{
		Use:   "status [flags] [TOKEN]",
		Short: "Ask how a call is doing",
		Long: `Status asks the server how a call is doing, and leaves what it has said to holdfast
resume. TOKEN is what holdfast call printed, - reads it from stdin, and without one
it is the newest call that is kept here.

It prints "processing", "completed" or "failed", and "waits for input" where the
server wants an answer before it can go on.

Exit codes: 0 the status is known, 1 it is not, 2 the command line is wrong, 3 the
call's outcome is unknown.`,
		Example:           `  holdfast status`,
		Args:              tokenArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              f.status,
	}
	f.add(cmd)
	addState(cmd, &f.state, "calls that are not over")
	return cmd
}

func (f *statusFlags) status(cmd *cobra.Command, args []string) error {
	state, err := find(cmd, args, follow.SavedCallsIn(f.state), false)
	if err != nil {
		return err
	}
	call := state.Calls[0]
	if call.Token == "" {
		return fmt.Errorf("%s gives no status: 'holdfast resume' may still go on with the call", redacted(state.URL))
	}
	opts, err := f.options(slog.Default())
	if err != nil {
		return err
	}
	// The call is not gone on with: its messages are for holdfast resume.
	state.Calls = nil
	opts.State, opts.NoListen = &state, true
	conn, err := dial(state.URL, opts)
	if err != nil {
		return err
	}
	defer conn.Detach()
	status, err := conn.StatusOf(cmd.Context(), call)
	if err != nil {
		err = fmt.Errorf("%s: %w", redacted(state.URL), f.explained(err))
		if outcomeUnknown(err) {
			return codeError{exitUnknown, err}
		}
		return err
	}
	words := []string{terminal.OneLine(status.Status)}
	if status.HasInputRequest {
		words = append(words, "waits for input")
	}
	fmt.Fprintln(cmd.OutOrStdout(), strings.Join(words, ", "))
	return nil
}
