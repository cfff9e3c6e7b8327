package followcall

import (
	"cmp"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"holdfast/client"
	"holdfast/internal/statefile"
	"holdfast/internal/terminal"
)

// A Kept is a saved call.
type Kept struct {
	State client.State
	// Name is the shortest name that the call has here: its tool, and letters of the hash of its id.
	Name      string
	Tool      string
	Entry     Entry // of its server; zero: it was given by its URL
	Began     time.Time
	Updated   time.Time      // when its file was written last
	Progress  *terminal.Step // the last progress that was seen here; nil: there was none
	Cancelled time.Time      // when its server was told to cancel it; zero: it was not
	Followed  bool           // another process follows it

	file string
	sum  string // all letters of the hash, of which Name has some
}

// Server returns the server that the call is at, as users know it.
func (k *Kept) Server() string {
	if u, err := url.Parse(k.State.URL); err == nil && u.Host != "" {
		return u.Host
	}
	return "the server"
}

// letters encodes hashes for names of calls. It has no I, L, O and U, which look like other letters.
var letters = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// leastSum is how many letters of a call's hash are in its name, if they are enough.
const leastSum = 4

// unfit matches the characters that names of calls do not have.
var unfit = regexp.MustCompile(`[^a-z0-9_]+`)

// slug returns the beginning of the name of a call of a tool.
func slug(tool string) string {
	s := strings.Trim(unfit.ReplaceAllString(strings.ToLower(tool), "-"), "-_")
	return cmp.Or(strings.Trim(s[:min(len(s), 24)], "-_"), "call")
}

// nameOf returns the name of a call, with as many letters as tell it from others with the hashes given.
func nameOf(tool, sum string, others []string) string {
	n := leastSum
	for n < len(sum) && slices.ContainsFunc(others, func(o string) bool { return o != sum && strings.HasPrefix(o, sum[:n]) }) {
		n++
	}
	return slug(tool) + "-" + sum[:n]
}

// sumOf returns the letters for a hash in the name of a file.
func sumOf(hash string) string {
	b, err := hex.DecodeString(hash)
	if err != nil || len(b) != 8 {
		return ""
	}
	return letters.EncodeToString(b)
}

// began is the format of the time in the names of files, at which the call began.
const began = "20060102T150405.000"

// parseFile returns the time and the letters of the hash in the name of a file.
func parseFile(name string) (at time.Time, sum string, ok bool) {
	when, hash, both := strings.Cut(strings.TrimSuffix(filepath.Base(name), ".json"), "-")
	at, err := time.Parse(began, when)
	sum = sumOf(hash)
	return at, sum, both && err == nil && sum != ""
}

// Readable returns an error if it cannot be known which calls are saved.
func (s SavedCalls) Readable() error {
	if s.IsZero() {
		return nil
	}
	if _, err := os.ReadDir(s.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the calls that are saved here cannot be read: %w", err)
	}
	return nil
}

// List returns the calls that are saved and not forgotten, the newest last.
func (s SavedCalls) List() []Kept {
	if s.IsZero() {
		return nil
	}
	names, _ := filepath.Glob(filepath.Join(s.dir, "*.json"))
	slices.Sort(names) // they begin with the time
	var all []Kept
	var sums []string
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			continue // it has ended
		}
		if time.Since(info.ModTime()) > forgetAfter && !isFollowed(name) {
			removeSaved(name)
			continue
		}
		at, sum, ok := parseFile(name)
		r, read := readSaved(name)
		if !ok || !read {
			continue
		}
		k := Kept{
			State: r.State, Tool: cmp.Or(r.Tool, r.Calls[0].Name), Entry: r.Entry, Began: at, Updated: info.ModTime(),
			Progress: r.Progress, Cancelled: r.Cancelled, file: name, sum: sum,
		}
		k.Followed = isFollowed(name)
		all, sums = append(all, k), append(sums, sum)
	}
	for i := range all {
		all[i].Name = nameOf(all[i].Tool, all[i].sum, sums)
	}
	return all
}

