package session

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is idempotency: a client that cannot know whether its request
// arrived makes it again under the same key, and is given the call that it began
// the first time. docs/decisions/0009-idempotency-keys.md says what a key covers.

// Errors of [Session.BeginKeyed].
var (
	// ErrKeyReused refuses a key that another request was made under.
	ErrKeyReused = errors.New("the idempotency key was used for another request")
	// ErrGone stands for a call that began under its key, and of which nothing is
	// kept any more.
	ErrGone = errors.New("the call of this idempotency key began, and what became of it is no longer kept")
)

// ExistingCall is the call that was begun under a key before.
type ExistingCall struct {
	Session *Session // another one than was asked, maybe, of the same principal
	Number  uint64   // of its stream, which may have ended
}

// keyID is an idempotency key together with its scope.
type keyID [sha256.Size]byte

// keyID names a key of the session's client: of the principal in all its
// sessions, or, where that is nobody in particular, of the session.
func (s *Session) keyID(key string) keyID {
	kind, scope := byte('p'), s.principal
	if s.principal == "" {
		kind, scope = 's', string(s.key)
	}
	text := append(make([]byte, 0, 128), kind)
	text = binary.BigEndian.AppendUint64(text, uint64(len(scope)))
	return sha256.Sum256(append(append(text, scope...), key...))
}

// keys are the idempotency keys that a node knows. An entry lives as long as the
// stream of its call, and for as long as that is running out (see keysSwept); one
// of a named principal stays behind as a grave, so that its request does not run
// again.
//
// mu is taken last, and held for nothing but looking and writing here.
type keys struct {
	mu     sync.Mutex
	known  map[keyID]*keyed
	graves []grave // oldest first
	crowd  int     // how many entries are too many to go on without a sweep
	swept  time.Time
}

// keyed is what is known of a key.
type keyed struct {
	body    keySum
	alone   bool              // its scope is the session
	once    time.Time         // when a node named a POST so, of which nothing stays behind; zero for a client's key
	session stream.SessionKey // and the stream of the call:
	number  uint64            // 0 until it has begun
	began   chan struct{}     // closed when it has, or could not; nil after that
	buried  bool              // nothing is kept of the call
	found   *keyed            // what was found of it meanwhile, in a session that was taken over
}

// keySum stands for a request: only its own client could want two to collide.
type keySum [16]byte

func sumOf(body []byte) keySum {
	sum := sha256.Sum256(body)
	return keySum(sum[:16])
}

// grave is a key whose call is no longer kept.
type grave struct {
	id keyID
	at time.Time
}

// How long a call that is no longer kept is remembered by its key, and how many
// of them; from how many entries on they are looked through when more come, and
// how often else.
const (
	gravesKept = 24 * time.Hour
	mostGraves = 1 << 16
	keysCrowd  = 1 << 16
	keysSwept  = 10 * time.Minute
)

// BeginKeyed opens a stored call as [Session.Begin] does, under an idempotency
// key. body is what makes two requests the same. Where the call was begun before,
// by this session or another of the same named principal, no call is opened, and
// the one that there is is returned: running or ended. Of several that come at the
// same time one begins the call.
//
// The errors are those of Begin, after which the key is free again,
// [ErrKeyReused], [ErrGone], and a [*Redirect] where the call was begun in a
// session that is not on this node.
func (s *Session) BeginKeyed(key string, body []byte, msgs []jsonrpc.Message) (*Call, *ExistingCall, error) {
	m, id, sum := s.m, s.keyID(key), sumOf(body)
	s.keyed.Store(true)
	for {
		e, mine := m.keys.claim(id, sum, s)
		if mine {
			switch err := s.claim(id, sum); {
			case errors.Is(err, errHere):
				m.keys.free(id)
				continue
			case err != nil:
				m.keys.free(id)
				return nil, nil, err
			}
			c := &Call{s: s, record: &record{key: &id, sum: sum}}
			if err := s.startUnder(id, c, msgs, false); err != nil {
				return nil, nil, err
			}
			return c, nil, nil
		}
		switch {
		case e.began != nil:
			<-e.began // beginning does not take long
			continue
		case e.body != sum:
			return nil, nil, ErrKeyReused
		case e.buried:
			return nil, nil, ErrGone
		}
		if owner := m.keeper(e.session, e.number); owner != nil && owner.principal == s.principal {
			return nil, &ExistingCall{Session: owner, Number: e.number}, nil
		}
		if _, err := m.FindName(string(e.session), s.principal); err != nil && m.shared != nil {
			switch err = m.elsewhere(e.session, s.principal); {
			case errors.Is(err, errHere):
				continue
			case !errors.Is(err, ErrNotFound):
				return nil, nil, err
			}
		}
		m.keys.bury(id, time.Now())
		return nil, nil, ErrGone
	}
}

