package bridge

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

	"holdfast/internal/statefile"
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
func (s *slots) take(print fingerprint) (*slot, *saved, error) {
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
		if old == nil || !old.asks(print) || kept != nil && !old.better(kept) {
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

// A wanted call is one that a host has made, and may have made before.
type wanted struct {
	print   fingerprint          // of the host's initialize request
	request fingerprint          // of the call
	take    func(id []byte) bool // says whether a call is ours to go on with
	// keep keeps it, before it is struck out elsewhere: what ends this process in
	// between leaves it in both places, and not in none.
	keep func(*savedFlight)
}

// Another bridge that is about to say which calls it has found, or that its host has
// left its calls, is waited for so long, so many times.
const (
	sayPause = 50 * time.Millisecond
	sayTries = 20
)

// claim takes a call that another process had in flight out of what is kept, also where
// another bridge has the session by now: a host with several windows brings them back in
// any order. It returns nil if there is none. own is the bridge's own slot.
func (s *slots) claim(own *slot, w *wanted) *savedFlight {
	for try := 0; ; try++ {
		names, err := filepath.Glob(filepath.Join(s.dir, s.name+"-*.json"))
		if err != nil {
			return nil
		}
		doubt := false
		for _, name := range names {
			if own != nil && name == own.file {
				continue
			}
			one, err := lockSlot(name)
			if err != nil {
				continue
			}
			free := one != nil
			if !free {
				one = &slot{file: name}
			}
			found, alive := one.claim(w, free)
			if free {
				one.release()
			}
			if found != nil {
				return found
			}
			doubt = doubt || alive
		}
		if !doubt || try == sayTries {
			return nil
		}
		time.Sleep(sayPause)
	}
}

// claim is [slots.claim] for one slot, which this process has the lock of, or another.
// alive says that the other has such a call in flight, or has not said yet that it found
// it there.
func (s *slot) claim(w *wanted, locked bool) (_ *savedFlight, alive bool) {
	old := s.read()
	if old == nil || !old.asks(w.print) {
		return nil, false
	}
	for i, c := range old.Calls {
		left := c.Left
		if left.IsZero() && locked {
			left = old.Alive
		}
		switch {
		case !c.asks(w.request) || c.Answer == nil && c.Place == nil:
			continue
		case left.IsZero():
			alive = true
			continue
		case time.Since(left) > claimFor || !w.take(c.ID):
			continue
		}
		w.keep(&c)
		if !locked {
			return &c, false
		}
		old.Calls = append(old.Calls[:i:i], old.Calls[i+1:]...)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.write(old); err != nil {
			// Another may claim it too, and they are told the same. To make it anew would
			// have it run twice.
			slog.Warn("a call is kept in two places", "error", err)
		}
		return &c, false
	}
	return nil, alive
}

// lockSlot takes the slot with a file, or returns nil if another process has it.
func lockSlot(file string) (*slot, error) {
	lock, err := statefile.TryLock(statefile.LockName(file))
	if err != nil || lock == nil {
		return nil, err
	}
	return &slot{file: file, lock: lock}, nil
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
	return statefile.Replace(s.file, data)
}

// release lets another process have the slot.
func (s *slot) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = true
	_ = s.lock.Close()
}
