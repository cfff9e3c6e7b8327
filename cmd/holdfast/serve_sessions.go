package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"

	"holdfast/internal/sessionid"
	"holdfast/internal/statefile"
)

// readSessionKeys reads the file of --session-keys.
func (f *serveFlags) readSessionKeys() error {
	if f.keysFile == "" {
		return nil
	}
	text, err := os.ReadFile(f.keysFile)
	if err != nil {
		return usagef("--session-keys: %v", err)
	}
	keys, err := sessionid.ParseKeys(text)
	if err != nil {
		return usagef("--session-keys %s: %v", f.keysFile, err)
	}
	for _, key := range keys {
		f.opts.SessionKeys = append(f.opts.SessionKeys, key)
	}
	return nil
}

// stateDir returns the directory for the state that a server at an address keeps for the next process that listens there; "": none.
func stateDir(listen string) string {
	dir := statefile.Dir()
	if _, port, err := net.SplitHostPort(listen); err != nil || port == "0" || port == "" || dir == "" {
		return ""
	}
	return filepath.Join(dir, "serve", strings.NewReplacer(":", "_", "/", "_", "%", "_").Replace(listen))
}
