package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/client"
	"holdfast/internal/feature/handoff"
	"holdfast/internal/follow"
	"holdfast/internal/protocol"
	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// callFlags are the flags of holdfast call.
type callFlags struct {
	remoteFlags
	login  loginFlags
	follow followFlags
	args   []string
}

// followFlags are the flags of the commands that follow a call: call and resume.
type followFlags struct {
	state       string
	interactive bool
	json        bool
}

func (f *followFlags) add(cmd *cobra.Command) {
	addState(cmd, &f.state, "unfinished calls for holdfast resume")
	cmd.Flags().BoolVarP(&f.interactive, "interactive", "i", false, "answer questions of the server on stdin, also if it is not a terminal")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the whole result as JSON")
}

func newCall() *cobra.Command {
	f := callFlags{remoteFlags: newRemoteFlags(), login: newLoginFlags()}
	cmd := &cobra.Command{
		Use:   "call [flags] URL TOOL [JSON]",
		Short: "Call a tool, and survive lost connections",

		SuggestFor: []string{"invoke", "exec", "tool"},

		Long: `Call calls a tool and prints the text of its result on stdout. Everything else goes
to stderr: progress, questions of the server, and the command that resumes the call
if this one is killed.

The arguments are a JSON object (- reads it from stdin) or --arg NAME=VALUE. The
schema of the tool decides whether a VALUE is a number or text.

Ctrl-C leaves the call, which continues at the server, and prints the command that
resumes it, on this machine or another. The token in that command is a secret. A
second Ctrl-C within two seconds cancels the call.

Exit codes: 0 success, 1 failure of the tool or of the call, 2 wrong command line,
3 the outcome is unknown: the tool may have run, 130 interrupted: the call continues
at the server, or was cancelled.`,
		Example: `  holdfast call http://127.0.0.1:8080/mcp echo --arg text=hello
  holdfast call http://127.0.0.1:8080/mcp count '{"to": 100, "delay_ms": 200}'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || len(args) > 3 {
				return usagef(`want a URL, the name of a tool, and optionally its arguments as JSON, as in %s http://127.0.0.1:8080/mcp count '{"to": 5}'`, cmd.CommandPath())
			}
			if !strings.Contains(args[0], "://") && strings.Contains(args[1], "://") {
				return usagef("the URL comes before the tool: %s URL %s", cmd.CommandPath(), terminal.OneLine(args[0]))
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              f.call,
	}
	f.add(cmd)
	f.login.add(cmd)
	f.follow.add(cmd)
	cmd.Flags().StringArrayVarP(&f.args, "arg", "a", nil, "`argument` of the tool, as NAME=VALUE (repeat for more)")
	return cmd
}

