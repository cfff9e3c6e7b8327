// Command holdfast keeps every MCP request alive: it gives any MCP server an endpoint at
// which no request is lost when a connection is cut.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"holdfast/internal/lograte"
	"holdfast/internal/terminal"
)

// Exit codes.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitUnknown     = 3   // the outcome of a call is unknown
	exitInterrupted = 130 // as shells report SIGINT
)

func main() {
	beUnreadable()
	if code, ok := asFirstProcess(); ok {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(withLauncher(ctx), os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs a command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	stdout, stderr := outputs(args)
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	flushLog()
	if err == nil {
		return exitOK
	}
	var coded codeError
	switch {
	case errors.As(err, &coded):
		if !errors.Is(err, errPrinted) {
			fmt.Fprintln(stderr, "holdfast:", err)
		}
		return coded.code
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		terminal.ClearLine(stderr) // the line shows ^C
		fmt.Fprintln(stderr, "holdfast: interrupted")
		return exitInterrupted
	}
	if name, ok := unknownCommand(err); ok {
		err = wrongCommand(root, name)
	}
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(stderr, "holdfast: %v%s\n", err, setElsewhere(cmd.Flags(), err.Error()))
		return exitUsage
	}
	fmt.Fprintln(stderr, "holdfast:", err)
	return exitError
}

func newRoot() *cobra.Command {
	level := &choice{"info", []string{"debug", "info", "warn", "error"}}
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "Keeps every MCP request alive",
		Long: `Holdfast keeps every MCP request alive: it stores all messages of a server about a
request, and a client whose connection is cut resumes where it was.

Each flag can also be set by an environment variable: --session-ttl by
HOLDFAST_SESSION_TTL. The command line takes precedence. For a flag that can be
repeated, the variable is a list separated by commas, or by line breaks if it has one.
An empty variable sets a text to nothing, and no other flag. A variable whose name is
almost that of a flag is an error.

Exit codes: 0 success, 1 failure, 2 wrong command line, 3 the outcome of a call is
unknown, 130 interrupted.`,
		Example: `  holdfast serve --demo
  holdfast serve -- npx -y @modelcontextprotocol/server-everything stdio
  holdfast connect http://127.0.0.1:8080/mcp
  holdfast call http://127.0.0.1:8080/mcp count --arg to=5 --arg delay_ms=500`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := swallowed(cmd.Flags()); err != nil {
				return err
			}
			if err := misspelt(cmd.Root()); err != nil && cmd.Name() != "version" && cmd.Name() != "help" {
				return err
			}
			if err := fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			slog.SetDefault(slog.New(logHandler(cmd, cmd.ErrOrStderr())))
			return nil
		},
	}
	// cobra's own flag prints by a template, and a program that has templates keeps all methods of all types.
	tell := root.Flags().BoolP("version", "v", false, "version for holdfast")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if !*tell {
			return cmd.Help()
		}
		_, err := io.WriteString(cmd.OutOrStdout(), versionLine())
		return err
	}
	root.SetFlagErrorFunc(wrongFlag)
	flags := root.PersistentFlags()
	choiceVar(flags, new(choice), "log-format", []string{"text", "json"}, "format of the log on stderr")
	flags.Var(level, "log-level", "lowest level that is logged")
	root.SetHelpCommand(newHelp())
	root.AddCommand(newServe(), newKey(), newCheck(), newConnect(), newLogin(), newLogout(), newInstall(), newUninstall(), newInfo(), newTools(), newResources(), newPrompts(), newCall(), newResume(), newCalls(), newStatus(), newCancel(), newTorture(), newTortureChild(), newStdioDemo(), newMan(), newVersion())
	for _, cmd := range append(root.Commands(), root) {
		completeChoices(cmd)
	}
	return root
}

// newHelp is cobra's help command, in which an unknown command is an error like others.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if len(args) == 0 {
				for _, c := range cmd.Root().Commands() {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return wrongCommand(cmd.Root(), strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag()
			about.InitDefaultVersionFlag()
			return about.Help()
		},
	}
}

// inSeconds turns durations into numbers of seconds, which programs that read logs expect.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	}
	return a
}

// logHandler returns the handler for the log, with the level and format of the command line.
// Lines with the same text are bounded.
func logHandler(cmd *cobra.Command, w io.Writer) slog.Handler {
	opts := &slog.HandlerOptions{}
	var least slog.Level
	if err := least.UnmarshalText([]byte(cmd.Flag("log-level").Value.String())); err == nil {
		opts.Level = least
	}
	if cmd.Flag("log-format").Value.String() == "json" {
		opts.ReplaceAttr = inSeconds
		return lograte.New(slog.NewJSONHandler(w, opts))
	}
	return lograte.New(slog.NewTextHandler(w, opts))
}
