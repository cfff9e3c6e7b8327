// Package statefile keeps files that must outlive a process: where they are, how they
// are replaced, and how processes lock them. Its functions may be called concurrently.
package statefile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// Dir returns the user's directory for state files: $XDG_STATE_HOME/holdfast, or the
// usual one of the system. It returns "" if the home directory is not known.
func Dir() string {
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

// Replace writes a file that only this user can read. A concurrent reader finds the old
// content or the new content. Replace makes the file's directory.
func Replace(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*") // with mode 0600
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

// LockName returns the name of the lock file for a state file, which is not locked
// itself: [Replace] puts another file in its place.
func LockName(name string) string { return strings.TrimSuffix(name, ".json") + ".lock" }

// Lock makes and locks a lock file, and waits for another's lock until ctx is done. The lock ends with Close, or with the process.
func Lock(ctx context.Context, lockName string) (*flock.Flock, error) {
	lock := flock.New(lockName, flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	return lock, nil
}

// TryLock makes and locks a lock file. It returns nil if another process has locked it, or
// this process with another call. The lock ends with Close, or with the process.
func TryLock(lockName string) (*flock.Flock, error) {
	lock := flock.New(lockName, flock.SetPermissions(0o600))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if !locked {
		return nil, nil
	}
	return lock, nil
}

// lookTime is how long a process may take that looks whether a file is locked.
const lookTime = 50 * time.Millisecond

// LockSoon is [TryLock], but waits a moment for a process that only looks whether the file is locked, with [IsLocked].
func LockSoon(lockName string) (*flock.Flock, error) {
	ctx, stop := context.WithTimeout(context.Background(), lookTime)
	defer stop()
	lock, err := Lock(ctx, lockName)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, nil
	}
	return lock, err
}

// IsLocked reports whether a process has locked a lock file, which it does not make. A process that cannot look takes the file for locked. To look,
// IsLocked shares the lock: processes that look at the same time do not take each other for the owner, but a TryLock of that moment fails.
func IsLocked(lockName string) bool {
	if _, err := os.Stat(lockName); err != nil {
		return false
	}
	lock := flock.New(lockName, flock.SetPermissions(0o600))
	shared, err := lock.TryRLock()
	if err != nil || !shared {
		return true
	}
	_ = lock.Close()
	return false
}
