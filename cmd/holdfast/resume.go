package main

import (
	"context"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/followcall"
	"holdfast/internal/terminal"
)

// resumeFlags are the flags of holdfast resume.
type resumeFlags struct {
	callTokenFlags
	follow followFlags
}

func newResume() *cobra.Command {
	f := resumeFlags{callTokenFlags: newCallTokenFlags()}
	cmd := &cobra.Command{
		Use:   "resume [flags] " + callArgs,
		Short: "Resume a call, on this machine or another",
		Long: `Resume follows a call that holdfast call has begun, on this machine or another, and
prints the result like holdfast call. ` + namedHelp + `
Without any, it is the only unfinished call of this machine that no other command follows.

Give the same --header as for the call. ` + trustHelp + `

Ctrl-C and the exit codes are those of holdfast call.`,
		Example: `  holdfast resume
  holdfast resume count-k3f9`,
		Args:              tokenArg,
		ValidArgsFunction: completeCalls,
		RunE:              f.resume,
	}
	f.add(cmd)
	f.follow.add(cmd)
	return cmd
}

// resume follows a call that another process began.
func (f *resumeFlags) resume(cmd *cobra.Command, args []string) error {
	calls := followcall.SavedCallsIn(f.follow.state)
	named, err := find(cmd, args, calls, true)
	if err != nil {
		return err
	}
	state := named.state
	f.headersOf(named)
	show := terminal.NewDisplay(cmd.ErrOrStderr())
	w, opts, err := f.follow.options(cmd, &f.remoteFlags, show)
	if err != nil {
		return err
	}
	w.Prompter = f.follow.prompter(cmd, show, state.URL, len(args) == 1 && args[0] == "-")
	asked := w.Prompter
	if !terminal.IsTerminal(cmd.InOrStdin()) {
		asked = nil // stdin has answers for the server
	}
	if err := f.trust(cmd.Context(), named, calls, asked); err != nil {
		return err
	}
	opts.State, opts.NoListen = &state, true
	if !cmd.Flag("log-level").Changed {
		opts.Logger = slog.New(slog.DiscardHandler) // the session does not matter
	}
	call := state.Calls[0]
	w.ID, w.Name = call.ID, "the call"
	if named.tool != "" {
		w.Name = terminal.OneLine(named.tool)
	}
	done, err := f.login.authorize(state.URL, opts, onDisplay(show, cmd.InOrStdin(), len(args) == 1 && args[0] == "-"))
	if err != nil {
		return err
	}
	defer done()
	if w.Conn, err = dial(state.URL, opts); err != nil {
		return err
	}
	defer w.Conn.Detach()
	w.Settled = settled(w.Conn, call)
	f.follow.save(calls, w, named.tool)
	m, err := f.follow.run(cmd.Context(), w)
	if err != nil {
		return err
	}
	_ = w.Conn.Close() // the session was made for the call
	return f.follow.print(m, w.Name, cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// settled returns a function that reports whether the server does not wait for an answer: then
// a question that it sends again was answered before.
func settled(conn *client.Conn, call client.CallState) func(context.Context) bool {
	return func(ctx context.Context) bool {
		status, err := conn.Status(ctx, call)
		if err != nil {
			slog.Debug("status", "error", err)
			return false
		}
		return !status.HasInputRequest
	}
}

// tokenArg takes at most one name or token, or the URL of a server and the id of a task.
func tokenArg(cmd *cobra.Command, args []string) error {
	if len(args) > 2 || len(args) == 2 && !strings.ContainsAny(args[0], ":/.") {
		return usagef("%s takes at most one name or token, or a URL and the id of a task", cmd.CommandPath())
	}
	return nil
}
