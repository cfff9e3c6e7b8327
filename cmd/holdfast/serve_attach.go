package main

import (
	"time"

	"github.com/spf13/cobra"

	"holdfast"
)

// attachFlags are the flags of holdfast serve for calls that come again.
type attachFlags struct {
	within, grace offDuration
	callIDs       []string
}

func (f *attachFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	offDurationVar(fs, &f.within, "attach-within", 2*time.Minute, "how long after its connection has broken a call is found by a request for the same tool with the same arguments, which gets its result and does not run; 0: never")
	fs.StringArrayVar(&f.callIDs, "call-id", nil, "`member` of _meta in which a host gives a call an id of its own, besides those of Claude Code and Codex (can be repeated)")
	offDurationVar(fs, &f.grace, "cut-grace", 30*time.Second, "how long the call of a tool goes on whose client speaks 2026-07-28 and has lost its connection, or closed it; 0: it is cancelled at once")
}

// check returns an error for wrong values.
func (f *attachFlags) check() error {
	for _, name := range f.callIDs {
		if name == "" {
			return usagef("--call-id: want the name of a member of _meta, such as claudecode/toolUseId")
		}
	}
	return nil
}

func (f *attachFlags) set(opts *holdfast.Options) {
	opts.AttachWithin, opts.CutGrace, opts.CallIDs = time.Duration(f.within), time.Duration(f.grace), f.callIDs
}
