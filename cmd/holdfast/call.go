package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/feature/handofftext"
	"holdfast/internal/followcall"
	"holdfast/internal/protocol"
	"holdfast/internal/redact"
	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// callFlags are the flags of holdfast call.
type callFlags struct {
	serverFlags
	follow followFlags
	args   []string
}

// followFlags are the flags of the commands that follow a call: call and resume.
type followFlags struct {
	state       string
	interactive bool
	json        bool
	token       bool
}

func (f *followFlags) add(cmd *cobra.Command) {
	addState(cmd, &f.state, "unfinished calls for holdfast resume")
	cmd.Flags().BoolVarP(&f.interactive, "interactive", "i", false, "answer questions of the server on stdin, also if it is not a terminal")
	cmd.Flags().BoolVar(&f.token, "token", false, "print the token in the command that resumes the call, with which that works on another machine too. It is a secret")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the whole result as JSON")
}

func newCall() *cobra.Command {
	f := callFlags{serverFlags: newServerFlags()}
	cmd := &cobra.Command{
		Use:   "call [flags] SERVER TOOL [NAME=VALUE | JSON]...\n  holdfast call [flags] TOOL [NAME=VALUE | JSON]... -- COMMAND ARG...",
		Short: "Call a tool, and survive lost connections",

		SuggestFor: []string{"invoke", "exec", "tool"},

		Long: `Call calls a tool and prints the text of its result on stdout. Everything else goes
to stderr: progress, questions of the server, and the command that resumes the call
if this one is killed.

` + serverHelp + ` NAME.TOOL stands for
a tool of such a server.

The arguments are NAME=VALUE, a JSON object, or both. The schema of the tool decides
whether a VALUE is a number, text or something else. @FILE is what is in a file, for a VALUE or
for the whole object; @- and - read stdin; @@ stands for a text that begins with @.

Ctrl-C leaves the call, which continues at the server, and prints the command that
resumes it: by a short name, which is known on this machine, or with --token by a token,
which is good on any machine, and a secret. A second Ctrl-C within two seconds cancels
the call. --timeout leaves it too. A call of a COMMAND is cancelled instead.

Exit codes: 0 success, 1 failure of the tool or of the call, or no result within --timeout, 2
wrong command line, 3 the outcome is unknown: the tool may have run, 130 interrupted: the call
continues at the server, or was cancelled.`,
		Example: `  holdfast call http://127.0.0.1:8080/mcp echo text=hello
  holdfast call localhost:8080/mcp count '{"to": 100, "delay_ms": 200}'
  holdfast call everything.echo message=@letter.txt
  holdfast call echo message=hello -- npx -y @modelcontextprotocol/server-everything stdio`,
		Args:              cobra.ArbitraryArgs, // call says what is wrong
		ValidArgsFunction: f.completer(completeTools),
		RunE:              f.call,
	}
	f.add(cmd)
	f.follow.add(cmd)
	cmd.Flags().StringArrayVarP(&f.args, "arg", "a", nil, "`argument` of the tool, as NAME=VALUE (repeat for more)")
	return cmd
}

// given returns the server, the tool and the arguments that a command line names.
func (f *callFlags) given(cmd *cobra.Command, args []string) (t *target, name string, given *givenArguments, err error) {
	switch {
	case len(args) > 1 && cmd.ArgsLenAtDash() < 0 && !isURL(args[0]) && slices.ContainsFunc(args[1:], func(arg string) bool { return isURL(arg) && !strings.ContainsAny(arg, "={\"@ ") }):
		return nil, "", nil, usagef("the URL comes before the tool: %s URL %s", cmd.CommandPath(), terminal.OneLine(args[0]))
	case len(args) == 0, len(args) == 1 && cmd.ArgsLenAtDash() < 0 && isURL(args[0]):
		return nil, "", nil, usagef(`want a URL, the name of a tool, and optionally its arguments, as in %s http://127.0.0.1:8080/mcp count to=5`, cmd.CommandPath())
	}
	t, rest, err := f.target(cmd, args, true)
	switch {
	case err != nil:
		return nil, "", nil, err
	case len(rest) == 0:
		return nil, "", nil, usagef("want the name of a tool: '%s' lists those of the server", strings.Join(toolsOf(cmd, args), " "))
	}
	given, err = giveArguments(rest[1:], f.args)
	return t, rest[0], given, err
}

