package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"holdfast/internal/statefile"
)

// A store keeps sessions with one server, and their calls, in files. Bridges in several
// processes, also of different builds, use the same files at the same time:
//
//	DIR/connect/SERVER-N.json           a session and its calls, a [sessionRecord]; N is 0 to 31
//	DIR/connect/SERVER-N.lock           locked by the process that has the session
//	DIR/connect/SERVER-call-CALL        locked by the process that has taken the call over
//	DIR/connect/SERVER-call-CALL.over   the call was answered or cancelled; empty
//	DIR/connect/SERVER.known            the last answers of the server, a [knownRecord]; the last process to write it wins
//
// SERVER is the first 12 bytes, in hex, of the SHA-256 of the JSON array [URL, transport,
// headers] and a line feed. CALL is the same of the call's id at the server. File locks end
// with their process.
//
//  1. A process holds the lock of its session for as long as it lives. Only the holder
//     writes the session's file, and always replaces it.
//  2. A call may be taken over once its host has left it: its record says since when, or
//     the lock of its session is free.
//  3. To take a call over, a process locks the call's file, and then looks for the .over
//     file. If that is there, the call must not be taken over.
//  4. The process that takes a call over from another session keeps it in its own session
//     first. Then it removes the call from the other session, if that session's lock is free; else
//     the process that has that session does so when it ends, or the next one when it begins. A
//     process killed in between leaves the call in two sessions, never in none.
//  5. When a call that was taken over has ended, the .over file is written before the
//     call's lock is released.
//
// Methods may be called concurrently. A nil store, or one before open, keeps nothing.
type store struct {
	dir    string
	prefix string // of the names of this server's files

	// mu is the one lock of this process. It is held while files are read and written, so
	// that an older record never replaces a newer one. Callers of the store hold no lock.
	mu      sync.Mutex
	session *sessionFile            // of this process; nil: not open
	calls   map[string]*flock.Flock // taken over, by the calls' ids at the server
}

// A sessionFile is the file of one session, and its lock: nil if another process has it.
type sessionFile struct {
	name string
	lock *flock.Flock
}

const (
	// maxSessions bounds the sessions with one server that are kept at a time.
	maxSessions = 32
	// staleAfter is the age at which a file is of no use: no server keeps a session for so
	// long without a client.
	staleAfter = 24 * time.Hour
	// callFile is in the names of the files of calls. overSuffix ends the name of a file that
	// says that a call has ended.
	callFile   = "-call-"
	overSuffix = ".over"
)

// newStore returns the store for a server, in a directory for state files. Connections with
// other headers may be of other users: they have stores of their own.
func newStore(dir, url, transport string, header http.Header) *store {
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode([]any{url, transport, header}) // neither fails
	return &store{
		dir: filepath.Join(dir, "connect"), prefix: hex.EncodeToString(sum.Sum(nil)[:12]),
		calls: make(map[string]*flock.Flock),
	}
}

// open takes a session file for this process. It returns the record of a session that a request
// with the fingerprint opener began, without the calls that are elsewhere, or nil if there is none.
func (s *store) open(opener fingerprint) (*sessionRecord, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	s.sweep()
	own, old, err := s.resumed(opener)
	if err == nil && own == nil {
		own, err = s.unused()
	}
	if err != nil {
		return nil, err
	}
	s.session = own
	if old != nil {
		s.leaveOut(old)
	}
	return old, nil
}

// How long a process that begins waits for a session which another process may have locked only to take a call over from it.
const (
	lockedFor  = 50 * time.Millisecond
	lockedLook = 5 * time.Millisecond
)

// resumed locks a session that a request with the fingerprint opener began, and returns it with its record, or nil if there is none. It locks
// no other session: the process of that one may begin at the same time.
func (s *store) resumed(opener fingerprint) (*sessionFile, *sessionRecord, error) {
	for began := time.Now(); ; time.Sleep(lockedLook) {
		names, err := s.ofHost(opener)
		if err != nil {
			return nil, nil, err
		}
		again := false
		for _, name := range names {
			f, err := lockSession(name)
			if err != nil {
				return nil, nil, err
			}
			old := (&sessionFile{name: name}).read() // it may be another one by now
			switch {
			case old == nil || !old.matches(opener):
				f.release()
			case f != nil:
				return f, old, nil
			default:
				again = again || len(old.Calls) > 0
			}
		}
		if !again || time.Since(began) > lockedFor {
			return nil, nil, nil
		}
	}
}

