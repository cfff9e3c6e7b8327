package main

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/login"
	"holdfast/internal/statefile"
	"holdfast/internal/terminal"
)

// loginNone is the value of --login for no login.
const loginNone = "none"

// loginFlags are the flags of all commands that may log in at a server.
type loginFlags struct {
	way                          choice
	clientID, secretFile, key    string
	metadata, callback, tokensIn string
	scopes                       []string
}

func newLoginFlags() loginFlags {
	return loginFlags{way: choice{login.Auto, []string{login.Auto, login.Browser, login.Paste, login.Device, login.Credentials, loginNone}}}
}

// clientSecretOf is the environment variable with the secret for --client-id.
const clientSecretOf = "HOLDFAST_CLIENT_SECRET" //nolint:gosec // its name

func (f *loginFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.Var(&f.way, "login", "how to log in at a server that wants it; auto: in a browser, or with a URL or a code to enter elsewhere; credentials: as a machine, without a user; none: not at all")
	fs.StringVar(&f.metadata, "client-metadata", "", "`URL` of a client ID metadata document, for authorization servers that take such ones")
	fs.StringVar(&f.callback, "callback", "", "`URL` of this machine that the browser comes back to, if the client is registered with one: http://127.0.0.1:PORT/PATH")
	fs.StringArrayVar(&f.scopes, "scopes", nil, "`scopes` to ask for, separated by spaces (default: what the server names)")
	f.addClient(cmd)
}

// addClient adds the flags that say which client the login is of.
func (f *loginFlags) addClient(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.clientID, "client-id", "", "`id` of a client that is registered at the authorization server (default: holdfast registers itself). A secret is in "+clientSecretOf+" or --client-secret-file")
	fs.StringVar(&f.secretFile, "client-secret-file", "", "`file` with the secret for --client-id")
	fs.StringVar(&f.key, "client-key", "", "`file` with the private key for --client-id, in PEM: the client signs with it who it is")
	dir := statefile.Dir()
	if dir != "" {
		dir = filepath.Join(dir, "logins")
	}
	fs.StringVar(&f.tokensIn, "logins", dir, "`directory` to keep tokens in; empty: keep none")
	_ = cmd.MarkFlagDirname("logins") // fails for unknown flags only
}

// options returns the options of a login.
func (f *loginFlags) options() (*login.Options, error) {
	o := &login.Options{
		Way: f.way.value, ClientID: f.clientID, ClientMetadata: f.metadata, Callback: f.callback, Dir: f.tokensIn,
		Scopes: strings.Fields(strings.Join(f.scopes, " ")),
	}
	var err error
	if o.ClientSecret, err = secretOf("--client-secret-file", f.secretFile, clientSecretOf); err != nil {
		return nil, err
	}
	if o.ClientKey, err = f.clientKey(); err != nil {
		return nil, err
	}
	switch {
	case f.clientID == "" && (o.ClientSecret != "" || o.ClientKey != nil):
		return nil, usagef("--client-secret-file and --client-key are of a client that is registered: give its --client-id")
	case f.clientID == "" && f.way.value == login.Credentials:
		return nil, usagef("--login credentials needs a client that is registered: give --client-id, and --client-secret-file or --client-key")
	case f.way.value == login.Credentials && o.ClientSecret == "" && o.ClientKey == nil:
		return nil, usagef("--login credentials needs to show who --client-id is: set %s, or give --client-secret-file or --client-key", clientSecretOf)
	case f.clientID != "" && f.metadata != "":
		return nil, usagef("both --client-id and --client-metadata say who the client is: remove one")
	}
	if u, err := url.Parse(f.metadata); f.metadata != "" && (err != nil || u.Scheme != "https" || u.Host == "" || u.Path == "" || u.Path == "/") {
		return nil, usagef("--client-metadata %q: want a URL like https://example.com/client.json", f.metadata)
	}
	if err := login.CheckCallback(f.callback); err != nil {
		return nil, usagef("--callback %q: %w", f.callback, err)
	}
	if f.way.value == login.Auto || f.way.value == login.Browser {
		o.Open = login.Opener()
	}
	if f.way.value == login.Browser && o.Open == nil {
		return nil, usagef("--login browser: there is no browser here: name its command in BROWSER, or give --login paste")
	}
	return o, nil
}

