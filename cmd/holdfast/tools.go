package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/internal/terminal"
)

func newTools() *cobra.Command {
	f, l := newRemoteFlags(), newLoginFlags()
	raw := false
	cmd := &cobra.Command{
		Use:   "tools [flags] URL",
		Short: "List the tools of a server",

		SuggestFor: []string{"list", "ls", "inspect"},

		Long:              `Tools lists the tools of a server and their arguments.`,
		Example:           `  holdfast tools http://127.0.0.1:8080/mcp`,
		Args:              oneServer,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return listTools(cmd, &f, &l, args[0], raw)
		},
	}
	f.add(cmd)
	l.add(cmd)
	cmd.Flags().BoolVar(&raw, "json", false, "print the list as the server's JSON")
	return cmd
}

func listTools(cmd *cobra.Command, f *remoteFlags, l *loginFlags, url string, raw bool) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	opts, err := f.options(slog.Default())
	if err != nil {
		return err
	}
	opts.NoListen = true
	done, err := l.authorize(url, opts, onTerminal(cmd.InOrStdin(), cmd.ErrOrStderr()))
	if err != nil {
		return err
	}
	defer done()
	conn, err := dial(url, opts)
	if err != nil {
		return err
	}
	defer conn.Close()
	p, err := f.begin(ctx, conn, url, nil)
	if err != nil {
		return err
	}
	list, lines, err := p.tools(ctx, "")
	if err != nil {
		return err
	}
	if raw {
		if lines == nil {
			lines = []json.RawMessage{}
		}
		text, err := json.MarshalIndent(lines, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s\n", text)
		return nil
	}
	for _, t := range list {
		fmt.Fprintln(out, strings.TrimSpace(terminal.OneLine(t.Name)+" "+signature(&t)))
		about, _, _ := strings.Cut(strings.TrimSpace(t.Description), "\n")
		if about == "" {
			about = t.Title
		}
		if about = terminal.OneLine(about); about != "" {
			fmt.Fprintln(out, "    "+about)
		}
	}
	return nil
}
