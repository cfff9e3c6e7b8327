package bridge

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"

	"holdfast/internal/statefile"
)

// A foreignCall is a call in the session of another process. This process has taken it over.
type foreignCall struct {
	callRecord
	file *sessionFile
	rest *sessionRecord // the session without the call
}

// takeOver reports whether this process continues a call, from now on or already (rule 3). If
// locking fails with an error, it does: no other process can lock the call either.
func (s *store) takeOver(id []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lockCall(id)
}

// lockCall is takeOver with mu held.
func (s *store) lockCall(id []byte) bool {
	if s.calls[string(id)] != nil {
		return true
	}
	name := s.callFile(id)
	lock, err := statefile.LockSoon(name)
	if err != nil {
		slog.Warn("cannot lock a call: another process may continue it too", "error", err)
		return true
	}
	if lock == nil {
		return false
	}
	if _, err := os.Stat(name + overSuffix); err == nil {
		_ = lock.Close()
		return false
	}
	s.calls[string(id)] = lock
	return true
}

// end notes that a call has ended, if it was taken over (rule 5).
func (s *store) end(id []byte) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	lock := s.calls[string(id)]
	if lock == nil {
		return
	}
	delete(s.calls, string(id))
	if err := os.WriteFile(s.callFile(id)+overSuffix, nil, 0o600); err != nil {
		slog.Warn("cannot note the end of a call: it may be answered twice", "error", err)
	}
	_ = lock.Close()
}

// A process that has begun, or lost its host, says in its record which calls their hosts
// have left. Other processes look for that decideTries times, with a pause of decidePause.
const (
	decidePause = 50 * time.Millisecond
	decideTries = 20
)

// takeOverForeign takes over a call of another session, or returns nil if there is none. A
// host with several windows may bring them back in another order, so that each bridge has
// the session of another window. opener is the fingerprint of the host's initialize
// request; wanted reports whether a call is the one. The caller keeps the call, and then calls
// settle.
func (s *store) takeOverForeign(ctx context.Context, opener fingerprint, wanted func(*callRecord) bool) *foreignCall {
	for try := 0; ; try++ {
		found, undecided := s.searchForeign(opener, wanted)
		if found != nil || !undecided || try == decideTries {
			return found
		}
		select {
		case <-time.After(decidePause):
		case <-ctx.Done():
			return nil
		}
	}
}

// searchForeign is one try of takeOverForeign. undecided means that a process that still runs
// has such a call, and its record does not say that the host has left it.
func (s *store) searchForeign(opener fingerprint, wanted func(*callRecord) bool) (found *foreignCall, undecided bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		return nil, false
	}
	names, err := s.sessions()
	if err != nil {
		return nil, false
	}
	for _, name := range names {
		if old := (&sessionFile{name: name}).read(); name == s.session.name || !old.hasWanted(opener, wanted) {
			continue // the session's process may begin just now: the session is locked only for a call
		}
		f, err := lockSession(name)
		if err != nil {
			continue
		}
		if f == nil {
			f = &sessionFile{name: name}
		}
		found, alive := s.searchSession(f, opener, wanted)
		if found != nil {
			return found, false
		}
		f.release()
		undecided = undecided || alive
	}
	return nil, undecided
}

// searchSession is searchForeign for one session. s.mu is held.
func (s *store) searchSession(f *sessionFile, opener fingerprint, wanted func(*callRecord) bool) (_ *foreignCall, undecided bool) {
	old := f.read()
	if !old.hasWanted(opener, wanted) {
		return nil, false
	}
	for i, c := range old.Calls {
		if !wanted(&c) || !c.usable() {
			continue
		}
		c.Left = old.leftAt(&c, f.lock != nil)
		switch {
		case c.Left.IsZero():
			undecided = true
		case time.Since(c.Left) > keptFor(c.Task) || s.calls[string(c.ID)] != nil || !s.lockCall(c.ID):
		default:
			old.Calls = append(old.Calls[:i:i], old.Calls[i+1:]...)
			return &foreignCall{c, f, old}, false
		}
	}
	return nil, undecided
}

// hasWanted reports whether a request with the fingerprint opener began the session, and the session has a call that is wanted. s may be nil.
func (s *sessionRecord) hasWanted(opener fingerprint, wanted func(*callRecord) bool) bool {
	return s != nil && s.matches(opener) && slices.ContainsFunc(s.Calls, func(c callRecord) bool { return wanted(&c) && c.usable() })
}

// settle removes a call from the session that it was taken over from (rule 4).
func (s *store) settle(c *foreignCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer c.file.release()
	if c.file.lock == nil {
		return // only the process that has the session may write its record
	}
	if err := c.file.write(c.rest); err != nil {
		slog.Warn("a call that was taken over stays in two sessions", "error", err)
	}
}
