package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"holdfast"
	"holdfast/internal/auth"
	"holdfast/internal/config"
	manyservers "holdfast/internal/servers"
)

// configFlags are the flags for a configuration file.
type configFlags struct {
	file      string
	checked   bool // by 'holdfast check', which has no --config
	workspace string
	inputs    []string
}

// addValues adds the flags for the values of variables in the file.
func (f *configFlags) addValues(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.inputs, "input", nil, "value of an ${input:ID} in the configuration, as `ID=VALUE` (can be repeated). Other users can see a command line: better set HOLDFAST_INPUT_ID")
	fs.StringVar(&f.workspace, "workspace", "", "`directory` in which servers run, and that ${workspaceFolder} in the configuration stands for (default that of the file, or the one above .vscode and the like)")
	_ = cobra.MarkFlagDirname(fs, "workspace") // fails for unknown flags only
}

// check returns an error for wrong values of flags.
func (f *configFlags) check() error {
	if f.file == "" && (f.workspace != "" || len(f.inputs) > 0) {
		return usagef("--workspace and --input are for a configuration file: give it with --config")
	}
	if is, err := os.Stat(f.workspace); f.workspace != "" && (err != nil || !is.IsDir()) {
		return usagef("--workspace %s: there is no such directory, in which servers could run", f.workspace)
	}
	for _, v := range f.inputs {
		if id, _, ok := strings.Cut(v, "="); !ok || id == "" {
			return usagef("--input has no =: want ID=VALUE") // its text may be the value, which is not shown
		}
	}
	return nil
}

// configured is a configuration file that is served.
type configured struct {
	file    string
	checked bool      // by 'holdfast check'
	out     io.Writer // for questions
	options config.Options
	values  map[string]string // of inputs, as far as they are known
	set     *manyservers.Set
	stderr  bool                       // --stderr-to-client
	allows  func(*config.Server) error // says why a server cannot be served; nil: any can
	text    []byte                     // of the file, when it was last read
	seen    []byte                     // another text, at the last look; nil: there was none
	missed  int                        // how often the file could not be read, lately
	stop    context.CancelFunc         // ends watching
	applied func()                     // is called after a change of the file was applied
	work    sync.WaitGroup
}

// prepare returns a configured, which has not read the file.
func (f *configFlags) prepare(out io.Writer) *configured {
	c := &configured{file: f.file, checked: f.checked, out: out, values: make(map[string]string)}
	for _, v := range f.inputs {
		id, value, _ := strings.Cut(v, "=")
		c.values[id] = value
	}
	c.options = config.Options{Workspace: f.workspace, Input: c.input(true)}
	return c
}

// open reads the file. runs says that this node runs the servers.
func (f *configFlags) open(out io.Writer, allows func(*config.Server) error, stderrToClient, runs bool) (*configured, error) {
	c := f.prepare(out)
	c.allows, c.stderr = allows, stderrToClient
	text, file, err := c.read()
	if err != nil {
		return nil, err
	}
	tellIgnored(file)
	tellLeftOut(file)
	c.options.Input = c.input(false) // no user waits at a terminal later
	c.text, c.set = text, manyservers.New(file, nil)
	if runs {
		c.set.TellNotRunnable()
		tellNone(file)
	}
	c.stop, c.applied = func() {}, func() {}
	return c, nil
}

// read reads the file.
func (c *configured) read() (text []byte, file *config.File, err error) {
	if text, err = os.ReadFile(c.file); err != nil {
		if c.checked {
			return nil, nil, wrongFile(c.file, errors.Unwrap(err))
		}
		return nil, nil, wrongFile("--config", err)
	}
	if file, err = config.Parse(c.file, text, c.options); err != nil {
		return text, nil, err
	}
	for _, s := range file.Servers {
		s.StderrToClient = c.stderr
		if c.allows == nil {
			continue
		}
		if err := c.allows(s); err != nil { // the server must not be served
			return text, nil, fmt.Errorf("%v: the server %q %w", s.At, s.Name, err)
		}
	}
	return text, file, nil
}

// tellIgnored logs the members of a file that are ignored.
func tellIgnored(file *config.File) {
	for _, m := range file.Ignored {
		slog.Warn("configuration: not known, ignored", "member", m.Member, "at", m.String())
	}
}