func (f *loginFlags) clientKey() (crypto.Signer, error) {
	if f.key == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.key)
	if err != nil {
		return nil, wrongFile("--client-key", err)
	}
	key, err := login.ParseKey(text)
	if err != nil {
		return nil, usagef("--client-key %s: %w", f.key, err)
	}
	return key, nil
}

// authorize makes a connection log in when the server wants that. done ends the login. A connection with credentials of its own does not log in.
func (f *loginFlags) authorize(to string, opts *client.Options, change func(*login.Options)) (done func(), err error) {
	u, wrong := url.Parse(to)
	if f.way.value == loginNone || opts.Header.Get("Authorization") != "" || wrong != nil || u.User != nil || u.Host == "" {
		return func() {}, nil
	}
	o, err := f.options()
	if err != nil {
		return nil, err
	}
	o.Logger = opts.Logger
	if change != nil {
		change(o)
	}
	source, err := login.New(to, o)
	if err != nil {
		return nil, usageError{err}
	}
	opts.Auth = source
	return source.Close, nil
}

// onTerminal makes a login talk to the user at a terminal.
func onTerminal(in io.Reader, out io.Writer) func(*login.Options) {
	return func(o *login.Options) {
		o.Tell = func(text string) { fmt.Fprintln(out, "holdfast:", text) }
		if o.Open == nil && terminal.IsTerminal(in) {
			o.Pasted = in
		}
	}
}

// onDisplay is onTerminal for a command that shows progress. stdinUsed says that stdin has other data.
func onDisplay(show *terminal.Display, in io.Reader, stdinUsed bool) func(*login.Options) {
	return func(o *login.Options) {
		o.Tell = func(text string) { show.Printf("holdfast: %s", text) }
		if o.Open == nil && !stdinUsed && terminal.IsTerminal(in) {
			o.Pasted = in
		}
	}
}

// briefly is onTerminal for a command that takes at most within.
func briefly(cmd *cobra.Command, within time.Duration) func(*login.Options) {
	return func(o *login.Options) {
		onTerminal(cmd.InOrStdin(), cmd.ErrOrStderr())(o)
		o.Within = within - time.Second
	}
}

func newLogin() *cobra.Command {
	f, l := newRemoteFlags(), newLoginFlags()
	cmd := &cobra.Command{
		Use:   "login [flags] URL",
		Short: "Log in at a server",

		SuggestFor: []string{"auth", "authorize", "signin"},

		Long: `Login gets tokens for a server, for the commands connect, call, tools, resume, status
and cancel. They also log in by themselves when a server wants it: with this command you
do it before, log in as another user, or log in for a host on a machine without a browser.

It opens a browser (the command in BROWSER, or what is usual on the system). Where there is
none, it prints the URL: open it on any machine, and paste the URL at which the browser
ends up. If the authorization server has codes for devices, it prints such a code instead.
With --login credentials a machine logs in by its --client-id, without a user.

Tokens are kept in a file for each server and client, which only you can read. They are
renewed before they expire. 'holdfast logout' revokes and removes them.`,
		Example: `  holdfast login https://example.com/mcp
  holdfast login https://example.com/mcp --login paste
  HOLDFAST_CLIENT_SECRET=... holdfast login https://example.com/mcp --login credentials --client-id ci`,
		Args:              oneServer,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return logIn(cmd, &f, &l, args[0])
		},
	}
	f.add(cmd)
	l.add(cmd)
	return cmd
}

