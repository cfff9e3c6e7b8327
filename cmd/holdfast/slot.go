package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// slots are the files in which the bridges to one server keep what must outlive
// them. Bridges that run at the same time have one each, under a lock. A host that
// comes back gets the one whose session it began.
type slots struct {
	dir  string
	name string // that their names begin with
}

// mostSlots bounds how many bridges to one server can keep something at a time.
const mostSlots = 32

// newSlots returns the slots of a server, as it is spoken to: who has other headers
// may be somebody else.
func newSlots(state, url, transport string, header http.Header) *slots {
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode([]any{url, transport, header}) // neither fails
	return &slots{dir: filepath.Join(state, "connect"), name: hex.EncodeToString(sum.Sum(nil)[:12])}
}

// A slot is a file that one bridge keeps its state in.
type slot struct {
	file string
	lock *flock.Flock

	mu   sync.Mutex // held while it is written
	free bool       // it was released
}

// take takes a slot, and what is kept there of the session that such an initialize
// request began: nil if there is none.
func (s *slots) take(print string) (*slot, *saved, error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, nil, err
	}
	names, err := filepath.Glob(filepath.Join(s.dir, s.name+"-*.json"))
	if err != nil {
		return nil, nil, err
	}
	var best *slot
	var kept *saved
	for _, name := range names {
		one, err := lockSlot(name)
		if err != nil {
			return nil, nil, err
		}
		if one == nil {
			continue // another bridge has it
		}
		old := one.read()
		if old == nil || old.Print != print || kept != nil && !old.better(kept) {
			one.release() // of another host, which may come back
			continue
		}
		if best != nil {
			best.release()
		}
		best, kept = one, old
	}
	if best != nil {
		return best, kept, nil
	}
	for i := range mostSlots {
		one, err := lockSlot(filepath.Join(s.dir, fmt.Sprintf("%s-%d.json", s.name, i)))
		if err != nil {
			return nil, nil, err
		}
		if one == nil {
			continue
		}
		if one.read() == nil {
			return one, nil, nil
		}
		one.release()
	}
	return nil, nil, fmt.Errorf("%d sessions with this server are kept already in %s", mostSlots, s.dir)
}

// better says whether a host that comes back is likelier to be the one of s than of
// other: it has calls in flight, or was there later.
func (s *saved) better(other *saved) bool {
	if some, others := len(s.Calls) > 0, len(other.Calls) > 0; some != others {
		return some
	}
	return s.Alive.After(other.Alive)
}

// claim takes a call of another bridge that is not there any more out of what is
// kept: a host with several windows brings them back in any order. It returns nil if
// there is none. keep is called first, to keep it elsewhere: what ends this process
// in between leaves it in both places, and not in none.
func (s *slots) claim(print, request string, keep func(*savedFlight)) *savedFlight {
	names, err := filepath.Glob(filepath.Join(s.dir, s.name+"-*.json"))
	if err != nil {
		return nil
	}
	for _, name := range names {
		one, err := lockSlot(name)
		if err != nil || one == nil {
			continue
		}
		found := one.claim(print, request, keep)
		one.release()
		if found != nil {
			return found
		}
	}
	return nil
}

// claim is [slots.claim] for one slot.
func (s *slot) claim(print, request string, keep func(*savedFlight)) *savedFlight {
	old := s.read()
	if old == nil || old.Print != print {
		return nil
	}
	for i, c := range old.Calls {
		left := c.Left
		if left.IsZero() {
			left = old.Alive
		}
		if c.Print != request || time.Since(left) > claimFor || c.Answer == nil && c.Place == nil {
			continue
		}
		keep(&c)
		old.Calls = append(old.Calls[:i:i], old.Calls[i+1:]...)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.write(old); err != nil {
			// Another may claim it too, and they are told the same. To make it anew would
			// have it run twice.
			slog.Warn("a call is kept in two places", "error", err)
		}
		return &c
	}
	return nil
}

// lockSlot takes the slot with a file, or returns nil if another process has it.
func lockSlot(file string) (*slot, error) {
	one := &slot{file: file, lock: flock.New(lockOf(file))}
	free, err := one.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if !free {
		return nil, nil
	}
	return one, nil
}

// staleAfter is the age at which what is kept is of no use: sessions do not live so
// long without anybody.
const staleAfter = 24 * time.Hour

// read returns what is kept, or nil.
func (s *slot) read() *saved {
	data, err := os.ReadFile(s.file)
	if err != nil {
		return nil
	}
	old := &saved{}
	if json.Unmarshal(data, old) != nil || time.Since(old.Alive) > staleAfter || old.Conn.Result == nil {
		return nil
	}
	return old
}

// write keeps s. slot.mu is held.
func (s *slot) write(what *saved) error {
	data, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return replaceFile(s.file, data)
}

// release lets another process have the slot.
func (s *slot) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = true
	_ = s.lock.Close()
}
