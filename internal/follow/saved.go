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

// SavedCalls is the directory that keeps calls which are not over, one file for each
// ([client.State] with that one call). Each is locked by the process that follows
// the call. No dir: nothing is kept.
type SavedCalls struct{ dir string }

// SavedCallsIn returns the calls in a directory for state.
func SavedCallsIn(state string) SavedCalls {
	if state == "" {
		return SavedCalls{}
	}
	return SavedCalls{filepath.Join(state, "calls")}
}

// Kept reports whether anything is kept.
func (s SavedCalls) Kept() bool { return s.dir != "" }

// forgetAfter is the age at which a call that nobody came back for is forgotten.
const forgetAfter = 7 * 24 * time.Hour

var errNoneKept = errors.New("no call is kept here that is not over: give the token that holdfast call printed")

// files are the names of the kept calls, newest first: names begin with the time.
func (s SavedCalls) files() ([]string, error) {
	names, err := filepath.Glob(filepath.Join(s.dir, "*.json"))
	slices.Sort(names)
	slices.Reverse(names)
	return names, err
}

// Newest returns the call that was begun last: of those that nobody follows, if
// idle.
func (s SavedCalls) Newest(idle bool) (client.State, error) {
	names, err := s.files()
	if err != nil {
		return client.State{}, err
	}
	followed := 0
	for _, name := range names {
		if info, err := os.Stat(name); err != nil || time.Since(info.ModTime()) > forgetAfter {
			s.drop(name)
			continue
		}
		if idle {
			lock := flock.New(statefile.LockName(name))
			free, err := lock.TryLock()
			if err != nil || !free {
				followed++
				continue
			}
			defer lock.Unlock() //nolint:errcheck // closing releases it
		}
		var state client.State
		data, err := os.ReadFile(name)
		if err != nil || json.Unmarshal(data, &state) != nil || checkState(state) != nil {
			continue
		}
		return state, nil
	}
	if followed > 0 {
		return client.State{}, fmt.Errorf("%w (%d that are kept are being followed by other commands)", errNoneKept, followed)
	}
	return client.State{}, errNoneKept
}

func (s SavedCalls) drop(name string) {
	_ = os.Remove(name)
	_ = os.Remove(statefile.LockName(name))
}

// A SavedCall keeps one call. Its methods may be called concurrently.
type SavedCall struct {
	name string
	lock *flock.Flock

	mu   sync.Mutex
	last []byte // what is kept
	over bool
}

// Keep takes a place for a call in the directory: the one that it has, or a new one. It
// is nil where nothing is kept.
func (s SavedCalls) Keep(id []byte) (*SavedCall, error) {
	if s.dir == "" {
		return nil, nil
	}
	sum := sha256.Sum256(id)
	short := hex.EncodeToString(sum[:8])
	name := filepath.Join(s.dir, time.Now().UTC().Format("20060102T150405.000")+"-"+short+".json")
	if names, _ := filepath.Glob(filepath.Join(s.dir, "*-"+short+".json")); len(names) > 0 {
		name = names[0]
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	k := &SavedCall{name: name, lock: flock.New(statefile.LockName(name))}
	if _, err := k.lock.TryLock(); err != nil { // or another follows it: then both do
		return nil, fmt.Errorf("keep the call: %w", err)
	}
	return k, nil
}

// put keeps where the call is.
func (k *SavedCall) put(s client.State) error {
	if k == nil {
		return nil
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over || bytes.Equal(data, k.last) {
		return nil
	}
	k.last = data
	return statefile.Replace(k.name, data)
}

// end lets go of the place: for good if the call is over.
func (k *SavedCall) end(over bool) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	_ = k.lock.Close()
	if over {
		_ = os.Remove(k.name)
		_ = os.Remove(k.lock.Path())
	}
}

// kept says whether anything is kept.
func (k *SavedCall) kept() bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last != nil
}
