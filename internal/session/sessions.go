package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"holdfast/internal/caller"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// A roster has the sessions of a manager, and their tenants. Its methods may be called concurrently. While its lock is held, no other
// lock than that of the carriers is taken.
type roster struct {
	most, share int // sessions in all, and of one tenant

	mu       sync.RWMutex
	sessions map[stream.SessionKey]*Session
	tenants  map[string]*tenant                         // of those, by their names
	resumers map[caller.Principal]map[*Session]struct{} // sessions with calls that are looked for together, by their named principals
	ending   map[stream.SessionKey]struct{}             // sessions that have ended, and that the store has yet to delete
	taking   map[stream.SessionKey]*taking              // sessions that are being taken over
}

func newRoster(opts *Options) roster {
	return roster{
		most: opts.MaxSessions, share: opts.shareOf(opts.MaxSessions),
		sessions: make(map[stream.SessionKey]*Session),
		tenants:  make(map[string]*tenant),
		resumers: make(map[caller.Principal]map[*Session]struct{}),
		ending:   make(map[stream.SessionKey]struct{}),
		taking:   make(map[stream.SessionKey]*taking),
	}
}

// find returns the session with a key; nil: it is not here.
func (r *roster) find(key stream.SessionKey) *Session {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sessions[key]
}

// look returns the session with a key, if it is here, its take-over, if one is under way, and whether it is about to end.
func (r *roster) look(key stream.SessionKey) (s *Session, t *taking, ending bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ending = r.ending[key]
	return r.sessions[key], r.taking[key], ending
}

// isHere reports whether a session is here, or about to end.
func (r *roster) isHere(key stream.SessionKey) bool {
	s, _, ending := r.look(key)
	return s != nil || ending
}

// isKnown reports whether a session is here, about to end, or being taken over.
func (r *roster) isKnown(key stream.SessionKey) bool {
	s, t, ending := r.look(key)
	return s != nil || t != nil || ending
}

func (r *roster) all() []*Session {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.AppendSeq(make([]*Session, 0, len(r.sessions)), maps.Values(r.sessions))
}

func (r *roster) size() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.sessions)
}

// Sessions returns how many sessions there are that clients know.
func (r *roster) Sessions() (n int) {
	for _, s := range r.all() {
		if s.modern == "" {
			n++
		}
	}
	return n
}

// Readers returns how many readers are attached.
func (r *roster) Readers() int {
	n := 0
	for _, s := range r.all() {
		n += int(s.use.readers.Load())
	}
	return n
}

// Find returns the session with the secret id, if it is the principal's.
// The error is [ErrNotFound], whatever the reason; [ErrEnded] and [ErrServerEnded] wrap it.
func (r *roster) Find(id string, principal caller.Principal) (*Session, error) {
	s, err := r.FindName(string(whereabouts.KeyOf(id)), principal)
	if err != nil || s.isLingering() {
		return nil, ErrNotFound
	}
	if s.use.lost.Load() {
		return nil, ErrServerEnded
	}
	if s.use.isLeft() {
		return nil, ErrEnded
	}
	s.Touch()
	return s, nil
}

// FindToRead is Find for a client that comes back for a stream: its server may have ended the session meanwhile.
func (r *roster) FindToRead(id string, principal caller.Principal) (*Session, error) {
	s, err := r.Find(id, principal)
	if errors.Is(err, ErrServerEnded) {
		return r.FindName(string(whereabouts.KeyOf(id)), principal)
	}
	return s, err
}

// FindName returns the session with the public name, if it is the principal's. A
// name alone opens nothing: the caller has to ask for a secret of the stream. The
// session may have ended, with streams to be read yet. A session that begins again is not found before the store has it: its
// clients wait for that in [Manager.Revive].
func (r *roster) FindName(name string, principal caller.Principal) (*Session, error) {
	s := r.find(stream.SessionKey(name))
	if s == nil || s.principal != principal || s.state() == sessionOpening || s.isClosed() && !s.isLingering() {
		return nil, ErrNotFound
	}
	return s, nil
}

// countIn counts a new session of a tenant, until countOut or unlist.
func (r *roster) countIn(name string) *tenant {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tenants[name]
	if t == nil {
		t = &tenant{name: name}
		r.tenants[name] = t
	}
	t.sessions++
	return t
}

// countOut takes back the count of a session that was not listed.
func (r *roster) countOut(t *tenant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uncount(t)
}

