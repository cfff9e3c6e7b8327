package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast"
	"holdfast/internal/statefile"
)

// A usageError is a mistake in the command line. The exit code is 2.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// listOf returns the values in a variable for a flag that can be repeated. They are separated by commas, or, if the variable
// has a line break, by line breaks: a value may have a comma in it.
func listOf(value string) []string {
	if !strings.Contains(value, "\n") {
		return strings.Split(value, ",")
	}
	var all []string
	for line := range strings.SplitSeq(value, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// asList returns the value of a variable for which [listOf] returns all.
func asList(all []string) string {
	if slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, ",") }) {
		return strings.Join(all, "\n") + "\n"
	}
	return strings.Join(all, ",")
}

// noVariable has the flags that no variable sets. HOLDFAST_TOKEN is a likely name for a token of a server, which is no value of --token.
var noVariable = map[string]bool{"help": true, "version": true, "token": true}

// fromEnvironment sets flags that are not on the command line from HOLDFAST_ variables. For
// a flag that can be repeated, the variable is a list.
func fromEnvironment(flags *pflag.FlagSet) error {
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		name := variableOf(f)
		value, ok := os.LookupEnv(name)
		if !ok || f.Changed || err != nil || noVariable[f.Name] {
			return
		}
		if value == "" && !strings.HasPrefix(f.Value.Type(), "string") {
			return // some tools set a variable to nothing where there is no value
		}
		if value != "" {
			_ = flags.SetAnnotation(f.Name, fromVariable, []string{name}) // fails for unknown flags only
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			err = list.Replace(listOf(value))
			return
		}
		var invalid *pflag.InvalidValueError
		switch e := flags.Set(f.Name, value); {
		case e == nil:
		case errors.As(e, &invalid):
			err = wrongValue(name, invalid)
		default:
			err = usagef("%s: %w", name, e)
		}
	})
	return err
}

// A choice is the value of a flag that takes one of a few words.
type choice struct {
	value string
	of    []string
}

// An autoDuration is an [offDuration], or "auto", which is [holdfast.Auto].
type autoDuration time.Duration

// An offDuration is the value of a flag for a time that can be switched off: by "never", by 0, which is not the same as to leave the
// flag out, and by a negative time, as in [holdfast.Options]. All are [holdfast.Never].
type offDuration time.Duration

// String implements [pflag.Value].
func (d *offDuration) String() string {
	if *d <= 0 {
		return "never"
	}
	return time.Duration(*d).String()
}

// Set implements [pflag.Value].
func (d *offDuration) Set(s string) error {
	v := holdfast.Never
	if s != "never" {
		var err error
		if v, err = time.ParseDuration(s); err != nil {
			return errors.New("want a duration like 30s, or never")
		}
	}
	if v <= 0 {
		v = holdfast.Never
	}
	*d = offDuration(v)
	return nil
}

// Type implements [pflag.Value].
func (d *offDuration) Type() string { return "duration" }

// offDurationVar adds a flag for a time that can be switched off.
func offDurationVar(fs *pflag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	*d = value
	fs.Var((*offDuration)(d), name, usage)
}

// autoDurationVar adds a flag for a time that is "auto" by default.
func autoDurationVar(fs *pflag.FlagSet, d *time.Duration, name, usage string) {
	*d = holdfast.Auto
	fs.Var((*autoDuration)(d), name, usage)
}

// String implements [pflag.Value].
func (d *autoDuration) String() string {
	if time.Duration(*d) == holdfast.Auto {
		return "auto"
	}
	return (*offDuration)(d).String()
}

// Set implements [pflag.Value].
func (d *autoDuration) Set(s string) error {
	if s == "auto" {
		*d = autoDuration(holdfast.Auto)
		return nil
	}
	if (*offDuration)(d).Set(s) != nil {
		return errors.New("want auto, a duration like 50s, or never")
	}
	return nil
}

// Type implements [pflag.Value].
func (d *autoDuration) Type() string { return "auto|duration" }

// String implements [pflag.Value].
func (c *choice) String() string { return c.value }

// Set implements [pflag.Value].
func (c *choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		last := len(c.of) - 1
		return fmt.Errorf("want %s or %s", strings.Join(c.of[:last], ", "), c.of[last])
	}
	c.value = s
	return nil
}

// Type implements [pflag.Value].
func (c *choice) Type() string { return strings.Join(c.of, "|") }

// choiceVar adds a flag that takes one of a few words, by default the first.
func choiceVar(fs *pflag.FlagSet, c *choice, name string, of []string, usage string) {
	c.value, c.of = of[0], of
	fs.Var(c, name, usage)
}

// completeChoices makes the shell complete the words of each choice among the flags of a command.
func completeChoices(cmd *cobra.Command) {
	complete := func(f *pflag.Flag) {
		if c, ok := f.Value.(*choice); ok {
			words := cobra.FixedCompletions(c.of, cobra.ShellCompDirectiveNoFileComp)
			_ = cmd.RegisterFlagCompletionFunc(f.Name, words) // fails for unknown flags only
		}
	}
	cmd.Flags().VisitAll(complete)
	cmd.PersistentFlags().VisitAll(complete)
}

// sizeVar adds a flag for a number of bytes.
func sizeVar(fs *pflag.FlagSet, n *int64, name string, value int64, usage string) {
	*n = value
	fs.Var((*byteSize)(n), name, usage)
}

// A byteSize is the value of a flag for a number of bytes, like 4MiB.
type byteSize int64

var units = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1}, {"", 1}}

// String implements [pflag.Value].
func (b *byteSize) String() string {
	for _, u := range units[:3] {
		if *b > 0 && int64(*b)%u.bytes == 0 {
			return strconv.FormatInt(int64(*b)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Set implements [pflag.Value].
func (b *byteSize) Set(s string) error {
	i := 0
	for !strings.HasSuffix(s, units[i].suffix) { // the last suffix fits anything
		i++
	}
	u := units[i]
	n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(s, u.suffix)), 10, 64)
	if err != nil || n <= 0 || n > (1<<62)/u.bytes {
		return errors.New("want a whole size like 512KiB, 4MiB or 1GiB")
	}
	*b = byteSize(n * u.bytes)
	return nil
}

// Type implements [pflag.Value].
func (b *byteSize) Type() string { return "size" }

// addState adds the flag for the directory of state files. The text what names their content.
func addState(cmd *cobra.Command, dir *string, what string) {
	cmd.Flags().StringVar(dir, "state", statefile.Dir(), "`directory` to keep "+what+" in; empty: keep nothing")
	_ = cmd.MarkFlagDirname("state") // fails for unknown flags only
}
