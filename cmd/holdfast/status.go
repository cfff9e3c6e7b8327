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
	"holdfast/internal/followcall"
	"holdfast/internal/terminal"
)

// statusWithin bounds how long the server may take to tell the status of a call.
const statusWithin = 30 * time.Second

// statusFlags are the flags of holdfast status.
type statusFlags struct {
	callTokenFlags
	state string
	json  bool
}

func newStatus() *cobra.Command {
	f := statusFlags{callTokenFlags: newCallTokenFlags()}
	cmd := &cobra.Command{
		Use:   "status [flags] " + callArgs,
		Short: "Print the status of a call",
		Long: `Status asks the server for the status of a call. It does not read the call's messages:
they stay for holdfast resume. ` + namedHelp + `
Without any, it is the only unfinished call of this machine.

It prints "processing", "completed" or "failed", and "waits for input" if the server
needs an answer to continue. With --json it also prints what is known of the call here: its
name, tool, last progress, and when it began, as in RFC 3339.

` + trustHelp + `

Exit codes: 0 the status is known, 1 it is not, 2 wrong command line, 3 the outcome
of the call is unknown.`,
		Example: `  holdfast status
  holdfast status --json count-k3f9`,
		Args:              tokenArg,
		ValidArgsFunction: completeCalls,
		RunE:              f.status,
	}
	f.add(cmd)
	addState(cmd, &f.state, "unfinished calls")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the status as JSON, with times as in RFC 3339")
	return cmd
}

func (f *statusFlags) status(cmd *cobra.Command, args []string) error {
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
	call := state.Calls[0]
	if !followcall.HasStatus(call) {
		return fmt.Errorf("%s gives no status: 'holdfast resume' may still resume the call", redacted(state.URL))
	}
	status, err := askStatus(cmd, state, &f.callTokenFlags, slog.Default(), statusWithin)
	if err != nil {
		return err
	}
	if f.json {
		return printJSON(cmd.OutOrStdout(), jsonOfStatus(named, status))
	}
	words := []string{terminal.OneLine(status.Status)}
	if status.HasInputRequest {
		words = append(words, "waits for input")
	}
	fmt.Fprintln(cmd.OutOrStdout(), strings.Join(words, ", "))
	return nil
}

// A statusJSON is the status of a call as JSON. Unknown members are left out.
type statusJSON struct {
	Name          string         `json:"name,omitempty"`
	Tool          string         `json:"tool,omitempty"`
	Task          string         `json:"task,omitempty"`
	Server        string         `json:"server"` // its URL, without secrets
	Status        string         `json:"status"`
	WaitsForInput bool           `json:"waitsForInput"`
	Unread        bool           `json:"unread"`           // the call has messages that were written to no client
	Began         time.Time      `json:"began,omitzero"`   // by the clock of this machine; of a task, by that of the server
	Updated       time.Time      `json:"updated,omitzero"` // when a message of the call last came here; of a task, when the server says that it changed
	Asked         time.Time      `json:"asked"`
	Progress      *terminal.Step `json:"progress,omitempty"`
}

func jsonOfStatus(c *namedCall, status client.Status) statusJSON {
	s := statusJSON{
		Tool: c.tool, Task: c.state.Calls[0].Task, Server: redacted(c.state.URL), Status: status.Status, WaitsForInput: status.HasInputRequest,
		Unread: status.HasPendingMessage, Began: status.Created, Updated: status.Updated, Asked: inUTC(time.Now()),
	}
	if k := c.kept; k != nil {
		s.Name, s.Progress = k.Name, k.Progress
		if s.Began.IsZero() {
			s.Began, s.Updated = inUTC(k.Began), inUTC(k.Updated)
		}
	}
	return s
}

// askStatus asks the server for the status of the first call of a State. The call is not resumed:
// its messages are for holdfast resume. The error is a [codeError] if the outcome of the call is
// unknown.
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
