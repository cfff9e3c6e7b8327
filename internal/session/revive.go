package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/internal/moves"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/sessionid"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file begins a session again that no node has any more, from its id: it was idle for too long, or was kept in the memory of a
// process that has ended, or in a store that has lost it. The server's initialize is made again when the session is first used, as
// when a server has ended by itself. The messages of calls of its earlier life are gone, and so is the server's memory of it:
// clients are told to list again. docs/decisions/0046-sealed-ids.md.
//
// If several nodes that share a store revive a session at once, the first with a record in the store gets it.

// An under is a store in which a session can begin again.
type under interface {
	// CreateUnder is [stream.Store.Create] for a session that existed before, under an epoch that it never had.
	CreateUnder(ctx context.Context, key stream.SessionKey, epoch uint64) (stream.Lease, error)
}

// A reviver is a store that nodes share, in which a session can begin again.
type reviver interface {
	// Revive is [stream.Store.Create] for a session that existed before, under an epoch that it never had.
	Revive(ctx context.Context, key stream.SessionKey, about []byte, epoch uint64) (stream.Lease, error)
}

// A later life of a session begins with an epoch from firstLife to lastLife: epochs of take-overs count from 1, and
// numbers made of an epoch are exact in the doubles of JSON.
const (
	firstLife = 1 << 12
	lastLife  = 1 << 20
)

// A beginning is the state, from its id and its note, of a session that begins again.
type beginning struct {
	params   []byte // of its initialize
	revision string
	life     uint64
	note     []byte // its [sleepNote]; nil: it has none
	woke     bool   // it was asleep; set when it has begun
}

// newID returns the id of a session for a client that sends an initialize with params; nil: they are not known,
// and the session cannot be revived.
func (m *Manager) newID(ctx context.Context, principal caller.Principal, params []byte) string {
	if m.opts.Revival == nil || params == nil {
		return rand.Text() // 130 bits, visible ASCII
	}
	c := sessionid.Claims{
		Began: time.Now(), Server: principal.Server(), Principal: sessionid.DigestOf(principal.Text()), Initialize: sessionid.Fit(params),
	}
	if c.Initialize == nil {
		return rand.Text()
	}
	ctx, stop := context.WithTimeout(ctx, storeTimeout)
	defer stop()
	id, err := m.opts.Revival.Seal(ctx, &c)
	if err != nil { // as a rule the store will not take the session either
		m.logger.Debug("session id not sealed", "error", err)
		return rand.Text()
	}
	return id
}

// Revivable returns a session of the principal that no node has and that can begin again, for a client that has made a request and
// speaks a protocol revision ("": that is not known). The error is [ErrNotFound], whatever the reason; [stream.ErrConflict]
// while the session is ending here: call again; or that of the store.
func (m *Manager) Revivable(ctx context.Context, id string, principal caller.Principal, r *http.Request, revision string) (*Remote, error) {
	if m.opts.Revival == nil {
		return nil, ErrNotFound
	}
	ctx, stop := context.WithTimeout(ctx, storeTimeout)
	defer stop()
	c, ok, err := m.opts.Revival.Open(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case !ok, !c.Principal.Is(principal.Text()), c.Server != principal.Server():
		return nil, ErrNotFound
	}
	key := whereabouts.KeyOf(id)
	ended, err := m.opts.Revival.IsEnded(ctx, key, c.Began)
	switch {
	case err != nil:
		return nil, err
	case ended:
		return nil, ErrNotFound
	}
	if _, _, ending := m.look(key); ending {
		return nil, stream.ErrConflict
	}
	note, err := m.opts.Revival.Noted(ctx, key)
	if err != nil {
		return nil, err
	}
	life := firstLife + mathrand.Uint64N(lastLife-firstLife)
	return &Remote{
		Record: whereabouts.Record{
			Session: shared.Session{Key: key}, ID: id, Principal: principal, Tenant: caller.TenantOf(principal, r.RemoteAddr),
			Agent: cmp.Or(jsonrpc.String(jsonrpc.Field(note, "a")), m.opts.agentOf(r)), // see [sleepNote]
		},
		begins: beginningOf(&c, revision, life, note),
	}, nil
}

