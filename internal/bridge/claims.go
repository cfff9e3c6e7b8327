package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"holdfast/internal/statefile"
)

// claims says which bridge goes on with a call that was in flight when the process
// which made it ended. More than one may know of it: the one that has the session by
// now, and any whose host asks for the same. Who has the lock of the call's file has
// the call, until its process ends; a call that is over has a second file that says so.
//
// Its methods may be called concurrently.
type claims struct {
	prefix string // of the files

	mu   sync.Mutex
	held map[string]*flock.Flock // by the calls' ids at the server
}

func (s *slots) claims() *claims {
	return &claims{prefix: filepath.Join(s.dir, s.name) + "-call-", held: make(map[string]*flock.Flock)}
}

// over ends the name of the file which says that a call's host has its answer.
const over = ".over"

func (c *claims) file(id []byte) string {
	sum := sha256.Sum256(id)
	return c.prefix + hex.EncodeToString(sum[:12])
}

// take says whether a call is ours to go on with, from now on or already. If nothing
// can be kept it is, as then nobody else knows of it.
func (c *claims) take(id []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[string(id)] != nil {
		return true
	}
	lock, err := statefile.TryLock(c.file(id))
	if err != nil {
		slog.Warn("a call may be gone on with twice", "error", err)
		return true
	}
	if lock == nil {
		return false
	}
	if _, err := os.Stat(c.file(id) + over); err == nil {
		_ = lock.Close()
		return false
	}
	c.held[string(id)] = lock
	return true
}

// done notes that nobody is to go on with a call, if it was taken.
func (c *claims) done(id []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lock := c.held[string(id)]
	if lock == nil {
		return
	}
	delete(c.held, string(id))
	if err := os.WriteFile(c.file(id)+over, nil, 0o600); err != nil {
		slog.Warn("a call may be answered twice", "error", err)
	}
	_ = lock.Close()
}

// leave lets others have what was taken.
func (c *claims) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, lock := range c.held {
		_ = lock.Close()
		delete(c.held, id)
	}
}

// sweep removes the files of calls that nobody asks for any more.
func (c *claims) sweep() {
	names, err := filepath.Glob(c.prefix + "*")
	if err != nil {
		return
	}
	for _, name := range names {
		about, err := os.Stat(name)
		if err != nil || time.Since(about.ModTime()) < staleAfter {
			continue
		}
		if strings.HasSuffix(name, over) {
			_ = os.Remove(name)
			continue
		}
		if lock, err := statefile.TryLock(name); err == nil && lock != nil {
			_ = os.Remove(name)
			_ = lock.Close()
		}
	}
}