// logIn logs in at a server anew.
func logIn(cmd *cobra.Command, f *remoteFlags, l *loginFlags, to string) error {
	to = urlOf(to)
	ctx := cmd.Context()
	if l.way.value == loginNone {
		return usagef("--login none: want a way to log in")
	}
	opts, err := f.options(slog.Default())
	if err != nil {
		return err
	}
	if opts.Header.Get("Authorization") != "" {
		return usagef("--header has an Authorization: a login would bring another one; remove it")
	}
	done, err := l.authorize(to, opts, func(o *login.Options) {
		onTerminal(cmd.InOrStdin(), cmd.ErrOrStderr())(o)
		o.Pasted = cmd.InOrStdin()
	})
	if err != nil {
		return err
	}
	defer done()
	source, ok := opts.Auth.(*login.Source)
	if !ok {
		if u, err := url.Parse(to); err != nil || u.User == nil { // the URL may have a password in it: it is not shown
			return usagef("server URL: it cannot be read: want one like https://HOST/PATH")
		}
		return usagef("the URL has a user in it: a login would bring another one; remove it")
	}
	header, err := wanted401(ctx, f, *opts, to)
	if err != nil {
		return err
	}
	if err := source.Login(ctx, header); err != nil {
		return err
	}
	// Does the server take the token?
	opts.NoListen = true
	conn, err := dial(to, opts)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := f.begin(ctx, conn, redacted(to), nil); err != nil {
		return err
	}
	text := "Logged in at " + source.Host()
	if scopes := source.Scopes(); len(scopes) > 0 {
		text += ", for " + terminal.OneLine(strings.Join(scopes, " "))
	}
	if file := source.File(); file != "" {
		text += ". The tokens are in " + file
	}
	fmt.Fprintln(cmd.OutOrStdout(), text+".")
	return nil
}

// A challenger keeps the header with which a server has refused a request.
type challenger struct{ header http.Header }

// errWanted says that a server wants a login.
var errWanted = errors.New("it wants a login")

// Authorization implements [client.Authorizer].
func (c *challenger) Authorization(context.Context) (string, error) { return "", nil }

// Authorize implements [client.Authorizer].
func (c *challenger) Authorize(_ context.Context, _ *http.Request, resp *http.Response) error {
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		return nil
	}
	c.header = resp.Header
	return errWanted
}

// wanted401 returns the header with which a server refuses a client without a login. It is empty if the server lets the client in: it may want a
// login later.
func wanted401(ctx context.Context, f *remoteFlags, opts client.Options, to string) (http.Header, error) {
	seen := &challenger{}
	opts.Auth, opts.NoListen, opts.Logger = seen, true, slog.New(slog.DiscardHandler)
	conn, err := dial(to, &opts)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err = f.begin(ctx, conn, redacted(to), nil); err != nil && seen.header == nil {
		return nil, err
	}
	return seen.header, nil
}

func newLogout() *cobra.Command {
	l := newLoginFlags()
	cmd := &cobra.Command{
		Use:   "logout [flags] URL",
		Short: "Revoke and remove the tokens for a server",
		Long: `Logout has the authorization server of a server revoke the tokens that 'holdfast login' or
another command has got, if it can, and removes them from this machine.`,
		Example:           `  holdfast logout https://example.com/mcp`,
		Args:              oneServer,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return logOut(cmd, &l, args[0])
		},
	}
	l.addClient(cmd)
	return cmd
}

// logoutWithin bounds how long authorization servers may take to revoke tokens.
const logoutWithin = 30 * time.Second

func logOut(cmd *cobra.Command, l *loginFlags, to string) error {
	to = urlOf(to)
	o, err := l.options()
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(cmd.Context(), logoutWithin)
	defer stop()
	n, err := login.Logout(ctx, to, o)
	switch {
	case err != nil && n > 0:
		return fmt.Errorf("the tokens were removed from this machine, but not revoked: %w", err)
	case err != nil:
		return err
	case n == 0:
		fmt.Fprintf(cmd.OutOrStdout(), "There is no login at %s.\n", serverName(to))
	default:
		fmt.Fprintf(cmd.OutOrStdout(), "Logged out at %s.\n", serverName(to))
	}
	return nil
}
