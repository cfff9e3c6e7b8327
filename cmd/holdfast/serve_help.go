package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A flagGroup is a part of the flags of a command, as its help shows them. declare adds them to a set.
type flagGroup struct {
	title   string
	declare func(*pflag.FlagSet)
}

// In the help of a command with many flags lines have up to helpWidth columns, and the text
// about a flag begins at helpColumn.
const (
	helpWidth  = 100
	helpColumn = 34
)

// groupFlags adds flags to a command. The command's help shows them in their groups, and others at the end.
func groupFlags(cmd *cobra.Command, groups []flagGroup) {
	sets := make([]*pflag.FlagSet, len(groups))
	for i, g := range groups {
		sets[i] = pflag.NewFlagSet("", pflag.ContinueOnError)
		sets[i].SortFlags = false
		g.declare(sets[i])
		cmd.Flags().AddFlagSet(sets[i])
	}
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		rest := cmd.LocalFlags()
		var text strings.Builder
		fmt.Fprintf(&text, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		show := func(title string, flags *pflag.FlagSet) {
			fmt.Fprintf(&text, "\n%s:\n", title)
			flags.VisitAll(func(f *pflag.Flag) { writeFlag(&text, f) })
		}
		for i, g := range groups {
			show(g.title, sets[i])
			rest = without(rest, sets[i])
		}
		rest.AddFlagSet(cmd.InheritedFlags())
		show("Other flags", rest)
		_, err := fmt.Fprint(cmd.OutOrStderr(), text.String())
		return err
	})
}

// writeFlag writes the help of one flag.
func writeFlag(text *strings.Builder, f *pflag.Flag) {
	one := pflag.NewFlagSet("", pflag.ContinueOnError)
	one.AddFlag(f)
	name, usage, _ := strings.Cut(strings.TrimSpace(one.FlagUsages()), "   ")
	line := "  " + name
	if len(line) > helpColumn-2 {
		text.WriteString(line + "\n")
		line = ""
	}
	line += strings.Repeat(" ", helpColumn-len(line))
	for i, word := range strings.Fields(usage) {
		switch {
		case i == 0:
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > helpWidth:
			text.WriteString(line + "\n")
			line = strings.Repeat(" ", helpColumn)
		default:
			line += " "
		}
		line += word
	}
	text.WriteString(line + "\n")
}

// without returns the flags of a set that are not in another.
func without(all, not *pflag.FlagSet) *pflag.FlagSet {
	rest := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.VisitAll(func(f *pflag.Flag) {
		if not.Lookup(f.Name) == nil {
			rest.AddFlag(f)
		}
	})
	return rest
}