// ofHost returns the names of the sessions that a request with the fingerprint opener began, the likeliest one first.
func (s *store) ofHost(opener fingerprint) (names []string, err error) {
	all, err := s.sessions()
	if err != nil {
		return nil, err
	}
	records := make(map[string]*sessionRecord)
	for _, name := range all {
		if old := (&sessionFile{name: name}).read(); old != nil && old.matches(opener) {
			records[name] = old
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int {
		switch {
		case records[a].preferred(records[b]):
			return -1
		case records[b].preferred(records[a]):
			return 1
		}
		return 0
	})
	return names, nil
}

// unused locks a session file in which nothing is kept.
func (s *store) unused() (*sessionFile, error) {
	for i := range maxSessions {
		f := &sessionFile{name: filepath.Join(s.dir, fmt.Sprintf("%s-%d.json", s.prefix, i))}
		if f.read() != nil {
			continue
		}
		f, err := lockSession(f.name)
		if err != nil {
			return nil, err
		}
		if f != nil && f.read() == nil {
			return f, nil
		}
		f.release()
	}
	return nil, fmt.Errorf("%s already has %d sessions with this server", s.dir, maxSessions)
}

// isOpen reports whether anything is kept.
func (s *store) isOpen() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session != nil
}

// save writes the record that record returns, unless that is nil. record is called with the
// store locked: the later of two calls has the newer record.
func (s *store) save(record func() *sessionRecord) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		return nil
	}
	r := record()
	if r == nil {
		return nil
	}
	return s.session.write(r)
}

// saveLast is save for a process that ends. It leaves out the calls that are elsewhere: the next process that has this session would continue
// them, too.
func (s *store) saveLast(record func() *sessionRecord) error {
	return s.save(func() *sessionRecord {
		r := record()
		if r != nil {
			s.leaveOut(r)
		}
		return r
	})
}

// leaveOut removes the calls that are elsewhere from a record. s.mu is held.
func (s *store) leaveOut(r *sessionRecord) {
	r.Calls = slices.DeleteFunc(r.Calls, func(c callRecord) bool { return s.isElsewhere(c.ID) })
}

// isElsewhere reports whether a call that was taken over has ended, or is kept in the session of the process that has it. A call that no process has
// stays in each session that it is in: its processes may be ending at the same time (rule 4). s.mu is held.
func (s *store) isElsewhere(id []byte) bool {
	if s.calls[string(id)] != nil {
		return false
	}
	if _, err := os.Stat(s.callFile(id) + overSuffix); err == nil {
		return true
	}
	if !statefile.IsLocked(s.callFile(id)) {
		return false
	}
	names, err := s.sessions()
	return err == nil && slices.ContainsFunc(names, func(name string) bool {
		if name == s.session.name {
			return false
		}
		other := (&sessionFile{name: name}).read()
		return other != nil && slices.ContainsFunc(other.Calls, func(c callRecord) bool { return string(c.ID) == string(id) })
	})
}

// close releases the session and the calls, for other processes to take over.
func (s *store) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The calls are released first: the next process that has the session takes them over.
	for id, lock := range s.calls {
		_ = lock.Close()
		delete(s.calls, id)
	}
	if s.session != nil {
		s.session.release()
		s.session = nil
	}
}

// sessions returns the names of the session files.
func (s *store) sessions() ([]string, error) {
	return filepath.Glob(filepath.Join(s.dir, s.prefix+"-*.json"))
}

// callFile returns the name of a call's file.
func (s *store) callFile(id []byte) string {
	sum := sha256.Sum256(id)
	return filepath.Join(s.dir, s.prefix) + callFile + hex.EncodeToString(sum[:12])
}

// anyTaken reports whether another process has taken one of these calls over.
func (s *store) anyTaken(ids [][]byte) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if s.calls[string(id)] != nil {
			continue // by this process
		}
		if _, err := os.Stat(s.callFile(id)); err == nil {
			return true
		}
	}
	return false
}

// sweep removes the files of calls that no host repeats any more. s.mu is held.
func (s *store) sweep() {
	names, err := filepath.Glob(filepath.Join(s.dir, s.prefix) + callFile + "*")
	if err != nil {
		return
	}
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil || time.Since(info.ModTime()) < staleAfter {
			continue
		}
		if strings.HasSuffix(name, overSuffix) {
			_ = os.Remove(name)
			continue
		}
		if lock, err := statefile.TryLock(name); err == nil && lock != nil {
			_ = os.Remove(name)
			_ = lock.Close()
		}
	}
}

// lockSession locks a session file. It returns nil if another process has it.
func lockSession(name string) (*sessionFile, error) {
	lock, err := statefile.TryLock(statefile.LockName(name))
	if err != nil || lock == nil {
		return nil, err
	}
	return &sessionFile{name, lock}, nil
}

// read returns the record of a session that can be resumed, or nil.
func (f *sessionFile) read() *sessionRecord {
	data, err := os.ReadFile(f.name)
	if err != nil {
		return nil
	}
	r := &sessionRecord{}
	if json.Unmarshal(data, r) != nil || time.Since(r.Alive) > staleAfter || r.Conn.Result == nil && !r.Modern {
		return nil
	}
	return r
}

func (f *sessionFile) write(r *sessionRecord) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return statefile.Replace(f.name, data)
}

// release lets another process have the session.
func (f *sessionFile) release() {
	if f != nil && f.lock != nil {
		_ = f.lock.Close()
	}
}
