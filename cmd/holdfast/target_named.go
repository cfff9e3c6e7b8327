package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"holdfast/internal/config"
	"holdfast/internal/install"
	"holdfast/internal/terminal"
)

// changed returns the names of the flags that were given.
func changed(fs *pflag.FlagSet) (names []string) {
	fs.Visit(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// A hostFile is the configuration file of a host, as far as its servers can be given by their names.
type hostFile struct {
	title, name string
	config      *config.File
	err         error // why it cannot be used
}

// hostFiles reads the files of hosts: all, or those that --from names. Files that are not there are left out.
func (f *serverFlags) hostFiles() (all []hostFile, err error) {
	files := install.Files(install.Here())
	if f.from != "" {
		if host, err := install.Find(f.from); err == nil && !strings.ContainsAny(f.from, `/\`) {
			files = slices.DeleteFunc(files, func(one install.File) bool { return one.Host != host })
		} else if _, wrong := os.Stat(f.from); wrong == nil {
			files = []install.File{install.FileAt(f.from)}
		} else if strings.ContainsAny(f.from, `/\.`) {
			return nil, wrongFile("--from", wrong)
		} else {
			return nil, usagef("--from: %w", err)
		}
	}
	for _, one := range files {
		h := hostFile{title: one.Path, name: one.Path}
		var data []byte
		if data, h.err = one.JSON(); errors.Is(h.err, fs.ErrNotExist) {
			continue
		}
		if one.Host != nil {
			h.title = one.Host.Title
		}
		if h.err == nil && strings.TrimSpace(string(data)) != "" {
			h.config, h.err = config.Parse(one.Path, data, config.Options{Input: inputOf})
		}
		all = append(all, h)
	}
	return all, nil
}

// inputOf returns the value of an input of VS Code from the environment.
func inputOf(in config.Input) (string, error) {
	name := inputVariable(in.ID)
	if value, ok := os.LookupEnv(name); ok {
		return value, nil
	}
	if in.Default != "" {
		return in.Default, nil
	}
	return "", fmt.Errorf("set %s", name)
}

// named returns the server of a host's file that the first argument names, and the arguments for it. It returns nil if there is no such server,
// and the argument may be a URL.
func (f *serverFlags) named(args []string, dotted bool) (*config.Server, []string, error) {
	files, err := f.hostFiles()
	if err != nil {
		return nil, nil, err
	}
	name := args[0]
	var found []hostServer
	var rest []string
	var unfit error // of a server that has the name, and cannot be used
	try := func(server string, args []string) {
		for _, h := range files {
			if h.config == nil {
				continue
			}
			for _, s := range h.config.Servers {
				if s.Name == server {
					found, rest = append(found, hostServer{s, h.title}), args
				}
			}
			for _, out := range h.config.LeftOut {
				if out.Name == server && unfit == nil {
					unfit = fmt.Errorf("the server %q of %s cannot be used: %w", terminal.OneLine(server), h.title, out.Err)
				}
			}
			if slices.Contains(h.config.Disabled, server) && unfit == nil {
				unfit = fmt.Errorf("the server %q is disabled in %s", terminal.OneLine(server), h.name)
			}
		}
	}
	try(name, args[1:])
	for i := len(name) - 1; i > 0 && dotted && found == nil; i-- { // the longest name of a server
		if name[i] == '.' && i < len(name)-1 {
			try(name[:i], append([]string{name[i+1:]}, args[1:]...))
		}
	}
	switch {
	case len(found) > 0:
		s, err := oneOf(found)
		return s, rest, err
	case unfit != nil:
		return nil, nil, unfit
	case f.from == "" && couldBeHost(name) && (!dotted || len(args) > 1 && !isArgument(args[1])): // if no tool follows, the name has the tool in it
		return nil, nil, nil
	}
	return nil, nil, f.noServer(files, name, dotted)
}

// isArgument reports whether a word after SERVER.TOOL or SERVER can only be an argument of the tool.
func isArgument(word string) bool {
	return strings.ContainsAny(word, "={\"") || word == "-" || strings.HasPrefix(word, "@")
}

// oneOf returns the server if all of found are the same, or else an error.
func oneOf(found []hostServer) (*config.Server, error) {
	first := found[0].Server
	for _, s := range found[1:] {
		if reflect.DeepEqual(launched(first), launched(s.Server)) {
			continue
		}
		text := fmt.Sprintf("%d files have a server %q, and they differ: choose one with --from HOST or --from FILE", len(found), terminal.OneLine(first.Name))
		for _, s := range found {
			text += fmt.Sprintf("\n  %s: %s", s.where(), terminal.OneLine(s.Shown))
		}
		return nil, usagef("%s", text)
	}
	return first, nil
}

// launched returns the parts of a server that make it the same as another.
func launched(s *config.Server) any {
	command := s.Command
	dir := s.Dir
	if len(command) > 0 && filepath.IsAbs(command[0]) || len(command) == 0 {
		dir = ""
	}
	header := s.Header
	if len(header) == 0 {
		header = http.Header{}
	}
	return []any{command, len(s.Env) == 0 || s.Env == nil, fmt.Sprint(s.Env), dir, s.URL, header}
}

// noServer returns the error for a name that no server has.
func (f *serverFlags) noServer(files []hostFile, name string, dotted bool) error {
	var names, broken, read []string
	for _, h := range files {
		switch {
		case h.config != nil:
			read = append(read, h.name)
			for _, s := range h.config.Servers {
				if !slices.Contains(names, s.Name) {
					names = append(names, s.Name)
				}
			}
		case h.err != nil && !isEmpty(h.err):
			broken = append(broken, h.name)
		}
	}
	slices.Sort(names)
	said := name
	if server, _, ok := strings.Cut(name, "."); ok && dotted {
		said = server
	}
	text := fmt.Sprintf("there is no server %q in the files of hosts", terminal.OneLine(said))
	if f.from != "" {
		text = fmt.Sprintf("there is no server %q in %s", terminal.OneLine(said), f.from)
	}
	switch near := nearest(said, names); {
	case near != "":
		text += fmt.Sprintf(": did you mean %s?", terminal.OneLine(near))
	case len(names) > 0:
		text += ", which have " + terminal.OneLine(strings.Join(names, ", "))
	case len(read) == 0 && len(broken) == 0:
		text += ", and there are no such files: give a URL, or -- and a command"
	}
	if len(broken) > 0 {
		text += fmt.Sprintf(" (%s cannot be read: 'holdfast check FILE' says why)", strings.Join(broken, ", "))
	}
	return usagef("%s", text)
}

// isEmpty reports whether a file cannot be used only because it has no servers.
func isEmpty(err error) bool { return strings.Contains(err.Error(), ": no servers: ") }