// tellLeftOut logs which servers are not served, and why.
func tellLeftOut(file *config.File) {
	for _, l := range file.LeftOut {
		slog.Error("configuration: a server is left out, others are served", "server", l.Name, "error", strings.ReplaceAll(l.Err.Error(), "\n", "; "))
	}
}

// tellNone logs it if no server is served.
func tellNone(file *config.File) {
	if len(file.Servers) == 0 {
		slog.Warn("no server is served: all of the file are switched off there", "servers", file.Disabled)
	}
}

// input returns a function that finds the values of inputs: on the command line, in the
// environment, or, if it may ask, from the user at the terminal. A value is kept, so that
// it is asked for once.
func (c *configured) input(asks bool) func(config.Input) (string, error) {
	return func(in config.Input) (string, error) {
		if v, ok := c.values[in.ID]; ok {
			return v, nil
		}
		name := inputVariable(in.ID)
		if v, ok := os.LookupEnv(name); ok {
			return v, nil
		}
		if asks && term.IsTerminal(int(os.Stdin.Fd())) {
			v, err := askFor(in, c.out)
			if err == nil {
				c.values[in.ID] = v
			}
			return v, err
		}
		if in.Default != "" {
			return in.Default, nil
		}
		return "", fmt.Errorf("nobody can be asked for this input (%s), as there is no terminal: set %s, or give --input %s=VALUE", cmp.Or(in.Description, in.ID), name, in.ID)
	}
}

// inputVariable returns the environment variable for the value of an input.
func inputVariable(id string) string {
	return "HOLDFAST_INPUT_" + strings.Map(func(r rune) rune {
		if r < '0' || r > '9' && r < 'A' || r > 'Z' {
			return '_'
		}
		return r
	}, strings.ToUpper(id))
}

// askFor asks the user for a value.
func askFor(in config.Input, out io.Writer) (string, error) {
	prompt := cmp.Or(in.Description, in.ID)
	if in.Default != "" {
		prompt += fmt.Sprintf(" [%s]", in.Default)
	}
	if len(in.Options) > 0 {
		prompt += fmt.Sprintf(" (%s)", strings.Join(in.Options, ", "))
	}
	fmt.Fprintf(out, "%s: ", prompt)
	if in.Password {
		v, err := term.ReadPassword(int(os.Stdin.Fd()))
		fmt.Fprintln(out)
		return cmp.Or(string(v), in.Default), err
	}
	var line []byte
	for one := make([]byte, 1); len(line) == 0 || line[len(line)-1] != '\n'; { // no byte more than the line
		if _, err := os.Stdin.Read(one); err != nil {
			return "", err
		}
		line = append(line, one...)
	}
	return cmp.Or(strings.TrimRight(string(line), "\r\n"), in.Default), nil
}

// lookEvery is how often the file is looked at. It is read, and not watched: editors and
// Kubernetes replace files and links, and network file systems tell of no changes.
const lookEvery = time.Second

// missedFor is how often the file cannot be read before the log says so.
const missedFor = 3

// watch applies changes of the file until ctx ends, or close is called.
func (c *configured) watch(ctx context.Context) {
	ctx, c.stop = context.WithCancel(ctx)
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	c.work.Go(func() {
		defer signal.Stop(again)
		t := time.NewTicker(lookEvery)
		defer t.Stop()
		for {
			select {
			case <-again:
				c.reload(true)
			case <-t.C:
				c.reload(false)
			case <-ctx.Done():
				return
			}
		}
	})
}

// reload reads the file again, if it has changed or asked says so: files that it names may
// have changed too. A wrong file changes nothing. If asked is false, a change counts only if two looks have found it: the first may
// have found a half-written file.
func (c *configured) reload(asked bool) {
	if !asked {
		text, err := os.ReadFile(c.file)
		if err != nil {
			if c.missed++; c.missed == missedFor {
				slog.Warn("configuration not changed: the file cannot be read, what was read before stays in use", "error", err)
			}
			return // a file that is being replaced is not there for a moment
		}
		if bytes.Equal(text, c.text) {
			if c.missed >= missedFor {
				slog.Info("configuration unchanged: the file can be read again", "file", c.file)
			}
			c.missed, c.seen = 0, nil
			return
		}
		if c.seen == nil || !bytes.Equal(text, c.seen) {
			c.seen = text
			return
		}
	}
	c.seen = nil
	text, file, err := c.read()
	if text == nil { // the file cannot be read, which is logged
		c.missed = missedFor
	} else {
		c.text, c.missed = text, 0 // a wrong file is logged once
	}
	if err != nil {
		slog.Warn("configuration not changed: the file is wrong, what was read before stays in use", "error", err)
		return
	}
	tellIgnored(file)
	tellLeftOut(file)
	did := c.set.Apply(file)
	c.applied()
	slog.Info("configuration read", "file", c.file, "added", did.Added, "changed", did.Changed, "removed", did.Removed, "kept", did.Kept)
}

