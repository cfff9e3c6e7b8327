package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

func newResources() *cobra.Command {
	f := newServerFlags()
	raw := false
	cmd := &cobra.Command{
		Use:   "resources [flags] SERVER [URI]\n  holdfast resources [flags] [URI] -- COMMAND ARG...",
		Short: "List the resources of a server, or read one",

		SuggestFor: []string{"resource", "read", "cat"},

		Long: `Resources lists the resources of a server, and the templates for their URIs. With a URI it reads
that resource and prints what is in it; data that is no text is only written to a file or a pipe.

` + serverHelp,
		Example: `  holdfast resources http://127.0.0.1:8080/mcp
  holdfast resources http://127.0.0.1:8080/mcp file:///etc/motd
  holdfast resources -- npx -y @modelcontextprotocol/server-everything stdio`,
		Args:              cobra.ArbitraryArgs, // the function says what is wrong
		ValidArgsFunction: f.completer(completeResources),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, rest, err := f.target(cmd, args, false)
			if err != nil {
				return err
			}
			if len(rest) > 1 {
				return usagef("want at most one URI: %s has no meaning here", terminal.OneLine(rest[1]))
			}
			ctx, p, done, err := f.open(cmd, t)
			if err != nil {
				return err
			}
			defer done()
			if len(rest) == 1 {
				return f.late(ctx, readResource(ctx, p, rest[0], raw, cmd))
			}
			return f.late(ctx, listResources(ctx, p, raw, cmd))
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&raw, "json", false, "print the lists, or what was read, as the server's JSON")
	return cmd
}

// lists reports whether the server has things of a kind, by its capabilities. If not, the user is told.
func (p *peer) lists(cmd *cobra.Command, kind string) bool {
	if jsonrpc.Field(p.capabilities, kind) != nil {
		return true
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s has no %s.\n", p.name, kind)
	return false
}

// all is the argument found of [peer.list] for all entries.
func all(json.RawMessage) (bool, error) { return false, nil }

func listResources(ctx context.Context, p *peer, raw bool, cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	resources, templates := []json.RawMessage{}, []json.RawMessage{}
	if p.lists(cmd, "resources") {
		list, err := p.list(ctx, "resources/list", "resources", all)
		if err != nil {
			return err
		}
		resources = append(resources, list...)
		list, err = p.list(ctx, "resources/templates/list", "resourceTemplates", all)
		var refused *jsonrpc.Error
		if err != nil && (!errors.As(err, &refused) || refused.Code != jsonrpc.CodeMethodNotFound) {
			return err
		}
		templates = append(templates, list...)
	}
	if raw {
		return printJSON(out, map[string]any{"resources": resources, "resourceTemplates": templates})
	}
	for _, one := range slices.Concat(resources, templates) {
		var r struct{ URI, URITemplate, Name, Title, Description, MIMEType string }
		if err := unmarshalEntry(one, &r); err != nil {
			return fmt.Errorf("%s: resources/list: %w", p.name, err)
		}
		line := terminal.OneLine(r.URI + r.URITemplate)
		if r.MIMEType != "" {
			line += "  " + terminal.OneLine(r.MIMEType)
		}
		if err := printHeading(out, line); err != nil {
			return err
		}
		about := r.Title
		if about == "" {
			about = r.Name
		}
		printAbout(out, about, r.Description)
	}
	return nil
}

// readResource prints the contents of a resource.
func readResource(ctx context.Context, p *peer, uri string, raw bool, cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	result, err := p.request(ctx, "resources/read", map[string]any{"uri": uri})
	if err != nil {
		return fmt.Errorf("%s: %w", terminal.OneLine(uri), err)
	}
	if raw {
		return printJSON(out, result)
	}
	var read struct {
		Contents []struct {
			URI, MIMEType string
			Text          *string
			Blob          *string
		}
	}
	if err := json.Unmarshal(result, &read); err != nil {
		return fmt.Errorf("cannot parse the result (--json prints it unchanged): %w", err)
	}
	for _, c := range read.Contents {
		switch {
		case c.Text != nil:
			text := *c.Text
			if terminal.IsTerminal(out) && !strings.HasSuffix(text, "\n") {
				text += "\n"
			}
			_, err = io.WriteString(out, text)
		case c.Blob != nil:
			var data []byte
			if data, err = base64.StdEncoding.DecodeString(*c.Blob); err != nil {
				return fmt.Errorf("%s: its data is not base64 (--json prints it unchanged): %w", terminal.OneLine(c.URI), err)
			}
			if terminal.IsTerminal(out) {
				fmt.Fprintf(cmd.ErrOrStderr(), "(%s: %s, %d bytes; to write them, send stdout to a file)\n", terminal.OneLine(c.URI), terminal.OneLine(c.MIMEType), len(data))
				continue
			}
			_, err = out.Write(data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
