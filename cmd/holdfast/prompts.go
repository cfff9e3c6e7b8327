package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"holdfast/internal/terminal"
)

func newPrompts() *cobra.Command {
	f := newServerFlags()
	raw := false
	cmd := &cobra.Command{
		Use:   "prompts [flags] SERVER [PROMPT [NAME=VALUE]...]\n  holdfast prompts [flags] [PROMPT [NAME=VALUE]...] -- COMMAND ARG...",
		Short: "List the prompts of a server, or get one",

		SuggestFor: []string{"prompt"},

		Long: `Prompts lists the prompts of a server and their arguments. With the name of a PROMPT it gets that
one, and prints its messages. A VALUE may be @FILE, as with 'holdfast call'.

` + serverHelp,
		Example: `  holdfast prompts http://127.0.0.1:8080/mcp
  holdfast prompts http://127.0.0.1:8080/mcp greeting name=Ada`,
		Args:              cobra.ArbitraryArgs, // the function says what is wrong
		ValidArgsFunction: f.completer(completePrompts),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, rest, err := f.target(cmd, args, false)
			if err != nil {
				return err
			}
			var given map[string]string
			if len(rest) > 1 {
				if given, err = promptArguments(rest[1:], cmd.InOrStdin()); err != nil {
					return err
				}
			}
			ctx, p, done, err := f.open(cmd, t)
			if err != nil {
				return err
			}
			defer done()
			if len(rest) == 0 {
				return f.late(ctx, listPrompts(ctx, p, raw, cmd))
			}
			return f.late(ctx, getPrompt(ctx, p, rest[0], given, raw, cmd))
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&raw, "json", false, "print the list, or the prompt, as the server's JSON")
	return cmd
}

// promptArguments returns the arguments of a prompt, which are texts.
func promptArguments(words []string, stdin io.Reader) (map[string]string, error) {
	g, err := giveArguments(words, nil)
	if err != nil {
		return nil, err
	}
	data, err := g.arguments(nil, stdin)
	if err != nil {
		return nil, err
	}
	given := make(map[string]string)
	if err := json.Unmarshal(data, &given); err != nil {
		return nil, usagef("the arguments of a prompt are texts: give NAME=VALUE")
	}
	return given, nil
}

// signatureOfPrompt returns a prompt and its arguments, in brackets if optional.
func signatureOfPrompt(p *mcp.Prompt) string {
	all := []string{terminal.OneLine(p.Name)}
	for _, a := range p.Arguments {
		one := terminal.OneLine(a.Name)
		if !a.Required {
			one = "[" + one + "]"
		}
		all = append(all, one)
	}
	return strings.Join(all, " ")
}

// prompts returns the prompts of the server: all, or those up to the page with the prompt of a name.
func (p *peer) prompts(ctx context.Context, name string) (list []mcp.Prompt, raw []json.RawMessage, err error) {
	raw, err = p.list(ctx, "prompts/list", "prompts", func(one json.RawMessage) (bool, error) {
		var prompt mcp.Prompt
		if err := unmarshalEntry(one, &prompt); err != nil {
			return false, err
		}
		list = append(list, prompt)
		return name != "" && prompt.Name == name, nil
	})
	return list, raw, err
}

func listPrompts(ctx context.Context, p *peer, raw bool, cmd *cobra.Command) error {
	var list []mcp.Prompt
	lines := []json.RawMessage{}
	if p.lists(cmd, "prompts") {
		some, text, err := p.prompts(ctx, "")
		if err != nil {
			return err
		}
		list, lines = some, append(lines, text...)
	}
	out := cmd.OutOrStdout()
	if raw {
		return printJSON(out, lines)
	}
	for i := range list {
		if err := printHeading(out, signatureOfPrompt(&list[i])); err != nil {
			return err
		}
		printAbout(out, list[i].Title, list[i].Description)
	}
	return nil
}

// getPrompt prints the messages of a prompt.
func getPrompt(ctx context.Context, p *peer, name string, given map[string]string, raw bool, cmd *cobra.Command) error {
	list, _, err := p.prompts(ctx, name)
	found := err != nil // then the server decides
	for _, one := range list {
		if one.Name != name {
			continue
		}
		found = true
		for _, a := range one.Arguments {
			if _, ok := given[a.Name]; a.Required && !ok {
				return usagef("%s needs the argument %s: its arguments are %s", terminal.OneLine(name), terminal.OneLine(a.Name), strings.TrimPrefix(signatureOfPrompt(&one), terminal.OneLine(name)+" "))
			}
		}
	}
	if !found {
		var names []string
		for _, one := range list {
			names = append(names, one.Name)
		}
		if len(names) == 0 {
			return fmt.Errorf("unknown prompt %q: the server has no prompts", name)
		}
		if near := nearest(name, names); near != "" {
			return fmt.Errorf("unknown prompt %q: did you mean %s?", name, near)
		}
		return fmt.Errorf("unknown prompt %q: 'holdfast prompts' lists the %d of the server", name, len(list))
	}
	params := map[string]any{"name": name}
	if len(given) > 0 {
		params["arguments"] = given
	}
	result, err := p.request(ctx, "prompts/get", params)
	if err != nil {
		return fmt.Errorf("%s: %w", terminal.OneLine(name), err)
	}
	out := cmd.OutOrStdout()
	if raw {
		return printJSON(out, result)
	}
	var got mcp.GetPromptResult
	if err := json.Unmarshal(result, &got); err != nil {
		return fmt.Errorf("cannot parse the result (--json prints it unchanged): %w", err)
	}
	if len(got.Messages) == 0 {
		return errors.New("the prompt has no messages")
	}
	for _, m := range got.Messages {
		text, about := shown(m.Content)
		if about != "" {
			text = about
		}
		if len(got.Messages) > 1 {
			text = terminal.OneLine(string(m.Role)) + ": " + text
		}
		fmt.Fprintln(out, strings.TrimRight(text, "\n"))
	}
	return nil
}
