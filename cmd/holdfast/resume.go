package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/follow"
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
		Use:   "resume [flags] [TOKEN | URL TASK]",
		Short: "Resume a call, on this machine or another",
		Long: `Resume follows a call that holdfast call has begun, on this machine or another, and
prints the result like holdfast call. TOKEN is what holdfast call has printed; -
reads it from stdin. A task is named by the server's URL and its id. Without either, it
is the newest call that is saved here and that no other command follows.

Give the same --header as for the call. ` + trustHelp + `

Ctrl-C and the exit codes are those of holdfast call.`,
		Example:           `  holdfast resume`,
		Args:              tokenArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              f.resume,
	}
	f.add(cmd)
	f.follow.add(cmd)
	return cmd
}

// resume follows a call that another process began.
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
	w.Prompter = f.follow.prompter(cmd, show, state.URL, len(args) == 1 && args[0] == "-")
	asked := w.Prompter
	if !terminal.IsTerminal(cmd.InOrStdin()) {
		asked = nil // stdin has answers for the server
	}
	if err := f.trust(cmd.Context(), args, state, calls, asked); err != nil {
		return err
	}
	opts.State, opts.NoListen = &state, true
	if !cmd.Flag("log-level").Changed {
		opts.Logger = slog.New(slog.DiscardHandler) // the session does not matter
	}
	call := state.Calls[0]
	w.ID, w.Name = call.ID, "the call"
	if call.Name != "" {
		w.Name = terminal.OneLine(call.Name)
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
	f.follow.save(calls, w)
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

// tokenArg takes at most one token, or the URL of a server and the id of a task.
func tokenArg(cmd *cobra.Command, args []string) error {
	if len(args) > 2 || len(args) == 2 && !strings.Contains(args[0], "://") {
		return usagef("%s takes at most one token, or a URL and the id of a task", cmd.CommandPath())
	}
	return nil
}

// find returns the state of the call that the command line names: by its token, "-" for a
// token on stdin, a URL and the id of a task, or nothing for the newest call that is saved.
func find(cmd *cobra.Command, args []string, calls follow.SavedCalls, unfollowed bool) (client.State, error) {
	if len(args) == 0 {
		if calls.IsZero() {
			return client.State{}, usagef("no call: give the token that holdfast call printed")
		}
		return calls.Newest(unfollowed)
	}
	if len(args) == 2 {
		return client.State{URL: args[0], Calls: []client.CallState{{ID: []byte(`"task"`), Method: follow.ToolsCall, Task: args[1]}}}, nil
	}
	text := args[0]
	if text == "-" {
		data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), follow.MaxToken))
		if err != nil {
			return client.State{}, fmt.Errorf("read the token: %w", err)
		}
		text = string(data)
	}
	if strings.Contains(text, "://") {
		return client.State{}, usagef("a URL alone names no call: give the id of a task after it, or a token as holdfast call prints it")
	}
	s, err := follow.ParseToken(text)
	if err != nil {
		return s, usageError{err}
	}
	return s, nil
}
