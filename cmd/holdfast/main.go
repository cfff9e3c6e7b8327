// Command holdfast keeps every MCP request alive: it gives any MCP server an
// endpoint that outlives disconnects.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// usageError is an error of the one who typed the command.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs a command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(os.Stderr, "holdfast:", err)
	var usage usageError
	if errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command") {
		fmt.Fprintln(os.Stderr, "Run 'holdfast help' for usage.")
		return exitUsage
	}
	return exitError
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "Keeps every MCP request alive",
		Long: `Holdfast keeps every MCP request alive: whatever a server says about a request is
kept, and a client whose connection is cut goes on where it was.

Every flag can be set in the environment too: --session-ttl as HOLDFAST_SESSION_TTL.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			return setLogger(cmd.Flags())
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().String("log-format", "text", "format of the log on stderr: text or json")
	root.PersistentFlags().String("log-level", "info", "least level to log: debug, info, warn or error")
	root.AddCommand(newServe(), newVersion())
	return root
}

// fromEnvironment sets the flags that were not given from HOLDFAST_ variables.
func fromEnvironment(flags *pflag.FlagSet) error {
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		name := "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := os.LookupEnv(name)
		if !ok || f.Changed || err != nil {
			return
		}
		if e := flags.Set(f.Name, value); e != nil {
			err = usageError{fmt.Errorf("%s: %w", name, e)}
		}
	})
	return err
}

func setLogger(flags *pflag.FlagSet) error {
	format, _ := flags.GetString("log-format")
	text, _ := flags.GetString("log-level")
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return usageError{fmt.Errorf("--log-level: %w", err)}
	}
	opts := &slog.HandlerOptions{Level: level}
	switch format {
	case "text":
		slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, opts)))
	case "json":
		slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, opts)))
	default:
		return usageError{fmt.Errorf("--log-format %q: want text or json", format)}
	}
	return nil
}
