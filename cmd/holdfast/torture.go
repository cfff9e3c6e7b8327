package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"holdfast/internal/terminal"
	"holdfast/internal/torture"
)

// tortureFlags are the flags of holdfast torture.
type tortureFlags struct {
	demo    bool
	tool    string
	args    []string
	headers []string
	total   time.Duration
	calls   int
	clients int
	limit   time.Duration
	seed    uint64
	json    bool
}

func newTorture() *cobra.Command {
	f := tortureFlags{}
	cmd := &cobra.Command{
		Use:   "torture [flags] URL\n  holdfast torture [flags] -- COMMAND ARG...\n  holdfast torture [flags] --demo",
		Short: "Try a server under cut connections, without Holdfast and with it",
		Long: `Torture calls a tool of an MCP server again and again. It cuts the connections of
each call, holds them, delays them or repeats the request, and kills the process of
a COMMAND. It does so three times: with the server as it is (a COMMAND behind a plain
bridge, the go-sdk's transport, as it has no endpoint of its own), then with Holdfast
in front of the server, and then with Holdfast's client too. The first two have the
go-sdk's client. It prints what became of the calls:

  results  the client got the result
  told     the client got an error that says so: the process that had the call was killed
  lost     the client got an error, and no result
  twice    the server got the call more than once
  hung     the client got neither, and gave up (--limit)
  recovered after   from the cut to the client's next result, in the middle and at worst

Only a tool that is read-only or idempotent, by its annotations, and that needs no
argument is called by itself. Any other is called only if --tool names it: it is called
some hundred times, and without Holdfast some calls run twice.

Exit codes: 0 with Holdfast at both ends no call was lost, ran twice or hung, 1 some
were, or the server could not be called, 2 wrong command line.`,
		Example: `  holdfast torture --demo
  holdfast torture http://127.0.0.1:3000/mcp
  holdfast torture --tool echo --arg message=hello -- npx -y @modelcontextprotocol/server-everything stdio
  holdfast torture --calls 50 --seed 7 --json http://127.0.0.1:3000/mcp`,
		Args: cobra.ArbitraryArgs,
		RunE: f.run,
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // flags after COMMAND are its arguments
	fs.BoolVar(&f.demo, "demo", false, "try the built-in server of 'holdfast serve --demo', over stdio")
	fs.StringVar(&f.tool, "tool", "", "`name` of the tool to call (default the first that is read-only or idempotent and needs no argument)")
	fs.StringArrayVarP(&f.args, "arg", "a", nil, "`argument` of the tool, as NAME=VALUE (repeat for more)")
	fs.StringArrayVar(&f.headers, "header", nil, "`header` to send with each request to URL, as 'Name: value' (can be repeated)")
	fs.DurationVar(&f.total, "for", time.Minute, "how long calls are begun, all three times together")
	fs.IntVar(&f.calls, "calls", 0, "maximum `number` of calls each time; 0: as many as there is time for")
	fs.IntVar(&f.clients, "clients", 8, "`number` of clients that call at a time")
	fs.DurationVar(&f.limit, "limit", 10*time.Second, "how much longer than without a cut a call may take before it has hung")
	fs.Uint64Var(&f.seed, "seed", 0, "`number` that decides what happens to each call (default a new one, which is printed)")
	fs.BoolVar(&f.json, "json", false, "print the report as JSON")
	return cmd
}

// check returns an error for a wrong command line.
func (f *tortureFlags) check(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash() == 0
	if !dash && !f.demo && len(args) > 0 {
		args[0] = urlOf(args[0])
	}
	switch {
	case f.demo && len(args) > 0:
		return usagef("--demo is a server by itself: give no URL and no COMMAND with it")
	case !f.demo && len(args) == 0:
		return usagef("no server: give a URL, -- COMMAND or --demo, as in %s http://127.0.0.1:8080/mcp", cmd.CommandPath())
	case !f.demo && !dash && !strings.Contains(args[0], "://"):
		// The URL may have a password in it: it is not shown.
		return usagef("server: want a URL like http://127.0.0.1:8080/mcp, or a command after --, as in %s -- node server.js", cmd.CommandPath())
	case !dash && len(args) > 1:
		return usagef("%d arguments after the URL: flags come before it", len(args)-1)
	case len(f.headers) > 0 && (f.demo || dash):
		return usagef("--header is for a server over HTTP: give its URL")
	case len(f.args) > 0 && f.tool == "":
		return usagef("--arg is for the tool that --tool names: give its name")
	case f.total <= 0:
		return usagef("--for %v: want more than 0", f.total)
	case f.limit <= 0:
		return usagef("--limit %v: want more than 0", f.limit)
	case f.calls < 0:
		return usagef("--calls %d: want 0 or more", f.calls)
	case f.clients < 1 || f.clients > 100:
		return usagef("--clients %d: want 1 to 100", f.clients)
	}
	if f.demo || dash {
		return nil
	}
	u, err := url.Parse(args[0])
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return usagef("server URL %q: want one that begins with http:// or https://, as in http://127.0.0.1:8080/mcp", redacted(args[0]))
	}
	return nil
}

