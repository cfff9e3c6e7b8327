package follow

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"holdfast/client"
	"holdfast/internal/statefile"
)

// SavedCalls is a directory with a file for each call that has not ended: a [client.State]
// with that one call, as JSON. The process that follows a call has its file locked. The name
// of a file is the time at which the call began (UTC) and a hash of the call's id. The zero
// value keeps nothing.
type SavedCalls struct{ dir string }

// SavedCallsIn returns the calls that are kept in a directory for state files; "": none.
func SavedCallsIn(state string) SavedCalls {
	if state == "" {
		return SavedCalls{}
	}
	return SavedCalls{filepath.Join(state, "calls")}
}

// IsZero reports whether nothing is kept.
func (s SavedCalls) IsZero() bool { return s.dir == "" }

// forgetAfter is the age at which a call that nobody has resumed is forgotten.
const forgetAfter = 7 * 24 * time.Hour

var errNoneSaved = errors.New("no unfinished call is saved here: give the token that holdfast call printed")

// Newest returns the unfinished call that began last. If unfollowed is set, it leaves out
// calls that other processes follow.
func (s SavedCalls) Newest(unfollowed bool) (client.State, error) {
	names, err := filepath.Glob(filepath.Join(s.dir, "*.json"))
	if err != nil {
		return client.State{}, err
	}
	slices.Sort(names) // they begin with the time
	followed := 0
	for _, name := range slices.Backward(names) {
		if info, err := os.Stat(name); err != nil || time.Since(info.ModTime()) > forgetAfter {
			removeSaved(name)
			continue
		}
		state, ok := readSaved(name)
		if !ok {
			continue
		}
		if unfollowed {
			lock, err := statefile.TryLock(statefile.LockName(name))
			if err != nil || lock == nil {
				followed++
				continue
			}
			_ = lock.Close()
		}
		return state, nil
	}
	if followed > 0 {
		return client.State{}, fmt.Errorf("%w (other commands follow %d that are saved)", errNoneSaved, followed)
	}
	return client.State{}, errNoneSaved
}

func readSaved(name string) (client.State, bool) {
	var state client.State
	data, err := os.ReadFile(name)
	ok := err == nil && json.Unmarshal(data, &state) == nil && checkState(state) == nil
	return state, ok
}

func removeSaved(name string) {
	_ = os.Remove(name)
	_ = os.Remove(statefile.LockName(name))
}

// A SavedCall is the file of one call. Its methods may be called concurrently. A nil one
// keeps nothing.
type SavedCall struct {
	name string
	lock *flock.Flock // nil: another process follows the call too

	mu     sync.Mutex // also held while the file is written: an older state never replaces a newer one
	last   []byte     // what the file has in it; nil: nothing yet
	closed bool
}

// Add returns the file of a call: the one that there is, or a new one. It returns nil if
// nothing is kept.
func (s SavedCalls) Add(id []byte) (*SavedCall, error) {
	if s.IsZero() {
		return nil, nil
	}
	sum := sha256.Sum256(id)
	hash := hex.EncodeToString(sum[:8])
	name := filepath.Join(s.dir, time.Now().UTC().Format("20060102T150405.000")+"-"+hash+".json")
	if names, _ := filepath.Glob(filepath.Join(s.dir, "*-"+hash+".json")); len(names) > 0 {
		name = names[0]
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := statefile.TryLock(statefile.LockName(name))
	if err != nil {
		return nil, err
	}
	return &SavedCall{name: name, lock: lock}, nil
}

// save replaces what the file has in it.
func (c *SavedCall) save(s client.State) error {
	if c == nil {
		return nil
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || bytes.Equal(data, c.last) {
		return nil
	}
	c.last = data
	return statefile.Replace(c.name, data)
}

// close releases the file for other processes. The file of a call that has ended is removed.
func (c *SavedCall) close(ended bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.lock != nil {
		_ = c.lock.Close()
	}
	if ended {
		removeSaved(c.name)
	}
}

// isSaved reports whether the file has anything in it.
func (c *SavedCall) isSaved() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last != nil
}