// beginningOf returns the beginning of a session by the claims of its id, for a client that speaks a protocol revision. If that
// is not a known legacy one, the revision in the session's initialize is taken.
func beginningOf(c *sessionid.Claims, revision string, life uint64, note []byte) *beginning {
	for _, r := range []string{revision, jsonrpc.String(jsonrpc.Field(c.Initialize, "protocolVersion"))} {
		if protocol.Known(r) && !protocol.Modern(r) {
			return &beginning{params: c.Initialize, revision: r, life: life, note: note}
		}
	}
	return &beginning{params: c.Initialize, revision: protocol.V20251125, life: life, note: note}
}

// Revive begins a session again that [Manager.Revivable] returns, in a store that no other node shares; in a
// shared one [Manager.TakeOver] does. The errors are those of both.
func (m *Manager) Revive(ctx context.Context, id string, principal caller.Principal, r *http.Request, revision string) (*Session, error) {
	for tries := 0; ; tries++ {
		var s *Session
		at, err := m.Revivable(ctx, id, principal, r, revision)
		if err == nil {
			s, err = m.takeOverOnce(ctx, at)
		}
		if !errors.Is(err, stream.ErrConflict) || tries == mostRevivals {
			return s, err
		}
		select {
		case <-time.After(revivalPause): // it is ending
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// mostRevivals is how many more times Revive tries if the session is still ending, and revivalPause the time between two
// tries: readers may read the streams of an ended session to their end for that long.
const (
	mostRevivals = 120
	revivalPause = 50 * time.Millisecond
)

// reviveAlone begins a session again in a store that no other node shares.
func (m *Manager) reviveAlone(at *Remote) (*Session, error) {
	store, ok := m.store.(under)
	if !ok {
		return nil, ErrNotFound
	}
	s := m.session(at.ID, at.Principal, at.Tenant, kind{})
	s.use.calls.Store(1)
	s.agent = at.Agent
	at.begins.apply(s)
	if err := m.list(s); err != nil {
		return nil, err
	}
	defer m.work.Done()
	ctx, stop := context.WithTimeout(m.work.Context(), storeTimeout)
	defer stop()
	var err error
	if s.lease, err = store.CreateUnder(ctx, s.key, at.begins.life); err != nil {
		m.unlist(s)
		if errors.Is(err, stream.ErrExists) {
			err = stream.ErrConflict
		}
		return nil, err
	}
	if s.Resumes() != nil { // it was not listed yet when its initialize was taken in
		m.resumer(s)
	}
	m.store.Count(s.lease, s.tenant.name)
	s.held.mustKeep(sessionCost + s.held.subscribedCost())
	s.held.keepsInitialize(len(s.backend.initialize))
	if s.step(sessionOpen) {
		s.events.began()
	}
	m.revived(s, at.begins.woke)
	s.use.touch()
	s.use.calls.Add(-1)
	return s, nil
}

// reviveShared begins a session again in a store that nodes share. [stream.ErrConflict]: another node was faster.
func (m *Manager) reviveShared(ctx context.Context, at *Remote) (*Session, restored, error) {
	store, ok := m.shared.(reviver)
	if !ok {
		return nil, restored{}, ErrNotFound
	}
	if err := m.checkShare(m.tenant(at.Tenant), 1); err != nil {
		return nil, restored{}, err
	}
	at.Life = at.begins.life
	a := whereabouts.About{ID: at.ID, Principal: []byte(at.Principal.Text()), Life: at.Life, Revision: at.begins.revision, Agent: at.Agent}
	if at.Principal.IsAnonymous() {
		a.Tenant = at.Tenant
	}
	lease, err := store.Revive(ctx, at.Key, a.Text(), at.Life)
	switch {
	case errors.Is(err, stream.ErrExists), errors.Is(err, stream.ErrConflict):
		return nil, restored{}, stream.ErrConflict
	case err != nil:
		m.Finder.Shed() // it may be this node's by now
		return nil, restored{}, err
	}
	return m.restored(ctx, at, shared.Taken{Lease: lease}, nil)
}

// beginAgain restores a session, which was acquired without a note, from its id. If another node has given the session its record,
// that node is lost, or this one was faster.
func (m *Manager) beginAgain(ctx context.Context, s *Session, at *Remote) {
	if at.begins != nil {
		at.begins.life = at.Life
		at.begins.apply(s)
		return
	}
	if m.opts.Revival == nil {
		return
	}
	c, ok, err := m.opts.Revival.Open(ctx, at.ID)
	if !ok {
		m.logger.Error("session not revived as it was", "session", s.Name(), "error", err)
		return
	}
	note, err := m.opts.Revival.Noted(ctx, at.Key)
	if err != nil {
		m.logger.Error("session not revived as it was", "session", s.Name(), "error", err)
	}
	beginningOf(&c, at.Revision, at.Life, note).apply(s)
}

// revived notes that a session has begun again; woke: it was asleep.
func (m *Manager) revived(s *Session, woke bool) {
	how, says := moves.CameRevived, "session revived"
	if woke {
		how, says = moves.CameAwake, "session awake"
	}
	m.logger.Debug(says, "session", s.Name())
	m.moves.Add(moves.Kind{How: how}, moves.Count{Sessions: 1})
	if s.events.areTold() {
		s.events.happened(observe.SessionRevived{Session: s.observed(), Woke: woke})
	}
}

// apply restores a session, which no other goroutine knows yet, from its beginning.
func (c *beginning) apply(s *Session) {
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, []byte("0"), protocol.MethodInitialize, c.params))
	if err != nil {
		s.m.logger.Error("session not revived as it was", "session", s.Name(), "error", err)
		return
	}
	s.firstEpoch = c.life
	s.streams.Resume((c.life - 1) << 32) // it may have streams that were taken over
	s.takeInitialize(m.Raw, m.Params)
	s.revision, s.backend.initialized = c.revision, true
	var n sleepNote
	if s.backend.noted = c.note; len(c.note) > 0 {
		if err := json.Unmarshal(c.note, &n); err != nil {
			s.m.logger.Error("session not revived as it was", "session", s.Name(), "error", err)
		}
	}
	n.apply(s)
	was, woke := s.m.sleepers.wake(s.key, s.Server())
	if c.woke, s.offering.begins = woke, true; woke {
		s.offering.answer, s.offering.lists = was.answer, was.lists
	}
}

// tendKeysEvery is how often the keys of session ids are looked after in the store.
const tendKeysEvery = time.Minute

// tendKeys looks after the keys of session ids, when it is time. Only the goroutine of expire calls it.
func (m *Manager) tendKeys(now time.Duration) {
	if m.opts.Revival == nil || m.shared == nil || now-m.keysTended < tendKeysEvery {
		return
	}
	m.keysTended = now
	m.work.Go(func() {
		ctx, stop := context.WithTimeout(m.work.Context(), appendTimeout)
		defer stop()
		if err := m.opts.Revival.Tend(ctx); err != nil {
			m.logger.Debug("session keys not looked after", "error", err)
		}
	})
}

// bury makes sure that an ended session is never revived.
func (m *Manager) bury(s *Session) {
	if m.opts.Revival == nil {
		return
	}
	if s.Revision() == "" && s.Initializing() == nil { // its initialize has failed, and its client has been told
		m.opts.Revival.Refuse(s.key)
		return
	}
	ctx, stop := context.WithTimeout(m.work.Context(), storeTimeout)
	defer stop()
	c, ok, err := m.opts.Revival.Open(ctx, s.id)
	if ok {
		err = m.opts.Revival.End(ctx, s.key, c.Began)
	}
	if err != nil {
		m.logger.Warn("a session that was ended may be revived by a client that has its id", "session", s.Name(), "error", err)
	}
}
