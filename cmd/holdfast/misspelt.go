package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// An error at the start is one line, which says what to do next: users read that line first.

var quotedCommand = regexp.MustCompile(`^unknown command (".*?[^\\]"|"") for `)

// unknownCommand returns the name of the command that cobra does not know, if that is the error.
func unknownCommand(err error) (name string, ok bool) {
	m := quotedCommand.FindStringSubmatch(err.Error())
	if m == nil {
		return "", false
	}
	if name, err = strconv.Unquote(m[1]); err != nil {
		name = m[1]
	}
	return name, true
}

// wrongCommand returns the error for a command that does not exist.
func wrongCommand(root *cobra.Command, name string) error {
	if near := root.SuggestionsFor(name); len(near) > 0 {
		return usagef("unknown command %q: did you mean 'holdfast %s'?", name, near[0])
	}
	return usagef("unknown command %q: 'holdfast help' lists the commands", name)
}

// otherNames has the names that other programs have for our flags, or for their subjects.
var otherNames = map[string]string{
	"port": "listen", "host": "listen", "bind": "listen", "addr": "listen", "address": "listen",
	"url": "upstream", "target": "upstream", "server": "upstream", "backend": "upstream",
	"file": "config", "conf": "config", "mcp-config": "config",
	"verbose": "log-level", "debug": "log-level", "quiet": "log-level",
	"cert": "tls-cert", "key": "tls-key", "cors": "allow-origin", "origin": "allow-origin",
	"token": "header", "auth": "header", "bearer": "header", "headers": "header", "args": "arg", "argument": "arg",
	"timeout": "max-wait", "redis": "store",
}

// wrongFlag returns the error for a wrong flag on the command line.
func wrongFlag(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	var none *pflag.ValueRequiredError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &value):
		return wrongValue("--"+value.GetFlag().Name, value)
	case errors.As(err, &none):
		return usagef("--%s has no value: %s", none.GetFlag().Name, wanted(none.GetFlag()))
	case errors.As(err, &unknown):
		return unknownFlag(cmd, unknown)
	}
	return usagef("%w: '%s --help' lists the flags", err, cmd.CommandPath())
}

// unknownFlag returns the error for a flag that the command does not have.
func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	name, shown := unknown.GetSpecifiedName(), "--"+unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" { // of -listen it is "listen"
		name, shown = short, "-"+short
	}
	if same := similarFlag(cmd.Flags(), name); same != "" {
		return usagef("unknown flag %s: did you mean --%s?", shown, same)
	}
	if cmd.Name() == "check" && name == "config" {
		return usagef("unknown flag %s: the file is an argument, as in %s FILE", shown, cmd.CommandPath())
	}
	for _, c := range cmd.Root().Commands() {
		switch same := similarFlag(c.Flags(), name); {
		case same == "" || c == cmd:
		case !cmd.HasParent():
			return usagef("unknown flag %s: did you mean '%s --%s'?", shown, c.CommandPath(), same)
		case same == name:
			return usagef("unknown flag %s: it is one of '%s': '%s --help' lists those of this command", shown, c.CommandPath(), cmd.CommandPath())
		}
	}
	if cmd.Flags().Lookup("arg") != nil {
		return usagef("unknown flag %s: '%s --help' lists the flags; an argument of the tool is given as --arg %s=VALUE", shown, cmd.CommandPath(), name)
	}
	return usagef("unknown flag %s: '%s --help' lists the flags", shown, cmd.CommandPath())
}

// similarFlag returns the flag that a name may stand for; "": none.
func similarFlag(flags *pflag.FlagSet, name string) string {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	for _, one := range []string{name, otherNames[name]} {
		if len(one) > 1 && flags.Lookup(one) != nil {
			return one
		}
	}
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return nearest(name, names)
}

// nearest returns the one of names that name was likely meant to be; "": none.
func nearest(name string, names []string) string {
	found, least := "", 1+min(2, len(name)/3)
	for _, one := range names {
		if far := distance(name, one); far < least {
			found, least = one, far
		}
	}
	return found
}

// swallowed returns an error if a flag has another flag for its value, as its own value was forgotten.
func swallowed(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		if other, ok := strings.CutPrefix(f.Value.String(), "--"); ok && err == nil && flags.Lookup(other) != nil {
			err = usagef("--%s has no value, as --%s follows it: %s", f.Name, other, wanted(f))
		}
	})
	return err
}

// wanted returns a text about the value that a flag wants, with an example if there is one.
func wanted(f *pflag.Flag) string {
	switch kind := f.Value.Type(); kind {
	case "duration":
		if _, ok := f.Value.(*offDuration); ok {
			return "want a duration like 500ms, 30s, 10m or 2h, or never"
		}
		return "want a duration like 500ms, 30s, 10m or 2h"
	case "bool":
		return "want true or false"
	case "int":
		return "want a whole number"
	case "float64":
		return "want a number like 0.75"
	case "size":
		return "want a whole size like 512KiB, 4MiB or 1GiB"
	case "rate":
		return "want a rate like 50/s, 600/m or 10/h"
	case "string", "stringArray":
		kind, _ = pflag.UnquoteUsage(f)
		return fmt.Sprintf("want --%s %s", f.Name, strings.ToUpper(kind))
	default:
		return "want one of " + strings.ReplaceAll(kind, "|", ", ")
	}
}

