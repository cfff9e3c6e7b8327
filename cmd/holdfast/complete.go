package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// completeWithin bounds how long a completion may take. A completion that fails or takes longer is empty, without a message.
const completeWithin = 2 * time.Second

// A completion has the words that are possible, each with a description after a tab.
type completion = []string

// completer returns a function that completes the server of a command, and then the words after it with the completion that of returns.
// of may be nil.
func (f *serverFlags) completer(of func(ctx context.Context, p *peer, words []string) completion) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		none := cobra.ShellCompDirectiveNoFileComp
		if len(args) == 0 {
			return f.serverNames(), none
		}
		if of == nil {
			return nil, none
		}
		if strings.Contains(typed, "=@") || strings.HasPrefix(typed, "@") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		all := f.asked(cmd, args, of)
		if slices.ContainsFunc(all, func(one string) bool { word, _, _ := strings.Cut(one, "\t"); return strings.HasSuffix(word, "=") }) {
			return all, none | cobra.ShellCompDirectiveNoSpace // a value follows
		}
		return all, none
	}
}

// serverNames returns the names of the servers in the files of hosts.
func (f *serverFlags) serverNames() (names []string) {
	files, err := f.hostFiles()
	if err != nil {
		return nil
	}
	for _, h := range files {
		if h.config == nil {
			continue
		}
		for _, s := range h.config.Servers {
			names = append(names, describe(s.Name, h.title))
		}
	}
	return names
}

// asked returns the completion that of makes from answers of the server. It does not log in there.
func (f *serverFlags) asked(cmd *cobra.Command, args []string, of func(context.Context, *peer, []string) completion) completion {
	if fromEnvironment(cmd.Flags()) != nil {
		return nil
	}
	f.login.way.value, f.completes = loginNone, true
	slog.SetDefault(slog.New(slog.DiscardHandler))
	found := make(chan completion, 1)
	ctx, stop := context.WithTimeout(cmd.Context(), completeWithin)
	defer stop()
	go func() {
		t, words, err := f.target(cmd, args, cmd.Name() == "call")
		if err != nil {
			found <- nil
			return
		}
		opts, err := f.options(slog.Default())
		if err != nil {
			found <- nil
			return
		}
		opts.NoListen = true
		conn, done, err := f.dial(t, opts, nil)
		if err != nil {
			found <- nil
			return
		}
		var all completion
		if p, err := f.begin(ctx, conn, t.name(), nil); err == nil {
			all = of(ctx, p, words)
		}
		found <- all
		done()
	}()
	select {
	case all := <-found:
		return all
	case <-ctx.Done():
		return nil
	}
}

func describe(word, about string) string {
	about, _, _ = strings.Cut(strings.TrimSpace(about), "\n")
	return strings.TrimSuffix(terminal.OneLine(word)+"\t"+terminal.OneLine(about), "\t")
}

// completeTools completes the name of a tool, and then its arguments.
func completeTools(ctx context.Context, p *peer, words []string) (all completion) {
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	list, _, err := p.tools(ctx, name)
	if err != nil && len(list) == 0 {
		return nil
	}
	for _, t := range list {
		if name == "" {
			all = append(all, describe(t.Name, t.Description))
			continue
		}
		if t.Name != name {
			continue
		}
		given := make(map[string]bool)
		for _, word := range words[1:] {
			name, _, _ := strings.Cut(word, "=")
			given[name] = true
		}
		jsonrpc.Each(t.InputSchema.Properties, func(name, schema []byte) {
			if !given[string(name)] {
				all = append(all, describe(string(name)+"=", jsonrpc.String(jsonrpc.Field(schema, "description"))))
			}
		})
	}
	return all
}

// completeToolNames completes the name of a tool.
func completeToolNames(ctx context.Context, p *peer, words []string) completion {
	if len(words) > 0 {
		return nil
	}
	return completeTools(ctx, p, nil)
}

// completeResources completes the URI of a resource.
func completeResources(ctx context.Context, p *peer, words []string) (found completion) {
	list, _ := p.list(ctx, "resources/list", "resources", all)
	for _, one := range list {
		if len(words) == 0 {
			found = append(found, describe(jsonrpc.String(jsonrpc.Field(one, "uri")), jsonrpc.String(jsonrpc.Field(one, "name"))))
		}
	}
	return found
}

// completePrompts completes the name of a prompt, and then its arguments.
func completePrompts(ctx context.Context, p *peer, words []string) (all completion) {
	list, _, _ := p.prompts(ctx, "")
	for _, one := range list {
		switch {
		case len(words) == 0:
			all = append(all, describe(one.Name, one.Description))
		case one.Name == words[0]:
			for _, a := range one.Arguments {
				all = append(all, describe(a.Name+"=", a.Description))
			}
		}
	}
	return all
}
