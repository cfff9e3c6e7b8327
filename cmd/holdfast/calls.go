package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/followcall"
	"holdfast/internal/terminal"
)

// callsFlags are the flags of holdfast calls.
type callsFlags struct {
	state string
	json  bool
	all   bool
	token string
}

func newCalls() *cobra.Command {
	var f callsFlags
	cmd := &cobra.Command{
		Use:   "calls [flags]",
		Short: "List the unfinished calls of this machine",

		SuggestFor: []string{"jobs", "ps", "pending"},

		Long: `Calls lists the calls that 'holdfast call' has begun on this machine and whose result it has
not printed: their name, tool, server, age and last progress. It asks no server: 'holdfast
status NAME' does, 'holdfast resume NAME' gets the result, and 'holdfast cancel NAME' ends a call.

"followed" are calls that another command waits for. Calls that were cancelled are listed
with --all. A call is forgotten a week after the last news of it, or as the oldest of more than 200.`,
		Example: `  holdfast calls
  holdfast calls --json
  holdfast calls --token count-k3f9`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              f.run,
	}
	addState(cmd, &f.state, "unfinished calls")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the list as JSON, with times as in RFC 3339")
	cmd.Flags().BoolVar(&f.all, "all", false, "list calls that were cancelled, too")
	cmd.Flags().StringVar(&f.token, "token", "", "print the token of the call with this `name`, with which it can be resumed on another machine. It is a secret")
	_ = cmd.RegisterFlagCompletionFunc("token", completeCalls) // fails for unknown flags only
	return cmd
}

func (f *callsFlags) run(cmd *cobra.Command, _ []string) error {
	calls, out := followcall.SavedCallsIn(f.state), cmd.OutOrStdout()
	if f.token != "" {
		named, err := find(cmd, []string{f.token}, calls, false)
		if err != nil {
			return err
		}
		token := followcall.Token(named.state)
		if token == "" {
			return fmt.Errorf("%s has no token: its server offers no way to resume it from elsewhere", f.token)
		}
		_, err = fmt.Fprintln(out, token)
		return err
	}
	if err := calls.Readable(); err != nil {
		return wrongFile("--state", err)
	}
	list := []followcall.Kept{}
	for _, k := range calls.List() {
		if f.all || k.Cancelled.IsZero() {
			list = append(list, k)
		}
	}
	if f.json {
		all := make([]callJSON, 0, len(list))
		for i := range list {
			all = append(all, jsonOfCall(&list[i]))
		}
		return printJSON(out, all)
	}
	if len(list) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "There are no unfinished calls.")
		return nil
	}
	writeCalls(out, list)
	return nil
}

// A callJSON is an unfinished call as JSON.
type callJSON struct {
	Name      string         `json:"name"`
	Tool      string         `json:"tool"`
	Server    string         `json:"server"` // its URL, without secrets
	State     string         `json:"state"`
	Began     time.Time      `json:"began"`
	Updated   time.Time      `json:"updated"`
	Cancelled time.Time      `json:"cancelled,omitzero"`
	Progress  *terminal.Step `json:"progress,omitempty"`
}

func jsonOfCall(k *followcall.Kept) callJSON {
	return callJSON{
		Name: k.Name, Tool: k.Tool, Server: redacted(k.State.URL), State: stateOfCall(k), Began: inUTC(k.Began), Updated: inUTC(k.Updated),
		Cancelled: inUTC(k.Cancelled), Progress: k.Progress,
	}
}

func inUTC(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// stateOfCall returns the state of a call on this machine.
func stateOfCall(k *followcall.Kept) string {
	switch {
	case !k.Cancelled.IsZero():
		return "cancelled"
	case k.Followed:
		return "followed"
	}
	return "left"
}

// printJSON prints a value as JSON, indented.
func printJSON(out io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}

// writeCalls writes a table of calls.
func writeCalls(out io.Writer, list []followcall.Kept) {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tTOOL\tSERVER\tAGE\tSTATE\tPROGRESS")
	for i := range list {
		k := &list[i]
		step := "-"
		if k.Progress != nil {
			step = strings.TrimPrefix(k.Progress.String(), "progress ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", k.Name, terminal.OneLine(k.Tool), terminal.OneLine(k.Server()), age(time.Since(k.Began)), stateOfCall(k), step)
	}
	_ = w.Flush() // a Builder takes all
	heading, rows, _ := strings.Cut(table.String(), "\n")
	_ = printHeading(out, strings.TrimRight(heading, " "))
	_, _ = io.WriteString(out, rows)
}

// age returns a duration in its largest unit.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// completeCalls completes the name of an unfinished call.
func completeCalls(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	if flag := cmd.Flag("state"); flag != nil && len(args) == 0 {
		for _, k := range followcall.SavedCallsIn(flag.Value.String()).List() {
			names = append(names, fmt.Sprintf("%s\t%s at %s", k.Name, terminal.OneLine(k.Tool), terminal.OneLine(k.Server())))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
