package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"holdfast/internal/config"
	manyservers "holdfast/internal/servers"
)

func newCheck() *cobra.Command {
	var f configFlags
	strict := false
	cmd := &cobra.Command{
		Use:   "check [flags] FILE",
		Short: "Say what a configuration file would serve",

		SuggestFor: []string{"validate", "lint", "config"},
		Long: `Check reads a configuration file as 'holdfast serve --config' does, and prints what would
run. It starts nothing. Values of variables are not shown. The exit code is 1 if the file
is wrong or a command is not there, and with --strict also if a member of the file is not
known and would be ignored.`,
		Example: `  holdfast check claude_desktop_config.json
  holdfast check --strict servers.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("want one configuration file, as in %s claude_desktop_config.json", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.file, f.checked = args[0], true
			if err := f.check(); err != nil {
				return err
			}
			c := f.prepare(cmd.ErrOrStderr())
			_, file, err := c.read()
			if err != nil {
				return codeError{exitError, err}
			}
			if !strict {
				tellIgnored(file)
			}
			return report(cmd.OutOrStdout(), file, strict)
		},
	}
	f.addValues(cmd.Flags())
	cmd.Flags().BoolVar(&strict, "strict", false, "take warnings as errors: members that are not known, which are ignored otherwise")
	return cmd
}

// report prints the servers that would run. The error names those that would not and, if strict is true, the members that
// are ignored.
func report(out io.Writer, file *config.File, strict bool) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "SERVER\tPATH\tTYPE\tRUNS\tSETTINGS")
	if file.Merge {
		fmt.Fprintf(t, "(all)\t%s\tmerged\tall servers below as one\t\n", config.MergedPath)
	}
	var wrong []string
	if strict {
		for _, m := range file.Ignored {
			wrong = append(wrong, fmt.Sprintf("%v: %s is not known, and would be ignored: remove it, or correct its name", m.Place, m.Member))
		}
	}
	for _, s := range file.Servers {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", s.Name, s.Path, s.Type, s.Shown, described(s))
		if err := manyservers.Runnable(s); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	for _, l := range file.LeftOut {
		fmt.Fprintf(t, "%s\t\tleft out\t\t\n", l.Name)
		wrong = append(wrong, l.Err.Error())
	}
	for _, s := range file.Disabled {
		fmt.Fprintf(t, "%s\t\tdisabled\t\t\n", s)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return codeError{exitError, fmt.Errorf("%s", strings.Join(wrong, "\n"))}
	}
	return nil
}

// names returns the keys of a map, in order.
func names[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// described returns the settings of a server, for a person.
func described(s *config.Server) string {
	var all []string
	add := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	add(s.Allow != nil, "allow %s", strings.Join(s.Allow, ","))
	add(s.Deny != nil, "deny %s", strings.Join(s.Deny, ","))
	if s.Prefix != nil {
		add(true, "prefix %q", *s.Prefix)
	}
	add(s.Safe != nil, "safe %s", strings.Join(s.Safe, ","))
	add(s.Share, "share")
	add(s.StopIdle > 0, "stopIdle %v", s.StopIdle)
	add(s.MaxProcesses > 0, "maxProcesses %d", s.MaxProcesses)
	add(s.Timeout > 0, "timeout %v", s.Timeout)
	for _, h := range s.HandoffAfter {
		add(true, "handoffAfter %s %v", h.Pattern, h.For)
	}
	add(s.MaxCalls > 0, "maxCalls %d", s.MaxCalls)
	for _, c := range s.ToolCalls {
		add(true, "toolCalls %s %d", c.Pattern, c.Most)
	}
	add(s.Rate.PerSecond > 0, "rate %v", s.Rate)
	add(len(s.Auth.Scopes) > 0, "auth scopes %s", strings.Join(s.Auth.Scopes, ","))
	for _, t := range s.Auth.Tools {
		add(true, "auth tools %s %s", t.Pattern, strings.Join(t.Scopes, ","))
	}
	add(s.Auth.Passthrough, "auth passthrough")
	if t := s.Auth.Token; t != nil {
		kind := "clientCredentials"
		if t.Exchange {
			kind = "tokenExchange"
		}
		add(true, "auth %s %s as %s", kind, redacted(t.URL), t.ID)
	}
	add(len(s.Env) > 0, "env %s", strings.Join(names(s.Env), ","))
	add(len(s.Header) > 0, "headers %s", strings.Join(names(s.Header), ","))
	return strings.Join(all, "; ")
}