// wrongValue returns the error for a wrong value of a flag, or of its environment variable.
func wrongValue(name string, err *pflag.InvalidValueError) error {
	want := err.Unwrap().Error()
	switch err.GetFlag().Value.Type() {
	case "duration", "bool", "int", "float64":
		want = wanted(err.GetFlag())
	}
	return usagef("%s %q: %s", name, err.GetValue(), want)
}

// fromVariable is the annotation of a flag that was set by an environment variable, with the variable's name.
const fromVariable = "holdfast_variable"

// setElsewhere returns a text that says which environment variables have set the flags that an error names: a
// user looks for the flags on the command line.
func setElsewhere(flags *pflag.FlagSet, text string) string {
	var all []string
	flags.VisitAll(func(f *pflag.Flag) {
		if v := f.Annotations[fromVariable]; v != nil && regexp.MustCompile(`--`+regexp.QuoteMeta(f.Name)+`(?:[^-\w]|$)`).MatchString(text) {
			all = append(all, fmt.Sprintf("--%s is set by %s", f.Name, v[0]))
		}
	})
	if all == nil {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}

// ownVariables are the variables of holdfast that set no flag.
var ownVariables = []string{clientSecret, upstreamSecret, clientSecretOf, "HOLDFAST_PROCESS_TAG", "HOLDFAST_NPM", launcherVariable}

// misspelt returns an error if an environment variable has almost the name of one that sets a flag, of any command. Other
// variables may be of another program: Kubernetes makes some for a service that is called holdfast.
func misspelt(root *cobra.Command) error {
	const prefix = "HOLDFAST_"
	var names []string // without the prefix, which would make all of them alike
	for _, v := range ownVariables {
		names = append(names, strings.TrimPrefix(v, prefix))
	}
	for _, c := range append(root.Commands(), root) {
		for _, flags := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) {
				if !noVariable[f.Name] {
					names = append(names, strings.TrimPrefix(variableOf(f), prefix))
				}
			})
		}
	}
	all := os.Environ()
	slices.Sort(all) // the error names the same variable each time
	for _, v := range all {
		variable, _, _ := strings.Cut(v, "=")
		name, ours := strings.CutPrefix(variable, prefix)
		if !ours || strings.HasPrefix(name, "INPUT_") || slices.Contains(names, name) {
			continue
		}
		if near := nearest(name, names); near != "" {
			return usagef("the environment variable %s sets no flag: did you mean %s%s?", variable, prefix, near)
		}
	}
	return nil
}

// variableOf returns the environment variable that sets a flag.
func variableOf(f *pflag.Flag) string {
	return "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// distance returns how many letters must be put in, taken out, replaced or swapped with the next to make one word of
// another.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i][j-1]+1, rows[i-1][j]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// wrongFile returns the error for a file that a flag names and that cannot be used, with advice.
func wrongFile(flag string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = ": is the path right?"
	case errors.Is(err, fs.ErrPermission):
		hint = fmt.Sprintf(": let the user that holdfast runs as (uid %d) use it", os.Getuid())
	case errors.Is(err, syscall.EISDIR):
		hint = ": give a file in it"
	}
	return fmt.Errorf("%s: %w%s", flag, err, hint)
}

// checkAddress returns an error if the value of a flag is not an address to listen on.
func checkAddress(flag, addr, example string) error {
	host, port, err := net.SplitHostPort(addr)
	switch {
	case err != nil && strings.Count(addr, ":") > 1 && !strings.Contains(addr, "/"):
		return usagef("%s %q: want HOST:PORT, with an IPv6 address in brackets: [::1]:8080", flag, addr)
	case err != nil:
		return usagef("%s %q: want HOST:PORT like %s", flag, addr, example)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return usagef("%s %q: the port %q is not one: want a number from 1 to 65535, or 0 for a free port", flag, addr, port)
	}
	if strings.Contains(host, "/") {
		return usagef("%s %q: want HOST:PORT like %s", flag, addr, example)
	}
	return nil
}

// notListening returns the error for an address that cannot be listened on.
func notListening(flag, addr string, err error) error {
	var name *net.DNSError
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s %s is in use by another program: choose another address (port 0: a free one)", flag, addr)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s %s: this user may not listen on that port: choose one above 1023, or give the program the capability CAP_NET_BIND_SERVICE", flag, addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s %s: no interface of this machine has that address: choose 127.0.0.1, or 0.0.0.0 for all interfaces", flag, addr)
	case errors.As(err, &name):
		return fmt.Errorf("%s %s: there is no host %q: choose 127.0.0.1, or 0.0.0.0 for all interfaces", flag, addr, name.Name)
	}
	return fmt.Errorf("%s %s: %w", flag, addr, err)
}
