package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"
)

// addState adds the flag for the directory that keeps what must outlive a
// process of ours.
func addState(cmd *cobra.Command, dir *string, what string) {
	cmd.Flags().StringVar(dir, "state", stateDir(), "`directory` that keeps "+what+"; empty: nothing is kept")
	_ = cmd.MarkFlagDirname("state") // fails for unknown flags only
}

// stateDir is the user's directory for state: $XDG_STATE_HOME/holdfast, or what is
// usual on the system. Where there is none it is "".
func stateDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "holdfast")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	switch runtime.GOOS {
	case "darwin", "ios":
		return filepath.Join(home, "Library", "Application Support", "holdfast")
	case "windows":
		if dir := os.Getenv("LocalAppData"); dir != "" {
			return filepath.Join(dir, "holdfast")
		}
		return filepath.Join(home, "AppData", "Local", "holdfast")
	}
	return filepath.Join(home, ".local", "state", "holdfast")
}

// replaceFile writes a file that only this user can read, so that whoever reads
// it finds what it was or what it is to be.
func replaceFile(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	// The file is made with mode 0600.
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("keep state: %w", err)
	}
	return nil
}
