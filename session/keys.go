package session

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"sync"
	"time"

	"holdfast/jsonrpc"
	"holdfast/protocol"
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

// Attached is the call that was begun under a key before.
type Attached struct {
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
	session stream.SessionKey // and the stream of the call:
	number  uint64            // 0 until it has begun
	began   chan struct{}     // closed when it has, or could not; nil after that
	buried  bool              // nothing is kept of the call
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
// [ErrKeyReused] and [ErrGone].
func (s *Session) BeginKeyed(key string, body []byte, msgs []jsonrpc.Message) (*Call, *Attached, error) {
	m, id, sum := s.m, s.keyID(key), sumOf(body)
	for {
		e, mine := m.keys.claim(id, sum, s)
		if mine {
			c := &Call{s: s, record: &record{key: &id}}
			err := s.start(c, msgs, false)
			if err != nil {
				m.keys.free(id)
				return nil, nil, err
			}
			number := c.Number()
			if number == 0 { // the session ended just now, and the call with it
				m.keys.free(id)
				return nil, nil, ErrNotFound
			}
			if m.keys.settle(id, number) {
				m.sweepKeys()
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
			return nil, &Attached{Session: owner, Number: e.number}, nil
		}
		m.keys.bury(id, time.Now())
		return nil, nil, ErrGone
	}
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
	delete(k.known, id)
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
	if s == nil || s.isClosed() {
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
	}
	k := &m.keys
	k.mu.Lock()
	all := make([]place, 0, len(k.known)-len(k.graves))
	for id, e := range k.known {
		if !e.buried && e.began == nil {
			all = append(all, place{id, e.session, e.number, e.alone})
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
		case p.alone && m.ended(p.session):
			k.free(p.id) // nobody could use it
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
