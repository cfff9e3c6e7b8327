package followcall

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"holdfast/client"
	"holdfast/internal/statefile"
	"holdfast/internal/terminal"
)

// SavedCalls is a directory with a file for each call that has not ended: a record, as JSON. The
// process that follows a call locks its file. The name of a file is the time at which the call
// began (UTC) and a hash of the call's id. The zero value keeps nothing.
type SavedCalls struct{ dir string }

// SavedCallsIn returns the calls that are kept in a directory for state files; "": none.
func SavedCallsIn(state string) SavedCalls {
	if state == "" {
		return SavedCalls{}
	}
	return SavedCalls{filepath.Join(state, "calls")}
}

// IsZero reports whether no calls are kept.
func (s SavedCalls) IsZero() bool { return s.dir == "" }

// forgetAfter is the age at which a call that was not resumed is forgotten.
const forgetAfter = 7 * 24 * time.Hour

var errNoneSaved = errors.New("no unfinished call is saved here: give the token that holdfast call printed")

// An Entry names a server in the file of a host. The call is sent with the headers of that entry.
type Entry struct {
	File string `json:"file"`
	Name string `json:"name"`
}

// A record is the content of a file: a [client.State], and the facts about the call for lists.
type record struct {
	client.State
	Tool      string         `json:"tool,omitempty"`
	Entry     Entry          `json:"entry,omitzero"`
	Progress  *terminal.Step `json:"progress,omitempty"`
	Cancelled time.Time      `json:"cancelled,omitzero"`
}

func readSaved(name string) (record, bool) {
	var r record
	data, err := os.ReadFile(name)
	ok := err == nil && json.Unmarshal(data, &r) == nil && checkState(r.State) == nil
	return r, ok
}

func removeSaved(name string) {
	_ = os.Remove(name)
	_ = os.Remove(statefile.LockName(name))
}

// A SavedCall is the file of one call. Its methods may be called concurrently. A nil SavedCall keeps nothing.
type SavedCall struct {
	name  string // of the file
	short string // the name of the call for users
	tool  string
	entry Entry
	lock  *flock.Flock // nil: another process follows the call too

	mu     sync.Mutex // also held while the file is written: an older state never replaces a newer one
	last   []byte     // the content of the file; nil: none yet
	step   *terminal.Step
	ended  time.Time // when the server was told to cancel the call; zero: it was not
	closed bool
}

func hashOf(id []byte) string {
	sum := sha256.Sum256(id)
	return hex.EncodeToString(sum[:8])
}

// Add returns the file of a call of a tool: the existing file, or a new one. It returns nil if no calls are kept.
func (s SavedCalls) Add(id []byte, tool string) (*SavedCall, error) {
	if s.IsZero() {
		return nil, nil
	}
	hash := hashOf(id)
	name := filepath.Join(s.dir, time.Now().UTC().Format(began)+"-"+hash+".json")
	c := &SavedCall{name: name, tool: tool}
	if names, _ := filepath.Glob(filepath.Join(s.dir, "*-"+hash+".json")); len(names) > 0 {
		c.name = names[0]
		if r, ok := readSaved(c.name); ok {
			c.tool, c.entry, c.step, c.ended = cmp.Or(r.Tool, tool), r.Entry, r.Progress, r.Cancelled
		}
	} else {
		s.prune()
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if c.lock, err = statefile.LockSoon(statefile.LockName(c.name)); err != nil {
		return nil, err
	}
	var others []string
	names, _ := filepath.Glob(filepath.Join(s.dir, "*.json"))
	for _, other := range names {
		if _, sum, ok := parseFile(other); ok {
			others = append(others, sum)
		}
	}
	c.short = nameOf(c.tool, sumOf(hash), others)
	return c, nil
}

// At notes the entry of the call's server. It is called before the call is followed.
func (c *SavedCall) At(e Entry) {
	if c != nil {
		c.entry = e
	}
}

// Name returns the name by which users find the call here.
func (c *SavedCall) Name() string { return c.short }

// progress notes the last progress of the call. The next save writes it.
func (c *SavedCall) progress(s terminal.Step) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Message = cutMessage(s.Message)
	c.step = &s
}

// mostMessage bounds the text of a progress that is saved, in bytes.
const mostMessage = 200

func cutMessage(text string) string {
	text = terminal.OneLine(text)
	if len(text) > mostMessage {
		text = strings.ToValidUTF8(text[:mostMessage], "") + "…"
	}
	return text
}

// save replaces the content of the file.
func (c *SavedCall) save(s client.State) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	data, err := json.Marshal(record{State: s, Tool: c.tool, Entry: c.entry, Progress: c.step, Cancelled: c.ended})
	if err != nil {
		return err
	}
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

// isSaved reports whether the file was written.
func (c *SavedCall) isSaved() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last != nil
}
