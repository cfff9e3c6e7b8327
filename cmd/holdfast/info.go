package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/internal/protocol"
	"holdfast/internal/redact"
	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

func newInfo() *cobra.Command {
	f := newServerFlags()
	asJSON := false
	cmd := &cobra.Command{
		Use:   "info [flags] SERVER\n  holdfast info [flags] -- COMMAND ARG...",
		Short: "Print what a server says of itself",

		SuggestFor: []string{"about", "describe", "ping", "show"},

		Long: `Info connects to a server and prints its name, version, revision of the protocol, capabilities and
instructions, and whether calls survive cut connections there: those of a Holdfast server do.

` + serverHelp,
		Example: `  holdfast info http://127.0.0.1:8080/mcp
  holdfast info --json -- npx -y @modelcontextprotocol/server-everything stdio`,
		Args:              cobra.ArbitraryArgs, // the function says what is wrong
		ValidArgsFunction: f.completer(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, rest, err := f.target(cmd, args, false)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return usagef("want one server and nothing else: %s has no meaning here", terminal.OneLine(rest[0]))
			}
			_, p, done, err := f.open(cmd, t)
			if err != nil {
				return err
			}
			defer done()
			info := infoOf(p, t)
			if asJSON {
				return printJSON(cmd.OutOrStdout(), info)
			}
			return info.write(cmd.OutOrStdout())
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}

// A serverInfo is a server's description of itself.
type serverInfo struct {
	Server       string          `json:"server"` // its URL without secrets, or its command
	Name         string          `json:"name,omitempty"`
	Title        string          `json:"title,omitempty"`
	Version      string          `json:"version,omitempty"`
	Revision     string          `json:"revision"`
	Era          string          `json:"era"`                // legacy or modern
	Supported    []string        `json:"supported,omitzero"` // revisions, if the server says them
	Holdfast     bool            `json:"holdfast"`
	Capabilities json.RawMessage `json:"capabilities,omitempty"`
	Instructions string          `json:"instructions,omitempty"`
}

func infoOf(p *peer, t *target) *serverInfo {
	about := jsonrpc.Field(p.said, "serverInfo")
	if about == nil {
		about = jsonrpc.Field(p.said, "_meta", protocol.MetaServerInfo)
	}
	text := func(name string) string { return jsonrpc.String(jsonrpc.Field(about, name)) }
	i := &serverInfo{
		Server: p.name, Name: text("name"), Title: text("title"), Version: text("version"),
		Revision: jsonrpc.String(jsonrpc.Field(p.said, "protocolVersion")), Era: "legacy",
		Instructions: jsonrpc.String(jsonrpc.Field(p.said, "instructions")), Capabilities: p.capabilities,
	}
	if p.meta != nil {
		i.Revision, i.Era = protocol.V20260728, "modern"
		_ = json.Unmarshal(jsonrpc.Field(p.said, "supportedVersions"), &i.Supported) // else the server says none
	}
	if t.stdio() { // this program answers, in front of the server
		i.Server, i.Capabilities = strings.Join(redact.Args(t.command), " "), withoutOurs(i.Capabilities)
		return i
	}
	for _, member := range []string{"experimental", "extensions"} {
		jsonrpc.Each(jsonrpc.Field(p.capabilities, member), func(name, _ []byte) {
			i.Holdfast = i.Holdfast || strings.HasPrefix(string(name), "holdfast/")
		})
	}
	return i
}

// withoutOurs returns capabilities without those that Holdfast adds.
func withoutOurs(capabilities json.RawMessage) json.RawMessage {
	var all map[string]json.RawMessage
	if json.Unmarshal(capabilities, &all) != nil {
		return capabilities
	}
	for _, member := range []string{"experimental", "extensions"} {
		var some map[string]json.RawMessage
		if json.Unmarshal(all[member], &some) != nil {
			continue
		}
		for name := range some {
			if strings.HasPrefix(name, "holdfast/") {
				delete(some, name)
			}
		}
		if delete(all, member); len(some) > 0 {
			if text, err := json.Marshal(some); err == nil {
				all[member] = text
			}
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return capabilities
	}
	return text
}

// write prints the description for a person.
func (i *serverInfo) write(out io.Writer) error {
	var b strings.Builder
	line := func(name, value string) {
		if value = terminal.OneLine(value); value != "" {
			fmt.Fprintf(&b, "%-14s%s\n", name+":", value)
		}
	}
	name := strings.TrimSpace(i.Name + " " + i.Version)
	if i.Title != "" && i.Title != i.Name {
		name = strings.TrimSpace(name + " (" + i.Title + ")")
	}
	line("Server", cmp.Or(name, "(it does not say)"))
	line("At", i.Server)
	era := "with sessions"
	if i.Era == "modern" {
		era = "without sessions"
	}
	line("Revision", i.Revision+", "+era)
	line("Supported", strings.Join(i.Supported, ", "))
	if i.Holdfast {
		line("Holdfast", "yes: calls survive cut connections")
	} else {
		line("Holdfast", "no")
	}
	var all []string
	jsonrpc.Each(i.Capabilities, func(name, value []byte) {
		one := string(name)
		var parts []string
		jsonrpc.Each(value, func(name, value []byte) {
			if string(value) != "false" {
				parts = append(parts, string(name))
			}
		})
		if len(parts) > 0 {
			one += " (" + strings.Join(parts, ", ") + ")"
		}
		all = append(all, one)
	})
	line("Capabilities", cmp.Or(strings.Join(all, ", "), "none"))
	if text := strings.TrimSpace(i.Instructions); text != "" {
		b.WriteString("Instructions:\n")
		indented(&b, "    ", text)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
