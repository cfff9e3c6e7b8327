package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A flagGroup is a part of the flags of a command, as its help shows them.
type flagGroup struct{ title, names string }

// serveGroups returns the flags of serve in the order of its help: what a first reader needs is
// first.
func serveGroups() []flagGroup {
	return []flagGroup{
		{"What to serve", "demo upstream config share"},
		{"Where to listen", "listen path sse-path allow-host allow-origin trust-proxy"},
		{"Calls and sessions", "store keep session-ttl sleep-after session-life session-keys state-dir max-wait drain role stateless"},
		{"Slow calls", "task-after handoff-after progress-every disconnect-after"},
		{"Calls that come again", "attach-within call-id cut-grace"},
		{"Limits", "memory max-share max-sessions max-calls max-processes max-body unused-process"},
		{"Limits for each client", "rate rate-burst rate-address rate-address-burst max-calls-principal max-calls-tool queue queue-wait"},
		{"Who may connect", "auth-issuer auth-audience auth-scopes auth-resource auth-client-id auth-client-secret-file auth-introspection auth-dpop-required auth-dpop-nonce auth-keys auth-grace tls-cert tls-key tls-client-ca"},
		{"The server behind --upstream", "upstream-wait upstream-header upstream-auth upstream-token-url upstream-client-id upstream-client-secret-file upstream-scopes upstream-audience upstream-resource"},
		{"Variables of --config", "input workspace"},
		{"For operators", "admin admin-token audit audit-arguments stderr-to-client trace-parent webhook-secret webhook-allow"},
		{"Protocol", "eras response upgrade-after retry keepalive ping-after legacy-only"},
	}
}

// In the help of a command with many flags lines have up to helpWidth columns, and what a flag
// does begins at helpColumn.
const (
	helpWidth  = 100
	helpColumn = 34
)

// groupFlags has the help of a command show its flags in groups, and those that are in no group
// at the end.
func groupFlags(cmd *cobra.Command, groups []flagGroup) {
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		rest := pflag.NewFlagSet("", pflag.ContinueOnError)
		rest.AddFlagSet(cmd.LocalFlags())
		var text strings.Builder
		fmt.Fprintf(&text, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		show := func(title string, flags *pflag.FlagSet) {
			fmt.Fprintf(&text, "\n%s:\n", title)
			flags.VisitAll(func(f *pflag.Flag) { writeFlag(&text, f) })
		}
		for _, g := range groups {
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			flags.SortFlags = false
			for name := range strings.FieldsSeq(g.names) {
				if f := rest.Lookup(name); f != nil {
					flags.AddFlag(f)
				}
			}
			show(g.title, flags)
			rest = without(rest, flags)
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
