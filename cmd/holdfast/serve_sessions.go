package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/sessionid"
	"holdfast/internal/statefile"
)

// sessionFlags are the flags of holdfast serve for sessions that are revived.
type sessionFlags struct {
	life     offDuration
	sleep    offDuration
	keysFile string
	dir      string
	keys     []sessionid.Key // of the file
	dirSet   func() bool     // --state-dir was given
	sleepSet func() bool     // --sleep-after was given
}

func (f *sessionFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	offDurationVar(fs, &f.life, "session-life", 30*24*time.Hour, "how long after its beginning a session that has expired, or that a restart has lost, is revived when its client comes back; 0: never")
	offDurationVar(fs, &f.sleep, "sleep-after", 5*time.Minute, "how long a session is idle before it falls asleep, if its server would remember nothing of it: it costs nothing, and its client wakes it (--session-life); 0: never")
	fs.StringVar(&f.keysFile, "session-keys", "", "`file` of the keys of session ids, one on each line, as openssl rand -hex 32 makes them; the first seals, and all open (default a key in the --store, or in --state-dir)")
	fs.StringVar(&f.dir, "state-dir", "", "`directory` where a server with --store memory: keeps the key of session ids, and which sessions were ended, so that sessions outlive a restart; empty: none (default one of the user's for --listen, if that has a port)")
	f.sleepSet = func() bool { return fs.Changed("sleep-after") }
	f.dirSet = func() bool { return fs.Changed("state-dir") }
}

// check returns an error for wrong values, and reads the file of keys.
func (f *sessionFlags) check() error {
	if f.keysFile == "" {
		return nil
	}
	text, err := os.ReadFile(f.keysFile)
	if err != nil {
		return usagef("--session-keys: %v", err)
	}
	if f.keys, err = sessionid.ParseKeys(text); err != nil {
		return usagef("--session-keys %s: %v", f.keysFile, err)
	}
	return nil
}

// set sets the options of a server that listens on an address, with a store.
func (f *sessionFlags) set(opts *holdfast.Options, listen, store string) {
	opts.SessionLife = time.Duration(f.life)
	if f.sleepSet() { // else it depends on what is served
		opts.SleepAfter = time.Duration(f.sleep)
	}
	for _, key := range f.keys {
		opts.SessionKeys = append(opts.SessionKeys, key)
	}
	if opts.StateDir = f.dir; !f.dirSet() && store == "memory:" {
		opts.StateDir = stateDir(listen)
	}
}

// stateDir returns the directory for what a server at an address keeps for the next process that listens there; "": there is none.
func stateDir(listen string) string {
	dir := statefile.Dir()
	if _, port, err := net.SplitHostPort(listen); err != nil || port == "0" || port == "" || dir == "" {
		return ""
	}
	return filepath.Join(dir, "serve", strings.NewReplacer(":", "_", "/", "_", "%", "_").Replace(listen))
}
