package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/follow"
	"holdfast/internal/terminal"
)

// resumeFlags are the flags of holdfast resume.
type resumeFlags struct {
	remoteFlags
	follow followFlags
}

func newResume() *cobra.Command {
	f := resumeFlags{remoteFlags: newRemoteFlags()}
	cmd := &cobra.Command{
		Use:   "resume [flags] [TOKEN]",
		Short: "Go on with a call, here or on another machine",
		Long: `Resume goes on with a call that holdfast call has begun, on this machine or on
another, and prints its result as that would have done. TOKEN is what holdfast call
printed, - reads it from stdin, and without one it is the newest call that is kept
here and not followed by another command.

What --header gave to the call must be given again. Ctrl-C and the exit codes are
those of holdfast call.`,
		Example:           `  holdfast resume`,
		Args:              tokenArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              f.resume,
	}
	f.add(cmd)
	f.follow.add(cmd)
	return cmd
}

// resume follows a call that was begun before.
func (f *resumeFlags) resume(cmd *cobra.Command, args []string) error {
	calls := follow.SavedCallsIn(f.follow.state)
	state, err := find(cmd, args, calls, true)
	if err != nil {
		return err
	}
	show := terminal.NewDisplay(cmd.ErrOrStderr())
	w, opts, err := f.follow.options(cmd, &f.remoteFlags, show)
	if err != nil {
		return err
	}
	opts.State, opts.NoListen = &state, true
	if !cmd.Flag("log-level").Changed {
		opts.Logger = slog.New(slog.DiscardHandler) // what becomes of the session is no matter
	}
	call := state.Calls[0]
	w.ID, w.Name = call.ID, "the call"
	if call.Name != "" {
		w.Name = terminal.OneLine(call.Name)
	}
	if w.Conn, err = dial(state.URL, opts); err != nil {
		return err
	}
	defer w.Conn.Detach()
	stdin := len(args) == 1 && args[0] == "-"
	w.Prompter = f.follow.prompter(cmd, show, state.URL, stdin)
	w.Settled = settled(w.Conn, call)
	f.follow.keep(calls, w)
	m, err := f.follow.run(cmd.Context(), w)
	if err != nil {
		return err
	}
	_ = w.Conn.Close() // the session was for the call
	return f.follow.print(m, w.Name, cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// settled says whether a question that comes from the past has been answered: then
// the server does not wait for an answer.
func settled(conn *client.Conn, call client.CallState) func(context.Context) bool {
	return func(ctx context.Context) bool {
		status, err := conn.Status(ctx, call.ID)
		if err != nil {
			slog.Debug("status", "error", err)
			return false
		}
		return !status.HasInputRequest
	}
}

// tokenArg takes at most one argument.
func tokenArg(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("%s takes one token at the most", cmd.CommandPath())
	}
	return nil
}

// find returns the state that a token on the command line stands for: "-" reads it
// from stdin, and without one it is the newest that is kept.
func find(cmd *cobra.Command, args []string, calls follow.SavedCalls, idle bool) (client.State, error) {
	if len(args) == 0 {
		if calls.IsZero() {
			return client.State{}, usagef("which call? Give the token that holdfast call printed")
		}
		return calls.Newest(idle)
	}
	text := args[0]
	if text == "-" {
		data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), follow.MaxToken))
		if err != nil {
			return client.State{}, fmt.Errorf("read the token: %w", err)
		}
		text = string(data)
	}
	s, err := follow.ParseToken(text)
	if err != nil {
		return s, usageError{err}
	}
	return s, nil
}
