package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/follow"
	"holdfast/internal/terminal"
)

// statusWithin bounds how long the server may take to say how a call is.
const statusWithin = 30 * time.Second

// statusFlags are the flags of holdfast status.
type statusFlags struct {
	callTokenFlags
	state string
}

func newStatus() *cobra.Command {
	f := statusFlags{callTokenFlags: newCallTokenFlags()}
	cmd := &cobra.Command{
		Use:   "status [flags] [TOKEN | URL TASK]",
		Short: "Print the status of a call",
		Long: `Status asks the server for the status of a call. It does not read the call's messages:
they stay for holdfast resume. TOKEN is what holdfast call has printed; - reads it
from stdin. A task is named by the server's URL and its id. Without either, it is the
newest call that is saved here.

It prints "processing", "completed" or "failed", and "waits for input" if the server
needs an answer to continue.

` + trustHelp + `

Exit codes: 0 the status is known, 1 it is not, 2 wrong command line, 3 the outcome
of the call is unknown.`,
		Example:           `  holdfast status`,
		Args:              tokenArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              f.status,
	}
	f.add(cmd)
	addState(cmd, &f.state, "unfinished calls")
	return cmd
}

func (f *statusFlags) status(cmd *cobra.Command, args []string) error {
	calls := follow.SavedCallsIn(f.state)
	state, err := find(cmd, args, calls, false)
	if err != nil {
		return err
	}
	if err := f.trust(cmd.Context(), args, state, calls, prompterFor(cmd, args, state.URL)); err != nil {
		return err
	}
	call := state.Calls[0]
	if call.Token == "" && call.Task == "" {
		return fmt.Errorf("%s gives no status: 'holdfast resume' may still resume the call", redacted(state.URL))
	}
	status, err := askStatus(cmd, state, &f.callTokenFlags, slog.Default(), statusWithin)
	if err != nil {
		return err
	}
	words := []string{terminal.OneLine(status.Status)}
	if status.HasInputRequest {
		words = append(words, "waits for input")
	}
	fmt.Fprintln(cmd.OutOrStdout(), strings.Join(words, ", "))
	return nil
}

// askStatus asks the server for the status of the first call of a State. The call is not resumed:
// its messages are for holdfast resume. The error is a [codeError] where it says more than that the
// command failed.
func askStatus(cmd *cobra.Command, state client.State, f *callTokenFlags, log *slog.Logger, within time.Duration) (client.Status, error) {
	opts, err := f.options(log)
	if err != nil {
		return client.Status{}, err
	}
	call := state.Calls[0]
	state.Calls = nil
	opts.State, opts.NoListen = &state, true
	done, err := f.login.authorize(state.URL, opts, briefly(cmd, within))
	if err != nil {
		return client.Status{}, err
	}
	defer done()
	conn, err := dial(state.URL, opts)
	if err != nil {
		return client.Status{}, err
	}
	defer conn.Detach()
	ctx, stop := context.WithTimeoutCause(cmd.Context(), within, errors.New("the server is out of reach, or does not answer"))
	defer stop()
	status, err := conn.Status(ctx, call)
	if errors.Is(err, context.DeadlineExceeded) {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", redacted(state.URL), f.explained(err))
		if outcomeUnknown(err) {
			err = codeError{exitUnknown, err}
		}
	}
	return status, err
}
