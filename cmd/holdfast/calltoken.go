package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/follow"
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

// trustHelp is what the help of those commands says of headers.
const trustHelp = `A token names the server that it is of, and --header is sent there. If nothing from here
went to that server before, you are asked; without a terminal, give --server.`

// errNotTrusted says that the user does not want headers to be sent to the server of a token.
var errNotTrusted = errors.New("nothing was sent")

// trust returns an error if headers must not be sent to the server of a call. args are those that name it.
// prompter may be nil: then nobody can be asked.
func (f *callTokenFlags) trust(ctx context.Context, args []string, state client.State, calls follow.SavedCalls, prompter *terminal.Prompter) error {
	origin := follow.OriginOf(state.URL)
	switch {
	case f.server != "" && follow.OriginOf(f.server) == "":
		return usagef("--server: want a URL like https://mcp.example.com/mcp")
	case f.server != "" && follow.OriginOf(f.server) != origin:
		return fmt.Errorf("the call is at %s, and not at %s (--server): nothing was sent", terminal.OneLine(origin), follow.OriginOf(f.server))
	case f.server == "" && len(args) == 1 && len(f.headers) > 0 && !calls.Knows(state.URL):
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
	if f.server != "" || len(args) > 0 && len(f.headers) > 0 {
		calls.Remember(state.URL)
	}
	return nil
}

// prompterFor returns what asks the user at a terminal; nil if there is none.
func prompterFor(cmd *cobra.Command, args []string, to string) *terminal.Prompter {
	in := cmd.InOrStdin()
	if len(args) == 1 && args[0] == "-" || !terminal.IsTerminal(in) || !terminal.NewDisplay(cmd.ErrOrStderr()).TTY() {
		return nil
	}
	return terminal.NewPrompter(in, cmd.ErrOrStderr(), serverName(to))
}
