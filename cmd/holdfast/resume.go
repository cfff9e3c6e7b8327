package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"holdfast/client"
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
	calls := callsIn(f.follow.state)
	state, err := find(cmd, args, calls, true)
	if err != nil {
		return err
	}
	show := terminal.NewDisplay(cmd.ErrOrStderr())
	w, opts, err := f.follow.watch(cmd, &f.remoteFlags, show)
	if err != nil {
		return err
	}
	opts.State, opts.NoListen = &state, true
	if !cmd.Flag("log-level").Changed {
		opts.Logger = slog.New(slog.DiscardHandler) // what becomes of the session is no matter
	}
	call := state.Calls[0]
	w.id, w.name = call.ID, "the call"
	if call.Name != "" {
		w.name = terminal.OneLine(call.Name)
	}
	if w.conn, err = dial(state.URL, opts); err != nil {
		return err
	}
	defer w.conn.Detach()
	stdin := len(args) == 1 && args[0] == "-"
	w.ask = f.follow.prompter(cmd, show, state.URL, stdin)
	w.asked = settled(w.conn, call)
	if w.keeper, err = calls.keep(w.id); err != nil {
		show.Printf("holdfast: where the call is cannot be kept: %v", err)
	}
	m, err := w.run(cmd.Context())
	if err != nil {
		return err
	}
	_ = w.conn.Close() // the session was for the call
	return f.follow.print(m, w.name, cmd.OutOrStdout(), cmd.ErrOrStderr())
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