// startUnder begins the call of a claimed key, or gives the key up.
func (s *Session) startUnder(id keyID, c *Call, msgs []jsonrpc.Message, light bool) error {
	keys := &s.m.keys
	err := s.start(c, msgs, light)
	number := c.Number()
	if s.single && c.recovery != nil {
		number = c.recovery.journal
	}
	if err == nil && number == 0 {
		err = ErrNotFound // the session ended just now, and the call with it
	}
	if err != nil {
		if !c.record.once && !c.isHanded() {
			s.unclaim(id, c.record.sum)
		}
		keys.free(id)
		return err
	}
	if keys.settle(id, number) {
		s.m.sweepKeys()
	}
	return nil
}

// claim returns what is known of a key, or takes it for a call of s that is about
// to begin: then it must be settled, or freed.
func (k *keys) claim(id keyID, sum keySum, s *Session) (e keyed, mine bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.known[id]; e != nil {
		return *e, false
	}
	if k.known == nil {
		k.known = make(map[keyID]*keyed)
		k.crowd, k.swept = keysCrowd, time.Now()
	}
	k.known[id] = &keyed{body: sum, alone: s.principal == "", session: s.key, began: make(chan struct{})}
	return keyed{}, true
}

// settle notes that the call of a claimed key has begun. It says whether the
// entries should be looked through.
func (k *keys) settle(id keyID, number uint64) (crowded bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.known[id]
	if e == nil {
		return false // freed at once
	}
	e.number = number
	close(e.began)
	e.began = nil
	return len(k.known)-len(k.graves) > k.crowd
}

// free forgets a key whose call has not begun, or was not delivered.
func (k *keys) free(id keyID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.known[id]
	if e == nil || e.buried {
		return
	}
	if e.found != nil {
		k.known[id] = e.found
	} else {
		delete(k.known, id)
	}
	if e.began != nil {
		close(e.began)
	}
}

// bury notes that nothing is kept of a key's call.
func (k *keys) bury(id keyID, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.known[id]
	if e == nil || e.buried || e.began != nil {
		return
	}
	e.buried = true
	k.graves = append(k.graves, grave{id, now})
	k.clear(now)
}

// clear forgets the graves that are too old or too many. k.mu is held.
func (k *keys) clear(now time.Time) {
	for len(k.graves) > 0 && (len(k.graves) > mostGraves || now.Sub(k.graves[0].at) > gravesKept) {
		delete(k.known, k.graves[0].id)
		k.graves = k.graves[1:]
	}
}

// keeper returns the session of a stream of which something is kept, or that is
// still written to; or nil.
func (m *Manager) keeper(name stream.SessionKey, number uint64) *Session {
	m.mu.RLock()
	s := m.sessions[name]
	m.mu.RUnlock()
	if s == nil || s.isClosed() && !s.isLingering() {
		return nil
	}
	if s.streams.call(number) == nil {
		_, _, err := m.store.Bounds(context.Background(), stream.ID{Session: name, Number: number})
		if errors.Is(err, stream.ErrNotFound) {
			return nil
		}
	}
	return s
}

// sweepKeys looks through the entries for calls of which nothing is kept.
func (m *Manager) sweepKeys() {
	type place struct {
		id      keyID
		session stream.SessionKey
		number  uint64
		alone   bool
		once    time.Time
	}
	k := &m.keys
	k.mu.Lock()
	all := make([]place, 0, len(k.known)-len(k.graves))
	for id, e := range k.known {
		if !e.buried && e.began == nil {
			all = append(all, place{id, e.session, e.number, e.alone, e.once})
		}
	}
	k.swept, k.crowd = time.Now(), math.MaxInt // until it is done, others need not begin
	k.mu.Unlock()
	kept := 0
	for _, p := range all {
		s := m.keeper(p.session, p.number)
		switch {
		case s != nil:
			kept++
		case !p.once.IsZero():
			if time.Since(p.once) < onceKept {
				kept++ // it may come again
			} else {
				k.free(p.id)
			}
		case (p.alone || m.shared != nil) && m.ended(p.session):
			k.free(p.id) // nobody could use it, or the store knows it
		default:
			k.bury(p.id, time.Now())
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.crowd = max(keysCrowd, 2*kept)
	k.clear(time.Now())
	if len(k.known) < len(all)/2 { // a map does not shrink by itself
		known := make(map[keyID]*keyed, len(k.known))
		maps.Copy(known, k.known)
		k.known = known
	}
	if len(k.known) == 0 {
		k.known, k.graves = nil, nil
	}
}

// ended says whether there is no session of the name any more.
func (m *Manager) ended(name stream.SessionKey) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.sessions[name] == nil
}

// restore notes the key of a call in a session that was taken over.
func (k *keys) restore(id keyID, sum keySum, s *Session, number uint64, once bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		k.known = make(map[keyID]*keyed)
		k.crowd, k.swept = keysCrowd, time.Now()
	}
	e := &keyed{body: sum, alone: s.principal == "", session: s.key, number: number}
	if once {
		e.once = time.Now()
	}
	if now := k.known[id]; now != nil && now.began != nil {
		now.found = e // who is about to begin it will hear of it from the store
		return
	}
	k.known[id] = e
}

