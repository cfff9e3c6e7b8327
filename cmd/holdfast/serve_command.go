package main

import (
	"github.com/spf13/pflag"

	"holdfast/backend"
	"holdfast/backend/process"
	manyservers "holdfast/internal/servers"
)

// commandFlags are the flags for servers that are commands.
type commandFlags struct {
	share          bool
	stderrToClient bool
}

func (f *commandFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.share, "share", false, "run COMMAND once for all sessions, not once for each: for servers without state, which cannot ask clients then")
	fs.BoolVar(&f.stderrToClient, "stderr-to-client", false, "add the last lines of a server's stderr to the error that clients get when its process exits; they are always in the log")
}

// check returns an error for wrong values of flags.
func (f *commandFlags) check(command []string) error {
	if f.share && len(command) == 0 {
		return usagef(`--share is for a command: in a configuration file, give the server the setting "share": true`)
	}
	return nil
}

// open returns the backend for a command, and what ends it.
func (f *commandFlags) open(command []string) (backend.Backend, func() error, error) {
	b, err := process.New(command, &process.Options{StderrToClient: f.stderrToClient})
	if err != nil || !f.share {
		return b, func() error { return b.Close() }, err
	}
	shared, end := manyservers.Share(b, nil)
	return shared, func() error {
		end()
		return b.Close()
	}, nil
}