// close ends the watch and the servers.
func (c *configured) close() error {
	c.stop()
	c.work.Wait()
	return c.set.Close()
}

// greet prints where the servers are, and how to try the first. base is the URL without a path.
func (c *configured) greet(out io.Writer, base string) {
	first := ""
	for _, s := range c.set.List() {
		at := base + (&url.URL{Path: s.Path}).EscapedPath()
		first = cmp.Or(first, at)
		fmt.Fprintf(out, "Serving MCP at %s (%s)\n", at, s.Name)
	}
	if first != "" {
		fmt.Fprintf(out, "Try it: npx -y @modelcontextprotocol/inspector --cli %s --transport http --method tools/list\n", first)
	}
}

// paths returns the paths of the servers.
func (c *configured) paths() (all []string) {
	for _, s := range c.set.List() {
		all = append(all, s.Path)
	}
	return all
}

// checkServed returns an error unless there is exactly one thing to serve. A door may have none.
func (f *serveFlags) checkServed(command []string) error {
	var given []string
	for name, is := range map[string]bool{"--demo": f.demo, "--upstream": f.upstream.url != "", "--config": f.config.file != ""} {
		if is {
			given = append(given, name)
		}
	}
	slices.Sort(given)
	if slices.Reverse(given); len(command) > 0 {
		given = append(given, fmt.Sprintf("a command (%s)", command[0]))
	}
	switch len(given) {
	case 0:
		if f.role.isDoor() {
			return nil
		}
		return usagef("nothing to serve: give a command (holdfast serve -- COMMAND ARG...), --upstream URL, --config FILE or --demo")
	case 1:
		return nil
	}
	return usagef("both %s and %s are given: remove one", given[0], given[1])
}

// routes returns the handler of all paths. It begins to watch a configuration file, until ctx
// ends.
func (f *serveFlags) routes(ctx context.Context, handler *holdfast.Handler, many *configured) http.Handler {
	pairs := f.hasPair()
	if many != nil {
		many.watch(ctx)
		served := func(path string) bool { return many.set.Serves(path, pairs) }
		first := "/NAME/mcp"
		if paths := many.paths(); len(paths) > 0 {
			first = paths[0]
		}
		return inBrowser(served, first, slashless(served, f.auth.routes(served, many.set, many.set.Handler(handler, pairs))))
	}
	mux := http.NewServeMux()
	mux.Handle(f.path, handler)
	if pairs {
		messages := f.messagesPath()
		pair := handler.SSE(messages)
		mux.Handle(f.ssePath, pair)
		mux.Handle(messages, auth.At(f.ssePath, pair)) // clients know that URL only
	}
	return inBrowser(f.servesAt, f.path, slashless(f.servesAt, f.auth.routes(f.servesAt, nil, mux)))
}

// servesAt reports whether something is served at a path, without a configuration file.
func (f *serveFlags) servesAt(path string) bool {
	return path == f.path || f.hasPair() && (path == f.ssePath || path == f.messagesPath())
}

// slashless serves a path with a slash at its end like the path without it, unless another thing is served there: some
// clients and proxies add a slash. It does not redirect: a client may follow a redirect of a POST with a GET. served
// reports whether something is served at a path.
func slashless(served func(path string) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, ok := strings.CutSuffix(r.URL.Path, "/")
		if ok && !served(r.URL.Path) && served(auth.ResourceAt(at)) {
			to := *r
			to.URL = &url.URL{}
			*to.URL = *r.URL
			to.URL.Path, to.URL.RawPath = at, strings.TrimSuffix(r.URL.RawPath, "/")
			r = &to
		}
		next.ServeHTTP(w, r)
	})
}
