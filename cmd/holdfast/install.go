package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/internal/install"
)

// hostFileFlags are the flags of the commands that change the file of a host.
type hostFileFlags struct {
	scope choice
	file  string
	print bool
	force bool
}

func (f *hostFileFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	choiceVar(fs, &f.scope, "scope", []string{install.User, install.Project}, "which file of the host; user: the one for all projects; project: the one in this directory")
	fs.StringVar(&f.file, "file", "", "`file` to change, in the form of the host's (default: the host's own)")
	fs.BoolVar(&f.print, "print", false, "print the file as it would be, and write nothing")
}

// find returns the host of a name, and its file.
func (f *hostFileFlags) find(name string) (*install.Host, string, error) {
	host, err := install.Find(name)
	if err != nil {
		return nil, "", usageError{err}
	}
	if !host.HasScope(f.scope.value) {
		return nil, "", usagef("%s has no file for a project: leave out --scope %s", host.Title, f.scope.value)
	}
	if f.file != "" {
		file, err := filepath.Abs(f.file)
		return host, file, err
	}
	file, err := host.File(install.Here(), f.scope.value)
	return host, file, err
}

// write shows a change and writes it, or prints the file.
func (f *hostFileFlags) write(out io.Writer, host *install.Host, change *install.Change) error {
	if f.print {
		_, err := io.WriteString(out, change.After)
		return err
	}
	fmt.Fprint(out, change.Diff())
	backup, err := change.Write()
	if err != nil {
		return err
	}
	did := "Wrote " + change.File + "."
	if change.Delete {
		did = "Removed " + change.File + ", in which nothing was left."
	}
	if backup != "" {
		did += " What was in it before is in " + backup + "."
	}
	fmt.Fprintf(out, "%s Restart %s, or have it reload its servers.\n", did, host.Title)
	return nil
}

// completeHosts completes the name of a host.
func completeHosts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return install.Names(), cobra.ShellCompDirectiveNoFileComp
}

// installFlags are the flags of holdfast install.
type installFlags struct {
	hostFileFlags
	remoteFlags
	name    string
	env     []string
	program string
}

func newInstall() *cobra.Command {
	f := installFlags{remoteFlags: newRemoteFlags()}
	cmd := &cobra.Command{
		Use:   "install [flags] HOST URL\n  holdfast install [flags] HOST -- COMMAND ARG...",
		Short: "Add a server to the configuration of a host",
		Long: `Install adds a server to the configuration file of a host: ` + strings.Join(install.Names()[:5], ", ") + `,
` + strings.Join(install.Names()[5:], ", ") + `. The host runs 'holdfast connect' for it, so that calls survive
cut connections. URL is a server over HTTP or a WebSocket; COMMAND is a stdio server,
which holdfast runs.

It shows the change, keeps a backup beside the file (what was in it before Holdfast changed it),
and changes nothing else in it: comments, order and indentation stay. With --print it prints
the file instead.

Headers go into the variable HOLDFAST_HEADER of the server's environment, and not onto its
command line, which other users can see. ${NAME} in a header stands for a variable of the
host's environment, if the host has such: the file then has no secret.`,
		Example: `  holdfast install cursor https://example.com/mcp
  holdfast install claude-code https://example.com/mcp --scope project --header 'Authorization: Bearer ${TOKEN}'
  holdfast install claude-desktop --name files -- npx -y @modelcontextprotocol/server-filesystem /srv/files`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeHosts,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.install(cmd.OutOrStdout(), args, cmd.ArgsLenAtDash())
		},
	}
	f.hostFileFlags.add(cmd)
	f.remoteFlags.add(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.name, "name", "", "`name` of the server in the file (default: made of the URL or the command)")
	fs.BoolVar(&f.force, "force", false, "replace another server of the same name")
	fs.StringArrayVar(&f.env, "env", nil, "`variable` of the environment for the server: NAME=VALUE, or NAME for one of the host's environment (can be repeated)")
	fs.StringVar(&f.program, "program", "", "`path` of holdfast in the file (default: where this program is, or holdfast alone for --scope project)")
	return cmd
}