// uncount is countOut. r.mu is held.
func (r *roster) uncount(t *tenant) {
	if t.sessions--; t.sessions == 0 && r.tenants[t.name] == t {
		delete(r.tenants, t.name)
	}
}

// tenant returns the tenant of a name; nil: it has no sessions here.
func (r *roster) tenant(name string) *tenant {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.tenants[name]
}

// checkShare reports whether a tenant, which may be nil, may have more sessions than are counted. Its error wraps [ErrBusy].
func (r *roster) checkShare(t *tenant, more int) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.overShare(t, more)
}

// overShare is checkShare. r.mu is held.
func (r *roster) overShare(t *tenant, more int) error {
	if t == nil || t.name == "" || t.sessions+more <= r.share {
		return nil
	}
	return fmt.Errorf("%w: %d sessions of this client are open (--max-share or MaxShare, of --max-sessions)", ErrBusy, r.share)
}

// full returns an error that wraps [ErrBusy] if there may be no more sessions. r.mu is held.
func (r *roster) full() error {
	if len(r.sessions) < r.most {
		return nil
	}
	return fmt.Errorf("%w: %d sessions are open on this node (--max-sessions or MaxSessions)", ErrBusy, r.most)
}

// add lists a new session if start allows it: start gets an error that wraps [ErrBusy] if there may be no more sessions, else nil, and add returns its error.
func (r *roster) add(s *Session, start func(error) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.full()
	if err == nil {
		err = r.overShare(s.tenant, 0)
	}
	if err = start(err); err != nil {
		return err
	}
	r.sessions[s.key] = s
	return nil
}

// put lists a session that was taken over, in the place of the one with its key that is here.
func (r *roster) put(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stays := r.sessions[s.key]; stays != nil {
		r.drop(stays)
	}
	r.sessions[s.key] = s
}

// unlist forgets a session that has ended, or left.
func (r *roster) unlist(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(s)
}

// drop is unlist. r.mu is held.
func (r *roster) drop(s *Session) {
	if s.carrier != nil {
		s.m.carriers.forget(s.carrier)
	}
	if r.sessions[s.key] == s { // and not another that came after it
		delete(r.sessions, s.key)
		r.uncount(s.tenant)
	}
	if all := r.resumers[s.principal]; all != nil {
		if delete(all, s); len(all) == 0 {
			delete(r.resumers, s.principal)
		}
	}
}

// end notes that a session is about to end, until forgotten: it is not looked for on other nodes. It is unlisted unless it stays.
func (r *roster) end(s *Session, stays bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !stays {
		r.drop(s)
	}
	r.ending[s.key] = struct{}{}
}

// forgotten notes that the store has deleted a session.
func (r *roster) forgotten(key stream.SessionKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ending, key)
}

// take notes that a session is being taken over, if there may be one more, and returns the take-over. If the session is being taken
// over already, begun is false. If it begins again, and is here by now, only old is returned. Else old is the session with the key
// that is here, or nil. start is as for add.
func (r *roster) take(key stream.SessionKey, begins bool, start func(error) error) (t *taking, begun bool, old *Session, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t = r.taking[key]; t != nil {
		return t, false, nil, nil
	}
	if old = r.sessions[key]; begins && old != nil {
		return nil, false, old, nil
	}
	if err = start(r.full()); err != nil {
		return nil, false, nil, err
	}
	t = &taking{done: make(chan struct{})}
	r.taking[key] = t
	return t, true, old, nil
}

// takings returns the sessions that are being taken over.
func (r *roster) takings() []*taking {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.taking))
}

// took notes that a session is no longer being taken over.
func (r *roster) took(key stream.SessionKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.taking, key)
}

// resumer adds a session to those of its named principal with calls that are looked for together.
func (r *roster) resumer(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.principal.IsAnonymous() || r.sessions[s.key] != s {
		return
	}
	if r.resumers[s.principal] == nil {
		r.resumers[s.principal] = make(map[*Session]struct{})
	}
	r.resumers[s.principal][s] = struct{}{}
}

// resumersOf returns the sessions of a named principal, in a range, with calls that are looked for together.
func (r *roster) resumersOf(principal caller.Principal, in Range) (all []*Session) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for s := range r.resumers[principal] {
		if in.Has(s.key) {
			all = append(all, s)
		}
	}
	return all
}