// toolsOf returns the command that lists the tools of the server of a command line without a tool.
func toolsOf(cmd *cobra.Command, args []string) []string {
	all := []string{cmd.Root().Name(), "tools"}
	if cmd.ArgsLenAtDash() >= 0 {
		all = append(all, "--")
	}
	for _, arg := range args {
		if redacted := redact.URL(arg); redacted != "" {
			arg = redacted
		}
		all = append(all, terminal.OneLine(quoted(arg)))
	}
	return all
}

// call calls a tool and follows the call.
func (f *callFlags) call(cmd *cobra.Command, args []string) error {
	to, name, given, err := f.given(cmd, args)
	if err != nil {
		return err
	}
	if given.stdin && f.follow.interactive {
		return usagef("stdin cannot give both the arguments (-) and the answers (--interactive)")
	}
	ctx, cancel := f.bounded(cmd.Context())
	defer cancel()
	show := terminal.NewDisplay(cmd.ErrOrStderr())
	w, opts, err := f.follow.options(cmd, &f.remoteFlags, show)
	if err != nil {
		return err
	}
	w.Ends = to.stdio()
	if end, ok := ctx.Deadline(); ok {
		w.Until = end
	}
	conn, done, err := f.dial(to, opts, onDisplay(show, cmd.InOrStdin(), given.stdin))
	if err != nil {
		return err
	}
	defer done()
	w.Conn, w.Name = conn, name
	var capabilities map[string]any
	if w.Prompter = f.follow.prompter(cmd, show, to.url, given.stdin); w.Prompter != nil {
		capabilities = map[string]any{"elicitation": map[string]any{"form": map[string]any{}, "url": map[string]any{}}}
	}
	p, err := f.begin(ctx, conn, to.name(), capabilities)
	if err != nil {
		return f.late(ctx, err)
	}
	t, params, err := f.params(ctx, p, name, given, cmd.InOrStdin(), show)
	if err != nil {
		return f.late(ctx, err)
	}
	w.ID = []byte(`"hf-` + strings.ToLower(rand.Text()[:12]) + `"`)
	sent, _ := params["arguments"].(json.RawMessage)
	meta := p.metaWith(w.ID)
	meta[handofftext.Meta] = false // call waits for as long as it takes
	params["_meta"] = meta
	method := followcall.ToolsCall
	if p.callsAsTask(t) {
		method = protocol.MethodTaskResult
		if w.Task, params, err = p.callTask(ctx, params); err != nil {
			return fmt.Errorf("%s: %w", name, f.late(ctx, err))
		}
	}
	if !to.stdio() {
		calls := followcall.SavedCallsIn(f.follow.state)
		calls.Remember(to.url)
		f.follow.save(calls, w, name)
		w.Saved.At(to.entry)
	}
	if err := sendRequest(ctx, conn, w.ID, method, params); err != nil {
		return err
	}
	m, err := f.follow.run(ctx, w)
	if errors.Is(err, followcall.ErrTimeout) {
		return fmt.Errorf("%s: no result within %v (--timeout)", name, f.timeout)
	}
	if err != nil {
		return err
	}
	err = f.follow.print(m, name, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil && !errors.Is(err, errPrinted) && misfit(t, sent) {
		return fmt.Errorf("%w: %s takes %s", err, name, signature(t))
	}
	if err != nil && w.Prompter == nil && strings.Contains(strings.ToLower(err.Error()), "elicit") {
		return fmt.Errorf("%w: to answer questions of the server, use a terminal or --interactive", err)
	}
	return err
}

// params returns the tool, and the params of the call. The server must have the tool, and its schema must fit the
// arguments. If the server does not list its tools to the end, the server decides that itself, and the tool returned is nil.
func (f *callFlags) params(ctx context.Context, p *peer, name string, given *givenArguments, stdin io.Reader, show *terminal.Display) (*tool, map[string]any, error) {
	list, _, err := p.tools(ctx, name)
	var t *tool
	for i := range list {
		if list[i].Name == name {
			t = &list[i]
		}
	}
	var refused *jsonrpc.Error
	switch {
	case t != nil:
	case err == nil:
		return nil, nil, unknownTool(name, list)
	case ctx.Err() != nil, len(list) == 0 && !errors.As(err, &refused):
		return nil, nil, err
	default:
		show.Printf("holdfast: the tool is called without its schema, so each --arg is text: %v", err)
	}
	args, err := given.arguments(t, stdin)
	return t, map[string]any{"name": name, "arguments": args}, err
}

// options returns the options for following a call, and for the connection to the server.
func (f *followFlags) options(cmd *cobra.Command, remote *remoteFlags, show *terminal.Display) (*followcall.Options, *client.Options, error) {
	opts, err := remote.options(slog.New(logHandler(cmd, show)))
	if err != nil {
		return nil, nil, err
	}
	changed := make(chan struct{}, 1)
	opts.Changed = func() {
		select {
		case changed <- struct{}{}:
		default: // the channel has one already
		}
	}
	opts.Tasks, opts.AskHost = true, true
	opts.Task = func(_, task json.RawMessage) {
		text := jsonrpc.String(jsonrpc.Field(task, "status"))
		if more := jsonrpc.String(jsonrpc.Field(task, "statusMessage")); more != "" {
			text += ", " + more
		}
		show.Printf("task: %s", terminal.OneLine(text))
	}
	opts.Away = func(err error) { show.Printf("no answer (%v): trying again", err) }
	w := &followcall.Options{Display: show, Changed: changed, ShowToken: f.token}
	if flag := cmd.Flag("state"); flag.Changed && flag.Annotations[fromVariable] == nil {
		w.NameFlags = " --state " + quoted(f.state)
	}
	if t := remote.transport.value; t != "auto" {
		w.ResumeFlags += " --transport " + t
	}
	if len(remote.headers) > 0 {
		w.ResumeFlags += "\nGive it the same --header, too." // on another line: users paste the command
	}
	return w, opts, nil
}

// save saves the place of the call in a file. If that fails, it tells the user.
func (f *followFlags) save(calls followcall.SavedCalls, w *followcall.Options, tool string) {
	var err error
	if w.Saved, err = calls.Add(w.ID, tool); err != nil {
		w.Display.Printf("holdfast: the call cannot be saved: %v", err)
	}
}

// run follows a call to its end.
func (f *followFlags) run(ctx context.Context, w *followcall.Options) (jsonrpc.Message, error) {
	m, err := followcall.Call(ctx, *w)
	if errors.Is(err, followcall.ErrLeft) {
		err = codeError{exitInterrupted, errPrinted}
	}
	return m, err
}

// prompter returns a prompter for questions of the server; nil if no user can be asked.
// stdinUsed says that stdin has other data.
func (f *followFlags) prompter(cmd *cobra.Command, show *terminal.Display, to string, stdinUsed bool) *terminal.Prompter {
	in := cmd.InOrStdin()
	if stdinUsed || !f.interactive && (!terminal.IsTerminal(in) || !show.TTY()) {
		return nil
	}
	return terminal.NewPrompter(in, cmd.ErrOrStderr(), serverName(to))
}

// print prints the response to a call. The error decides the exit code.
func (f *followFlags) print(m jsonrpc.Message, name string, stdout, stderr io.Writer) error {
	if m.Error != nil {
		return errorOf(m)
	}
	if f.json {
		return printRaw(m.Result, stdout)
	}
	return printResult(m.Result, name, stdout, stderr)
}