// found says whether, while a call was about to begin under the key, it was found
// that one has.
func (k *keys) found(id keyID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.known[id]
	return e != nil && e.found != nil
}

// newClaim is how old the claim to a key may be of which there is no call, to be
// taken for one whose node was lost before the call began. What is older may have
// been a call that is kept no longer.
const newClaim = time.Minute

// claim takes a key of a named principal for a call of the session, on all nodes.
// The error is errHere if the call, or its session, has come here meanwhile.
func (s *Session) claim(id keyID, sum keySum) error {
	m := s.m
	if m.shared == nil || s.principal == "" {
		return nil // the session's notes say all
	}
	ctx, stop := context.WithTimeout(m.ctx, asks)
	defer stop()
	was, age, err := m.shared.Claim(ctx, stream.ClaimID(id), s.claimed(sum))
	switch {
	case err != nil:
		return fmt.Errorf("idempotency key not claimed: %w", err)
	case was == nil:
		return nil
	case len(was) <= len(sum):
		return ErrGone
	case keySum(was[:len(sum)]) != sum:
		return ErrKeyReused
	}
	key := stream.SessionKey(was[len(sum):])
	if _, err := m.FindName(string(key), s.principal); err != nil {
		if err = m.elsewhere(key, s.principal); errors.Is(err, ErrNotFound) {
			err = ErrGone
		}
		return err
	}
	switch {
	case m.keys.found(id):
		return errHere
	case age >= newClaim || m.opts.Keep > 0 && age >= m.opts.Keep:
		return ErrGone
	case key == s.key:
		return nil
	}
	if err := m.shared.Unclaim(ctx, stream.ClaimID(id), was); err != nil {
		return fmt.Errorf("idempotency key not claimed: %w", err)
	}
	return errHere
}

// claimed is what the store is told of who began a call, and with what.
func (s *Session) claimed(sum keySum) []byte { return append(sum[:], s.key...) }

// unclaim gives up a key whose call has not begun. If that fails it is known by its
// age.
func (s *Session) unclaim(id keyID, sum keySum) {
	if s.m.shared == nil || s.principal == "" || s.Moved() {
		return
	}
	ctx, stop := context.WithTimeout(s.m.ctx, asks)
	defer stop()
	if err := s.m.shared.Unclaim(ctx, stream.ClaimID(id), s.claimed(sum)); err != nil {
		s.m.logger.Warn("idempotency key not given up", "session", s.Name(), "error", err)
	}
}

// disown frees the key of a call that will not be delivered.
func (c *Call) disown() {
	if c.record == nil || c.record.key == nil {
		return
	}
	if c.recovery != nil {
		c.mu.Lock()
		if c.number != 0 && !c.isOver() {
			c.s.log.queue(saying{c: c, number: c.number, data: []byte("{}"), note: true})
		}
		c.mu.Unlock()
	}
	c.s.unclaim(*c.record.key, c.record.sum)
	c.s.m.keys.free(*c.record.key)
}

// sweepKeysAt does so where it is time for it.
func (m *Manager) sweepKeysAt(now time.Time) {
	m.keys.mu.Lock()
	due := m.keys.known != nil && now.Sub(m.keys.swept) >= keysSwept
	m.keys.mu.Unlock()
	if due {
		m.sweepKeys()
	}
}

// experimental is how a server says that it honours idempotency keys.
var experimental = []byte(`{"header":"` + protocol.HeaderIdempotencyKey + `"}`)

// advertise adds to an initialize result that idempotency keys are honoured.
func (s *Session) advertise(response []byte) []byte {
	if s.single || s.m.opts.Stateless {
		return response
	}
	response, _ = jsonrpc.Set(response, experimental, "result", "capabilities", "experimental", protocol.MetaIdempotencyKey)
	return response
}