// isFollowed reports whether a process follows the call of a file.
func isFollowed(name string) bool { return statefile.IsLocked(statefile.LockName(name)) }

// Several says that more than one call may be meant.
type Several struct {
	Calls []Kept
	which string
}

// Error implements error.
func (e *Several) Error() string {
	return fmt.Sprintf("%d unfinished calls %s: name the one that is meant", len(e.Calls), e.which)
}

// Only returns the one unfinished call. Cancelled calls count only if there is no other; with unfollowed, calls that other
// processes follow do not count. The error is a [Several] if there is more than one.
func (s SavedCalls) Only(unfollowed bool) (Kept, error) {
	all := s.List()
	followed := 0
	if unfollowed {
		all = slices.DeleteFunc(all, func(k Kept) bool {
			if k.Followed {
				followed++
			}
			return k.Followed
		})
	}
	if open := slices.DeleteFunc(slices.Clone(all), func(k Kept) bool { return !k.Cancelled.IsZero() }); len(open) > 0 {
		all = open
	}
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1:
		return Kept{}, &Several{all, "are saved here"}
	case followed > 0:
		return Kept{}, fmt.Errorf("%w (other commands follow %d that are saved)", errNoneSaved, followed)
	}
	return Kept{}, errNoneSaved
}

// Find returns the call of a name, or of the beginning of one, or of the letters at its end. Case does not matter. ok is false if
// there is no such call; the error is a [Several] if there is more than one.
func (s SavedCalls) Find(name string) (found Kept, ok bool, err error) {
	name = strings.ToLower(strings.TrimSpace(name))
	var all []Kept
	for _, k := range s.List() {
		whole := slug(k.Tool) + "-" + k.sum
		if name != "" && strings.HasPrefix(whole, name) || len(name) >= leastSum && strings.HasPrefix(k.sum, name) {
			all = append(all, k)
		}
	}
	switch len(all) {
	case 0:
		return Kept{}, false, nil
	case 1:
		return all[0], true, nil
	}
	return Kept{}, true, &Several{all, fmt.Sprintf("have names that begin with %q", name)}
}

// Cancelled notes that the server was told to cancel a call. If another process follows the call, that process notes it.
func (s SavedCalls) Cancelled(state client.State) {
	if s.IsZero() || len(state.Calls) != 1 {
		return
	}
	names, _ := filepath.Glob(filepath.Join(s.dir, "*-"+hashOf(state.Calls[0].ID)+".json"))
	for _, name := range names {
		lock, err := statefile.LockSoon(statefile.LockName(name))
		if err != nil || lock == nil {
			continue
		}
		if r, ok := readSaved(name); ok && r.Cancelled.IsZero() {
			r.Cancelled = time.Now().UTC()
			if data, err := json.Marshal(r); err == nil {
				_ = statefile.Replace(name, data) // else the call stays in the list
			}
		}
		_ = lock.Close()
	}
}

// mostCalls is how many calls are saved. If there are more, the oldest that no process follows are forgotten.
const mostCalls = 200

// prune forgets calls that are too old, or too many, and that no process follows, and the locks of calls that have no file.
func (s SavedCalls) prune() {
	names, _ := filepath.Glob(filepath.Join(s.dir, "*.json"))
	slices.Sort(names)
	left := len(names)
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil || time.Since(info.ModTime()) <= forgetAfter && left < mostCalls || isFollowed(name) {
			continue
		}
		removeSaved(name)
		left--
	}
	locks, _ := filepath.Glob(filepath.Join(s.dir, "*.lock"))
	for _, name := range locks {
		if _, err := os.Stat(strings.TrimSuffix(name, ".lock") + ".json"); err == nil {
			continue
		}
		if info, err := os.Stat(name); err == nil && time.Since(info.ModTime()) > forgetAfter {
			_ = os.Remove(name)
		}
	}
}
