package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

func newTools() *cobra.Command {
	f := newServerFlags()
	raw := false
	cmd := &cobra.Command{
		Use:   "tools [flags] SERVER [TOOL]\n  holdfast tools [flags] [TOOL] -- COMMAND ARG...",
		Short: "List the tools of a server, or show one",

		SuggestFor: []string{"list", "ls", "inspect"},

		Long: `Tools lists the tools of a server and their arguments. Of one TOOL it shows all arguments, with
their types, values, defaults and descriptions.

` + serverHelp,
		Example: `  holdfast tools http://127.0.0.1:8080/mcp
  holdfast tools localhost:8080/mcp count
  holdfast tools -- npx -y @modelcontextprotocol/server-everything stdio`,
		Args:              cobra.ArbitraryArgs, // the function says what is wrong
		ValidArgsFunction: f.completer(completeToolNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return listTools(cmd, &f, args, raw)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&raw, "json", false, "print the list, or the one tool, as the server's JSON")
	return cmd
}

func listTools(cmd *cobra.Command, f *serverFlags, args []string, raw bool) error {
	t, rest, err := f.target(cmd, args, false)
	if err != nil {
		return err
	}
	if len(rest) > 1 {
		return usagef("want the name of at most one tool: %s has no meaning here", terminal.OneLine(rest[1]))
	}
	name := ""
	if len(rest) > 0 {
		name = rest[0]
	}
	ctx, p, done, err := f.open(cmd, t)
	if err != nil {
		return err
	}
	defer done()
	return f.late(ctx, printTools(ctx, p, name, raw, cmd.OutOrStdout()))
}

func printTools(ctx context.Context, p *peer, name string, raw bool, out io.Writer) error {
	list, lines, err := p.tools(ctx, name)
	if err != nil {
		return err
	}
	if name != "" {
		for i := range list {
			switch {
			case list[i].Name != name:
			case raw:
				return printJSON(out, lines[i])
			default:
				return showTool(out, &list[i], lines[i])
			}
		}
		return unknownTool(name, list)
	}
	if raw {
		if lines == nil {
			lines = []json.RawMessage{}
		}
		return printJSON(out, lines)
	}
	for _, t := range list {
		if err := printHeading(out, strings.TrimSpace(terminal.OneLine(t.Name)+" "+signature(&t))); err != nil {
			return err
		}
		printAbout(out, t.Title, t.Description)
	}
	return nil
}

// printHeading prints a heading, in bold.
func printHeading(out io.Writer, text string) error {
	if err := terminal.Bold.Print(out, text); err != nil {
		return err
	}
	_, err := io.WriteString(out, "\n")
	return err
}

// printAbout prints the first line of a description, or else a title.
func printAbout(out io.Writer, title, description string) {
	about, _, _ := strings.Cut(strings.TrimSpace(description), "\n")
	if about == "" {
		about = title
	}
	if about = terminal.OneLine(about); about != "" {
		fmt.Fprintln(out, "    "+about)
	}
}

// showTool prints the whole description of a tool.
func showTool(out io.Writer, t *tool, raw []byte) error {
	var b strings.Builder
	heading := terminal.OneLine(t.Name)
	if title := terminal.OneLine(t.Title); title != "" && title != t.Name {
		heading += " (" + title + ")"
	}
	if err := printHeading(out, heading); err != nil {
		return err
	}
	indented(&b, "    ", t.Description)
	if hints := hintsOf(raw); len(hints) > 0 {
		b.WriteString("    " + strings.Join(hints, ", ") + "\n")
	}
	if t.Execution.TaskSupport == "required" {
		b.WriteString("    runs as a task\n")
	}
	schema := jsonrpc.Field(raw, "inputSchema")
	s := schemaText{root: schema, out: &b}
	var body strings.Builder
	s.out = &body
	if s.properties(schema, "", 0); body.Len() > 0 {
		b.WriteString("\nArguments:\n" + body.String())
	} else {
		b.WriteString("\nIt has no arguments.\n")
	}
	if output := jsonrpc.Field(raw, "outputSchema"); output != nil {
		body.Reset()
		s.root = output
		if s.properties(output, "", 0); body.Len() > 0 {
			b.WriteString("\nResult:\n" + body.String())
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// hintsOf returns the annotations of a tool in words.
func hintsOf(raw []byte) (hints []string) {
	for _, one := range []struct{ member, is, not string }{
		{"readOnlyHint", "read-only", ""}, {"destructiveHint", "destructive", "not destructive"},
		{"idempotentHint", "idempotent", ""}, {"openWorldHint", "reaches beyond the server", ""},
	} {
		switch string(jsonrpc.Field(raw, "annotations", one.member)) {
		case "true":
			hints = append(hints, one.is)
		case "false":
			if one.not != "" {
				hints = append(hints, one.not)
			}
		}
	}
	return hints
}

// indented writes the lines of a text, each with by before it.
func indented(b *strings.Builder, by, text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		if line = strings.TrimRight(line, " \t\r\n"); line == "" {
			b.WriteString("\n")
		} else {
			b.WriteString(by + line + "\n")
		}
	}
}
