package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/followcall"
	"holdfast/internal/terminal"
)

// callTokenFlags are the flags of all commands that are about a call that another process began.
type callTokenFlags struct {
	remoteFlags
	login  loginFlags
	server string
}

func (f *callTokenFlags) add(cmd *cobra.Command) {
	f.remoteFlags.add(cmd)
	f.login.add(cmd)
	cmd.Flags().StringVar(&f.server, "server", "", "`URL` of the server that the token must be of; --header is sent there without a question")
}

func newCallTokenFlags() callTokenFlags {
	return callTokenFlags{remoteFlags: newRemoteFlags(), login: newLoginFlags()}
}

// trustHelp is the part of those commands' help about headers.
const trustHelp = `A token names the server that it is of, and --header is sent there. If nothing from here
went to that server before, you are asked; without a terminal, give --server.`

// namedHelp is the part of those commands' help about naming a call.
const namedHelp = `NAME is what holdfast call has printed on this machine, or the beginning of it: 'holdfast
calls' lists the names. TOKEN is what 'holdfast call --token' has printed, on any machine; -
reads it from stdin. A task is named by the server's URL and its id.`

// callArgs are the arguments by which those commands name a call.
const callArgs = "[NAME | TOKEN | URL TASK]"

// A namedCall is the call that a command line names.
type namedCall struct {
	state client.State
	tool  string
	kept  *followcall.Kept // nil: the call is not saved here, or is named by a token or a task
	token bool             // it is named by a token, which may be of a server that the user does not know
	named bool             // by a token, or by the URL of its server
}

// errNotTrusted says that the user does not want headers to be sent to the server of a token.
var errNotTrusted = errors.New("nothing was sent")

// trust returns an error if headers must not be sent to the server of a call. prompter may be nil: then no user can be asked.
func (f *callTokenFlags) trust(ctx context.Context, call *namedCall, calls followcall.SavedCalls, prompter *terminal.Prompter) error {
	to := call.state.URL
	origin := followcall.OriginOf(to)
	switch {
	case f.server != "" && followcall.OriginOf(f.server) == "":
		return usagef("--server: want a URL like https://mcp.example.com/mcp")
	case f.server != "" && followcall.OriginOf(f.server) != origin:
		return fmt.Errorf("the call is at %s, and not at %s (--server): nothing was sent", terminal.OneLine(origin), followcall.OriginOf(f.server))
	case f.server == "" && call.token && len(f.headers) > 0 && !calls.Knows(to):
		if prompter == nil {
			return fmt.Errorf("the token is of %s, where nothing from here went before, and --header would be sent there: give --server %[1]s if you trust it", terminal.OneLine(origin))
		}
		yes, err := prompter.Consents(ctx, fmt.Sprintf("The token is of %s, where nothing from here went before. Send --header there?", terminal.OneLine(origin)))
		if err != nil {
			return err
		}
		if !yes {
			return errNotTrusted
		}
	}
	if f.server != "" || call.named && len(f.headers) > 0 {
		calls.Remember(to)
	}
	return nil
}

// prompterFor returns a prompter for the user's terminal; nil if there is none.
func prompterFor(cmd *cobra.Command, args []string, to string) *terminal.Prompter {
	in := cmd.InOrStdin()
	if len(args) == 1 && args[0] == "-" || !terminal.IsTerminal(in) || !terminal.NewDisplay(cmd.ErrOrStderr()).TTY() {
		return nil
	}
	return terminal.NewPrompter(in, cmd.ErrOrStderr(), serverName(to))
}

// find returns the call that the command line names: by its name here, by its token, "-" for a token on stdin, by a URL and the id of a task, or by nothing,
// if there is only one call. With unfollowed, calls that other commands follow do not count then.
func find(cmd *cobra.Command, args []string, calls followcall.SavedCalls, unfollowed bool) (*namedCall, error) {
	switch len(args) {
	case 0:
		if calls.IsZero() {
			return nil, usagef("no call: give the token that holdfast call printed")
		}
		if err := calls.Readable(); err != nil {
			return nil, wrongFile("--state", err)
		}
		k, err := calls.Only(unfollowed)
		if err != nil {
			return nil, whichCall(err)
		}
		return &namedCall{state: k.State, tool: k.Tool, kept: &k}, nil
	case 2:
		s := client.State{URL: withScheme(args[0]), Calls: []client.CallState{{ID: []byte(`"task"`), Method: followcall.ToolsCall, Task: args[1]}}}
		return &namedCall{state: s, named: true}, nil
	}
	text := args[0]
	if text == "-" {
		data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), followcall.MaxToken))
		if err != nil {
			return nil, fmt.Errorf("read the token: %w", err)
		}
		text = string(data)
	}
	if strings.Contains(text, "://") {
		return nil, usagef("a URL alone names no call: give the id of a task after it, or a name or token as holdfast call prints it")
	}
	if !followcall.IsToken(text) {
		if err := calls.Readable(); err != nil {
			return nil, wrongFile("--state", err)
		}
		k, ok, err := calls.Find(text)
		switch {
		case err != nil:
			return nil, whichCall(err)
		case ok:
			return &namedCall{state: k.State, tool: k.Tool, kept: &k}, nil
		}
		return nil, noSuchCall(calls, text)
	}
	s, err := followcall.ParseToken(text)
	if err != nil {
		return nil, usageError{err}
	}
	return &namedCall{state: s, tool: s.Calls[0].Name, token: true, named: true}, nil
}

// headersOf makes a connection send the headers of the server's entry in the file of a host, if the call was begun with them.
func (f *callTokenFlags) headersOf(call *namedCall) {
	if call.kept == nil || call.kept.Entry.Name == "" {
		return
	}
	from := serverFlags{from: call.kept.Entry.File}
	found, _, err := from.named([]string{call.kept.Entry.Name}, false)
	if err != nil || found == nil {
		return // the server says what it wants
	}
	if t, err := targetOf(found); err == nil && followcall.OriginOf(t.url) == followcall.OriginOf(call.state.URL) {
		f.entry = t.header
	}
}

// noSuchCall returns the error for a name that no unfinished call has.
func noSuchCall(calls followcall.SavedCalls, name string) error {
	var names []string
	for _, k := range calls.List() {
		names = append(names, k.Name)
	}
	text := fmt.Sprintf("no unfinished call here has the name %q", terminal.OneLine(name))
	if near := nearest(strings.ToLower(name), names); near != "" {
		return usagef("%s: did you mean %s?", text, near)
	}
	if len(names) > 0 {
		text += ": 'holdfast calls' lists them"
	}
	return usagef("%s (a token of another machine begins with %q)", text, followcall.TokenPrefix)
}

// whichCall adds the list of calls to an error that says that several may be meant.
func whichCall(err error) error {
	var several *followcall.Several
	if !errors.As(err, &several) {
		return err
	}
	var b strings.Builder
	writeCalls(&b, several.Calls)
	return usagef("%w\n%s", err, strings.TrimRight(b.String(), "\n"))
}