func (f *tortureFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.check(cmd, args); err != nil {
		return err
	}
	header, err := headerOf("--header", f.headers)
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("seed") {
		f.seed = uint64(rand.Uint32()) //nolint:gosec // it is printed
	}
	o := torture.Options{
		Header: header, Choose: f.choose, Calls: f.calls, For: f.total, Clients: f.clients, Limit: f.limit, Seed: f.seed,
	}
	var name string
	switch {
	case f.demo:
		self, err := itself()
		if err != nil {
			return err
		}
		o.Command, name = []string{self, "stdio-demo"}, "the demo server"
		if f.tool == "" {
			f.tool, f.args = "count", []string{"to=3", "delay_ms=20"}
		}
	case cmd.ArgsLenAtDash() == 0:
		o.Command, name = args, args[0]
		if _, err := exec.LookPath(args[0]); err != nil {
			return fmt.Errorf("%w: is the command installed?", err)
		}
	default:
		o.URL, name = args[0], redacted(args[0])
	}
	if o.Command != nil {
		self, err := itself()
		if err != nil {
			return err
		}
		o.Child = []string{self, "torture-child"}
	}
	stderr := cmd.ErrOrStderr()
	if terminal.IsTerminal(stderr) {
		o.Progress = func(way string, calls int) {
			terminal.ClearLine(stderr)
			fmt.Fprintf(stderr, "%s: %d calls", way, calls)
		}
	}
	r, err := torture.Run(cmd.Context(), o)
	if o.Progress != nil {
		terminal.ClearLine(stderr)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.Server = name
	return f.print(cmd, r)
}

// print prints the report. The error says that calls were not kept.
func (f *tortureFlags) print(cmd *cobra.Command, r *torture.Report) error {
	out := cmd.OutOrStdout()
	if f.json {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s\n", text)
	} else {
		fmt.Fprintf(out, "%s, tool %s %s: %v without a cut; %d clients; --seed %d\n\n",
			r.Server, terminal.OneLine(r.Tool), terminal.OneLine(string(r.Arguments)), r.Call, r.Clients, r.Seed)
		if err := r.Write(out); err != nil {
			return err
		}
	}
	if !r.Whole() {
		return fmt.Errorf("with Holdfast at both ends not every call was kept: --seed %d repeats the run, and --json has the errors", r.Seed)
	}
	return nil
}

// choose returns the tool to call, and its arguments.
func (f *tortureFlags) choose(tools []*mcp.Tool) (string, json.RawMessage, error) {
	var list []tool
	for _, t := range tools {
		raw, err := json.Marshal(t)
		if err != nil {
			return "", nil, err
		}
		var one tool
		if err := json.Unmarshal(raw, &one); err != nil {
			return "", nil, err
		}
		list = append(list, one)
	}
	if f.tool != "" {
		i := slices.IndexFunc(list, func(t tool) bool { return t.Name == f.tool })
		if i < 0 {
			return "", nil, unknownTool(f.tool, list)
		}
		for _, name := range list[i].InputSchema.Required {
			if !slices.ContainsFunc(f.args, func(arg string) bool { return strings.HasPrefix(arg, name+"=") }) {
				return "", nil, usagef("%s needs the argument %s: give --arg %s=VALUE. It has %s", f.tool, name, name, signature(&list[i]))
			}
		}
		args, err := arguments("", f.args, &list[i], nil)
		return f.tool, args, err
	}
	hint := ""
	for i, t := range list {
		a := tools[i].Annotations
		switch {
		case a == nil || !a.ReadOnlyHint && !a.IdempotentHint:
		case len(t.InputSchema.Required) == 0:
			return t.Name, json.RawMessage("{}"), nil
		case hint == "":
			hint = fmt.Sprintf("%s is safe: give --tool %s, and --arg for %s", t.Name, t.Name, signature(&list[i]))
		}
	}
	switch {
	case len(list) == 0:
		return "", nil, errors.New("the server has no tools")
	case hint == "":
		hint = fmt.Sprintf("none says that it is read-only or idempotent: name one that may run hundreds of times, as in --tool %s", list[0].Name)
	}
	return "", nil, usagef("no tool is safe and can be called without arguments; %s", terminal.OneLine(hint))
}

// itself returns the path of this program, for processes that run it.
func itself() (string, error) {
	if path, err := exec.LookPath(os.Args[0]); err == nil {
		return path, nil
	}
	return os.Executable()
}

// newTortureChild returns the command with which torture runs a server.
func newTortureChild() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "torture-child ADDR COMMAND ARG...",
		Short:  "Run the server of holdfast torture",
		Hidden: true,
		Args:   cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			code, err := torture.Child(args[0], args[1:])
			if err == nil && code != 0 {
				err = codeError{code, errPrinted}
			}
			return err
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// newStdioDemo returns the command of the demo server on stdio, for holdfast torture.
func newStdioDemo() *cobra.Command {
	return &cobra.Command{
		Use:    "stdio-demo",
		Short:  "Serve the demo on stdio",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return newDemo().Run(cmd.Context(), &mcp.StdioTransport{})
		},
	}
}