// call calls a tool and follows the call.
func (f *callFlags) call(cmd *cobra.Command, args []string) error {
	ctx, to, name, object := cmd.Context(), args[0], args[1], ""
	if len(args) > 2 {
		object = args[2]
	}
	if object == "-" && f.follow.interactive {
		return usagef("stdin cannot give both the arguments (-) and the answers (--interactive)")
	}
	show := terminal.NewDisplay(cmd.ErrOrStderr())
	w, opts, err := f.follow.options(cmd, &f.remoteFlags, show)
	if err != nil {
		return err
	}
	done, err := f.login.authorize(to, opts, onDisplay(show, cmd.InOrStdin(), object == "-"))
	if err != nil {
		return err
	}
	defer done()
	conn, err := dial(to, opts)
	if err != nil {
		return err
	}
	defer conn.Close()
	w.Conn, w.Name = conn, name
	var capabilities map[string]any
	if w.Prompter = f.follow.prompter(cmd, show, to, object == "-"); w.Prompter != nil {
		capabilities = map[string]any{"elicitation": map[string]any{"form": map[string]any{}, "url": map[string]any{}}}
	}
	p, err := f.begin(ctx, conn, to, capabilities)
	if err != nil {
		return err
	}
	t, params, err := f.params(ctx, p, name, object, cmd.InOrStdin(), show)
	if err != nil {
		return err
	}
	w.ID = []byte(`"hf-` + strings.ToLower(rand.Text()[:12]) + `"`)
	given, _ := params["arguments"].(json.RawMessage)
	meta := p.metaWith(w.ID)
	meta[handoff.Meta] = false // call waits for as long as it takes
	params["_meta"] = meta
	method := follow.ToolsCall
	if p.callsAsTask(t) {
		method = protocol.MethodTaskResult
		if w.Task, params, err = p.callTask(ctx, params); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	calls := follow.SavedCallsIn(f.follow.state)
	calls.Remember(to)
	f.follow.save(calls, w)
	if err := sendRequest(ctx, conn, w.ID, method, params); err != nil {
		return err
	}
	m, err := f.follow.run(ctx, w)
	if err != nil {
		return err
	}
	err = f.follow.print(m, name, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if err != nil && !errors.Is(err, errPrinted) && misfit(t, given) {
		return fmt.Errorf("%w: %s takes %s", err, name, signature(t))
	}
	if err != nil && w.Prompter == nil && strings.Contains(strings.ToLower(err.Error()), "elicit") {
		return fmt.Errorf("%w: to answer questions of the server, use a terminal or --interactive", err)
	}
	return err
}

// params returns the tool, and the params of the call. The server must have the tool, and its schema must fit the
// arguments. If the server does not list its tools to the end, it decides that itself, and the tool returned is nil.
func (f *callFlags) params(ctx context.Context, p *peer, name, object string, stdin io.Reader, show *terminal.Display) (*tool, map[string]any, error) {
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
	args, err := arguments(object, f.args, t, stdin)
	return t, map[string]any{"name": name, "arguments": args}, err
}

// options returns the options for following a call, and for the connection to the server.
func (f *followFlags) options(cmd *cobra.Command, remote *remoteFlags, show *terminal.Display) (*follow.Options, *client.Options, error) {
	opts, err := remote.options(slog.New(logHandler(cmd, show)))
	if err != nil {
		return nil, nil, err
	}
	changed := make(chan struct{}, 1)
	opts.Changed = func() {
		select {
		case changed <- struct{}{}:
		default: // there is a token
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
	w := &follow.Options{Display: show, Changed: changed}
	if t := remote.transport.value; t != "auto" {
		w.ResumeFlags += " --transport " + t
	}
	if len(remote.headers) > 0 {
		w.ResumeFlags += "\nGive it the same --header, too." // on another line: users paste the command
	}
	return w, opts, nil
}

// save has the place of the call saved.
func (f *followFlags) save(calls follow.SavedCalls, w *follow.Options) {
	var err error
	if w.Saved, err = calls.Add(w.ID); err != nil {
		w.Display.Printf("holdfast: the call cannot be saved: %v", err)
	}
}

// run follows a call to its end.
func (f *followFlags) run(ctx context.Context, w *follow.Options) (jsonrpc.Message, error) {
	m, err := follow.Call(ctx, *w)
	if errors.Is(err, follow.ErrLeft) {
		err = codeError{exitInterrupted, errPrinted}
	}
	return m, err
}

// prompter returns what asks the user questions of the server; nil if nobody can be asked.
// stdinUsed says that stdin has something else in it.
func (f *followFlags) prompter(cmd *cobra.Command, show *terminal.Display, to string, stdinUsed bool) *terminal.Prompter {
	in := cmd.InOrStdin()
	if stdinUsed || !f.interactive && (!terminal.IsTerminal(in) || !show.TTY()) {
		return nil
	}
	return terminal.NewPrompter(in, cmd.ErrOrStderr(), serverName(to))
}

// print prints the response to a call. An error decides how the program ends.
func (f *followFlags) print(m jsonrpc.Message, name string, stdout, stderr io.Writer) error {
	if m.Error != nil {
		return errorOf(m)
	}
	if f.json {
		return printRaw(m.Result, stdout)
	}
	return printResult(m.Result, name, stdout, stderr)
}