func newUninstall() *cobra.Command {
	var f hostFileFlags
	cmd := &cobra.Command{
		Use:   "uninstall [flags] HOST NAME",
		Short: "Take a server out of the configuration of a host",
		Long: `Uninstall takes a server out of the configuration file of a host, which need not be one that
'holdfast install' has added. It shows the change, keeps a backup beside the file, and
changes nothing else in it. The file is byte for byte what it was before 'holdfast install'
when the last server that was added is taken out; a file that 'holdfast install' has made is
removed then.`,
		Example: `  holdfast uninstall cursor example`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("want a host and the name of a server, as in holdfast uninstall cursor example")
			}
			return nil
		},
		ValidArgsFunction: completeHosts,
		RunE: func(cmd *cobra.Command, args []string) error {
			host, file, err := f.find(args[0])
			if err != nil {
				return err
			}
			change, err := host.Remove(file, args[1])
			if err != nil {
				return err
			}
			return f.write(cmd.OutOrStdout(), host, change)
		},
	}
	f.add(cmd)
	return cmd
}

// install adds a server to a host's file. dash is how many arguments are before "--", or -1.
func (f *installFlags) install(out io.Writer, args []string, dash int) error {
	var command []string
	switch {
	case len(args) == 0 || dash == 0:
		return usagef("no host: want one of %s", strings.Join(install.Names(), ", "))
	case dash > 0:
		args, command = args[:dash], args[dash:]
		if len(args) > 1 || len(command) == 0 {
			return usagef("want a URL, or -- and a command, as in holdfast install %s -- npx -y @modelcontextprotocol/server-everything", args[0])
		}
	case len(args) != 2:
		return usagef("want a host and the URL of a server, as in holdfast install %s https://example.com/mcp, or -- and a command", args[0])
	}
	host, file, err := f.find(args[0])
	if err != nil {
		return err
	}
	server := &install.Server{Command: []string{f.programPath(), "connect"}}
	to := ""
	if command == nil {
		to = urlOf(args[1])
		if err := f.remote(host, server, to); err != nil {
			return err
		}
	} else {
		if len(f.headers) > 0 || f.transport.value != "auto" {
			return usagef("--header and --transport are for a server with a URL: give a command its settings with --env or as arguments")
		}
		server.Command = append(append(server.Command, "--"), f.located(command)...)
	}
	for _, given := range f.env {
		name, value, isValue := strings.Cut(given, "=")
		if name == "" || strings.ContainsAny(given, "\x00") {
			return usagef("--env: want NAME=VALUE, or NAME") // the value may be a secret
		}
		if isValue {
			server.Env = append(server.Env, install.Variable{Name: name, Value: value})
		} else {
			server.Pass = append(server.Pass, name)
		}
	}
	name := f.name
	if name == "" {
		if name = nameOfCommand(command); command == nil {
			name = nameOfURL(to)
		}
	}
	if err := host.CheckName(name); err != nil {
		return usageError{err}
	}
	if f.file == "" && f.scope.value == install.User && !f.print {
		if err := host.Missing(install.Here(), file); err != nil {
			return err
		}
	}
	change, err := host.Add(file, name, server, f.force)
	if err != nil {
		return err
	}
	if change.Same() && !f.print {
		fmt.Fprintf(out, "%s has the server %s already: nothing was written.\n", file, name)
		return nil
	}
	return f.write(out, host, change)
}

