package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// The help of serve shows each flag once, in its group.
func TestServeHelpGroups(t *testing.T) {
	t.Parallel()
	cmd, f := newServeFlags()
	var grouped, all []string
	for _, g := range f.groups() {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		g.declare(flags)
		flags.VisitAll(func(f *pflag.Flag) { grouped = append(grouped, f.Name) })
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			all = append(all, f.Name)
		}
	})
	slices.Sort(grouped)
	if !slices.Equal(grouped, all) {
		t.Errorf("in groups: %q\nflags: %q", grouped, all)
	}
	help := cmd.UsageString()
	for _, name := range all {
		if n := strings.Count(help, "\n  --"+name+" "); n != 1 {
			t.Errorf("--%s is %d times in the help", name, n)
		}
	}
	for line := range strings.Lines(help) {
		if len([]rune(line)) > helpWidth+1 {
			t.Errorf("a long line: %s", line)
		}
	}
}
