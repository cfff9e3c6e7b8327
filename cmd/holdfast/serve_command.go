package main

import (
	"path/filepath"
	"strings"

	"holdfast/backend"
	"holdfast/backend/process"
	manyservers "holdfast/internal/servers"
)

// commandFlags are the flags for servers that are commands.
type commandFlags struct {
	share          bool
	stderrToClient bool
}

// check returns an error for wrong values of flags.
func (f *commandFlags) check(command []string) error {
	if f.share && len(command) == 0 {
		return usagef(`--share is for a command: in a configuration file, give the server the setting "share": true`)
	}
	return nil
}

// mistaken returns the error for a command that cannot run: it may be the value of a flag.
func mistaken(name string, err error) error {
	switch {
	case strings.HasPrefix(name, "-"):
		return usagef("%s is after --, where the command begins: give the flags of holdfast before --", name)
	case strings.HasPrefix(name, "http://"), strings.HasPrefix(name, "https://"):
		return usagef("a URL is no command: did you mean --upstream URL?")
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".json", ".jsonc", ".toml", ".yaml", ".yml":
		return usagef("%s is no command: did you mean --config %[1]s?", name)
	}
	return err
}

// open returns the backend for a command, and a function that ends it.
func (f *commandFlags) open(command []string) (backend.Backend, func() error, error) {
	b, err := process.New(command, &process.Options{StderrToClient: f.stderrToClient})
	if err != nil {
		return nil, nil, mistaken(command[0], err)
	}
	if !f.share {
		return b, func() error { return b.Close() }, err
	}
	shared, end := manyservers.Share(b, nil)
	return shared, func() error {
		end()
		return b.Close()
	}, nil
}