// hostVariable matches the name of a variable of the host's environment in a header.
var hostVariable = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*\}`)

// remote adds the arguments and variables for a server with a URL.
func (f *installFlags) remote(host *install.Host, server *install.Server, to string) error {
	u, err := url.Parse(to)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "ws" && u.Scheme != "wss" {
		// The URL may have a password in it: it is not shown.
		return usagef("server URL: want one that begins with http:// or https://, as in https://example.com/mcp")
	}
	if _, err := headerOf("--header", f.headers); err != nil {
		return err
	}
	if f.transport.value != "auto" {
		server.Command = append(server.Command, "--transport", f.transport.value)
	}
	headers := f.headers
	if password, ok := u.User.Password(); ok { // a header is no part of the command line
		headers = append(headers[:len(headers):len(headers)], "Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password)))
		u.User = nil
		to = u.String()
	}
	server.Command = append(server.Command, to)
	if len(headers) == 0 {
		return nil
	}
	var lines []string
	for _, h := range headers {
		var failed error
		lines = append(lines, hostVariable.ReplaceAllStringFunc(h, func(v string) string {
			named, err := host.Variable(v[2 : len(v)-1])
			failed = errors.Join(failed, err)
			return named
		}))
		if failed != nil {
			return usagef("--header: %w", failed)
		}
	}
	server.Env = append(server.Env, install.Variable{Name: "HOLDFAST_HEADER", Value: asList(lines)})
	return nil
}

// programPath returns the path of holdfast for the file. It is the one in the PATH, if that is this program: a link there
// stays right when the program is replaced.
func (f *installFlags) programPath() string {
	if f.program != "" {
		return f.program
	}
	if f.scope.value == install.Project {
		return "holdfast"
	}
	self, err := os.Executable()
	if err != nil {
		return "holdfast"
	}
	if found, err := exec.LookPath("holdfast"); err == nil && filepath.IsAbs(found) {
		a, errA := os.Stat(found)
		b, errB := os.Stat(self)
		if errA == nil && errB == nil && os.SameFile(a, b) {
			return found
		}
	}
	return self
}

// located returns a command with absolute paths for the files of this directory: a host runs it elsewhere. In the file of a project
// the paths stay, since other users have the project elsewhere.
func (f *installFlags) located(command []string) []string {
	if f.scope.value == install.Project {
		return command
	}
	all := make([]string, len(command))
	for i, arg := range command {
		all[i] = arg
		if i == 0 && !strings.ContainsAny(arg, `/\`) {
			continue // is looked for in the PATH
		}
		if info, err := os.Stat(arg); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if abs, err := filepath.Abs(arg); err == nil {
			all[i] = abs
		}
	}
	return all
}

// unfitName matches characters that are not put into the name of a server.
var unfitName = regexp.MustCompile(`[^A-Za-z0-9]+`)

// nameOfURL returns a name for a server with a URL: the NAME of a path /NAME/mcp, as holdfast has it, or else the name of its host.
func nameOfURL(to string) string {
	u, err := url.Parse(to)
	if err != nil {
		return ""
	}
	if parts := strings.Split(strings.Trim(u.Path, "/"), "/"); len(parts) == 2 && (parts[1] == "mcp" || parts[1] == "sse") && !unfitName.MatchString(strings.ReplaceAll(parts[0], "-", "")) && parts[0] != "api" && !versionPart.MatchString(parts[0]) {
		return parts[0]
	}
	host := strings.ToLower(u.Hostname())
	if net.ParseIP(host) != nil || !strings.Contains(host, ".") {
		if p := u.Port(); p != "" {
			host += "-" + p
		}
		return strings.Trim(unfitName.ReplaceAllString(host, "-"), "-")
	}
	labels := strings.Split(host, ".")
	for len(labels) > 2 && (labels[0] == "www" || labels[0] == "mcp" || labels[0] == "api") {
		labels = labels[1:]
	}
	return strings.Trim(unfitName.ReplaceAllString(labels[0], "-"), "-")
}

// versionPart matches a part of a path that says the version of an API.
var versionPart = regexp.MustCompile(`^v[0-9]+$`)

// nameOfCommand returns a name for a stdio server: that of the package or the file that is run.
func nameOfCommand(command []string) string {
	if len(command) == 0 {
		return ""
	}
	name := command[0]
	switch strings.TrimSuffix(filepath.Base(name), ".exe") {
	case "npx", "bunx", "uvx", "node", "bun", "deno", "python", "python3", "uv", "go", "pnpm", "npm", "yarn", "docker", "podman":
		for _, arg := range command[1:] {
			if strings.HasPrefix(arg, "-") || arg == "run" || arg == "dlx" || arg == "exec" || arg == "x" {
				continue
			}
			name = arg
			break
		}
	}
	name = filepath.ToSlash(name)
	name = name[strings.LastIndexByte(name, '/')+1:]
	if i := strings.LastIndexByte(name, '@'); i > 0 { // a version
		name = name[:i]
	}
	if ext := filepath.Ext(name); ext != "" && len(ext) <= 4 {
		name = strings.TrimSuffix(name, ext)
	}
	for _, prefix := range []string{"mcp-server-", "server-"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
			name = rest
		}
	}
	return strings.Trim(unfitName.ReplaceAllString(name, "-"), "-")
}
