package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"holdfast/internal/statefile"
)

// newMan returns the command that writes the pages of the manual, for a release. cobra's own generator makes them from Markdown, with two more
// modules; our help is text that is set as it is.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the pages of the manual into a directory",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("want a directory, as in holdfast man /usr/local/share/man/man1")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // for all users
				return err
			}
			root := cmd.Root()
			root.InitDefaultCompletionCmd()
			for _, c := range append(root.Commands(), root) {
				if c.Hidden {
					continue
				}
				file := filepath.Join(args[0], manName(c)+".1")
				if err := os.WriteFile(file, []byte(manPage(c)), 0o644); err != nil { //nolint:gosec // for all users
					return err
				}
			}
			return nil
		},
	}
}

func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage returns the page of a command, in troff with the macros man(7).
func manPage(c *cobra.Command) string {
	c.InitDefaultHelpFlag()
	var b strings.Builder
	section := func(title, text string) {
		if text = strings.Trim(text, "\n"); text != "" {
			fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n.fi\n", title, troff(text))
		}
	}
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q\n", strings.ToUpper(manName(c)), "holdfast "+versionText())
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", troff(manName(c)), troff(c.Short))
	synopsis := strings.ReplaceAll(c.UseLine(), "\n  ", "\n")
	if c.HasSubCommands() {
		synopsis = c.CommandPath() + " [command]"
	}
	section("SYNOPSIS", synopsis)
	section("DESCRIPTION", c.Long)
	var commands strings.Builder
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(&commands, "%-12s %s\n", sub.Name(), sub.Short)
		}
	}
	section("COMMANDS", commands.String())
	options := c.NonInheritedFlags().FlagUsagesWrapped(78)
	if dir := statefile.Dir(); dir != "" { // of the machine on which the page is made
		options = strings.ReplaceAll(options, dir, "~/.local/state/holdfast")
	}
	section("OPTIONS", options)
	section("OPTIONS OF ALL COMMANDS", c.InheritedFlags().FlagUsagesWrapped(78))
	section("EXAMPLES", c.Example)
	var also []string
	switch {
	case c.HasParent():
		also = append(also, c.Parent().CommandPath()+"(1)")
	default:
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				also = append(also, manName(sub)+"(1)")
			}
		}
	}
	fmt.Fprintf(&b, ".SH \"SEE ALSO\"\n%s\n", troff(strings.Join(also, ", ")))
	return b.String()
}

// troff returns a text that troff sets as it is.
func troff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	var b strings.Builder
	for _, r := range strings.Join(lines, "\n") {
		if r > unicode.MaxASCII {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
