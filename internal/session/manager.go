package session

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/caller"
	"holdfast/internal/clientkind"
	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/flight"
	"holdfast/internal/journal"
	"holdfast/internal/moves"
	"holdfast/internal/reading"
	"holdfast/stream"
)

// A Manager holds the sessions of one endpoint. Its methods may be called
// concurrently.
//
// What it still takes on is a [drainState].
type Manager struct {
	opts       Options
	store      stream.Store
	sweeps     sweeps
	journal    journal.Options // of the logs of sessions
	untold     webhook.Options // of what is told besides to clients
	reading    reading.Options // of their streams
	shared     shared.Store    // the store, if other nodes take its sessions over; else nil
	many       manyServers     // the backend, if it has many servers; else nil
	listTeller listTeller      // the same, if their lists may change
	backend    backend.Backend
	logger     *slog.Logger
	keys       *idempotency.Keys
	added      Addition
	elsewhere  Elsewhere // nil: there are no other nodes
	limits
	times
	drain drain
	running

	kinds clientkind.Table

	mu sync.RWMutex
	sessionTables
	places     places
	carriers   carriers // which have a lock of their own
	keyedTurns turns    // of modern requests, by [idempotency.KeyID]
	flights    *flight.Calls
	takeOvers
	sleepers sleepers
}

// limits are what follows from the Options and the store, and what is counted against them
// without a lock.
type limits struct {
	streamBytes int64        // how much of a stream the store keeps, in bytes; 0: not known
	room        room         // the store, if it has a bound in all; else nil
	keeper      keeper       // the store, if it counts what sessions hold; else nil
	callShare   int64        // requests in flight of one tenant
	calls       atomic.Int64 // requests in flight
}

// running is what a manager does by itself, and how that ends.
type running struct {
	work sync.WaitGroup // everything that ends by itself
	quit chan struct{}
	once sync.Once // closes quit

	waiters sync.Pool // see [Waiter]

	ctx  context.Context // of appends; done when Close has waited for them long enough
	stop context.CancelFunc
}

// sessionTables are the sessions. They are guarded by Manager.mu.
type sessionTables struct {
	sessions map[stream.SessionKey]*Session
	tenants  map[string]*tenant                         // of those, by their names
	resumers map[caller.Principal]map[*Session]struct{} // those whose clients can resume requests, by their named principals
	ending   map[stream.SessionKey]struct{}             // those that have ended, and that the store has still to delete
}

// takeOvers are the sessions that come here from other nodes. taking and nextRetry are guarded
// by Manager.mu.
type takeOvers struct {
	takers    chan struct{} // places of those who take sessions over
	wanted    atomic.Int32  // take-overs that clients wait for
	orphans   orphanage
	lists     lists
	taking    map[stream.SessionKey]*taking // those that are being taken over
	nextRetry time.Time                     // when the next session that was taken over makes its calls again
	moves     moves.Log
}

// NewManager returns a manager of sessions that are answered by backend and kept
// in store. The caller closes it, and the store after it.
func NewManager(store stream.Store, backend backend.Backend, opts Options) *Manager {
	opts.setDefaults()
	m := &Manager{
		opts:          opts,
		store:         store,
		backend:       backend,
		logger:        opts.Logger,
		times:         times{zero: time.Now().Add(-time.Hour)}, // so that 0 is long ago
		running:       running{quit: make(chan struct{})},
		sessionTables: sessionTables{sessions: make(map[stream.SessionKey]*Session), tenants: make(map[string]*tenant)},
		places:        places{links: make(map[*link]struct{})},
		takeOvers:     takeOvers{takers: make(chan struct{}, takers), orphans: orphanage{looking: make(chan struct{}, 1)}, moves: moves.Log{Logger: opts.Logger}},
	}
	m.added = noAddition{}
	if opts.Addition != nil {
		m.added = opts.Addition(m, &m.opts)
	}
	m.callShare = int64(m.shareOf(opts.MaxCalls))
	if !opts.Stateless { // whose sessions nobody could want to take over
		m.shared, _ = store.(shared.Store)
	}
	if bounded, ok := store.(interface{ StreamBytes() int64 }); ok {
		m.streamBytes = bounded.StreamBytes()
	}
	m.room, _ = store.(room)
	m.keeper, _ = store.(keeper)
	m.many, _ = backend.(manyServers)
	m.listTeller, _ = backend.(listTeller)
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.openJournal()
	m.openKeys()
	m.openFlights()
	m.reading = reading.Options{Store: m.store, Shared: m.shared != nil, Observed: m.opts.Observers != nil, IsOld: isProgress}
	m.watchServers()
	m.work.Add(1)
	go m.expire()
	return m
}

// KeyOf returns the public name of a session: good for logs and URLs, and no
// help in guessing its id.
func KeyOf(id string) stream.SessionKey {
	var text [512]byte // or a long id would be copied to the heap
	sum := sha256.Sum256(append(text[:0], id...))
	return stream.SessionKey(base64.RawURLEncoding.EncodeToString(sum[:12]))
}

// storeCrowded reports whether the store has no room but for what has begun.
func (m *Manager) storeCrowded() bool {
	store, ok := m.store.(interface{ Crowded() bool })
	return ok && store.Crowded()
}

// New begins a session, and opens the backend for it, for the client that made the request, whose tenant is counted
// by the principal or the request's RemoteAddr ([caller.TenantOf]). single says that all its
// messages go to the standalone stream. params are those of the client's initialize: then the session can be revived; else nil.
//
// The errors are [ErrBusy], [ErrClosing], [stream.ErrFull], and one that wraps
// [ErrRefused].
func (m *Manager) New(r *http.Request, principal caller.Principal, single bool, params []byte) (*Session, error) {
	return m.begin(r, principal, kind{single: single}, params, func(s *Session) error {
		return s.open(r.Context(), r)
	})
}

// Reserve begins a session as New does, for a client that is still to send its
// initialize: the backend is opened for that, and not before, and is shown r then.
func (m *Manager) Reserve(r *http.Request, principal caller.Principal, single bool) (*Session, error) {
	return m.begin(r, principal, kind{single: single}, nil, func(s *Session) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.backend.first = r.WithContext(context.WithoutCancel(r.Context()))
		return nil
	})
}

// begin begins a session, of which open is told when it is on record. params are as in [Manager.newID].
func (m *Manager) begin(r *http.Request, principal caller.Principal, kind kind, params []byte, open func(*Session) error) (*Session, error) {
	if m.storeCrowded() {
		return nil, stream.ErrFull
	}
	if m.opts.Limits != nil && kind.modern == "" && !m.opts.Stateless {
		if err := m.opts.Limits.AdmitAddress(caller.TenantOf(caller.Principal{}, r.RemoteAddr)); err != nil {
			return nil, err
		}
	}
	s := m.session(m.newID(r.Context(), principal, params), principal, caller.TenantOf(principal, r.RemoteAddr), kind)
	s.use.calls.Store(1) // not idle, however long the backend takes to open
	var record []byte
	if m.shared != nil {
		record = s.about()
	}
	err := m.list(s)
	if errors.Is(err, ErrBusy) && m.endUnused(s.tenant) {
		err = m.list(s)
	}
	if err != nil {
		m.mu.Lock()
		m.countOut(s.tenant)
		m.mu.Unlock()
		return nil, err
	}
	defer m.work.Done()
	ctx, stop := context.WithTimeout(r.Context(), storeTimeout)
	lease, err := m.store.Create(ctx, s.key, record)
	stop()
	if err != nil && unavailable(err) && m.startWork() {
		go func() { // it may be there all the same; that takes as long again
			defer m.work.Done()
			m.end(s, err)
		}()
		return nil, fmt.Errorf("session not begun: %w", err)
	}
	if err == nil {
		s.mu.Lock()
		s.lease = lease
		if _, ok := s.become(sessionOpen); ok {
			s.events.began()
		}
		s.mu.Unlock()
		m.store.Count(lease, s.tenant.name)
		s.use.renewed.Store(int64(m.clock()))
		err = s.held.keep(sessionCost + s.carrier.cost())
		if errors.Is(err, ErrBusy) && m.endUnused(s.tenant) {
			err = s.held.keep(sessionCost + s.carrier.cost())
		}
		if err == nil {
			err = open(s)
		}
	}
	if err != nil {
		m.end(s, err)
		m.forget(s) // it may have been ended before there was anything to forget
		return nil, err
	}
	s.use.touch()
	s.use.calls.Add(-1)
	return s, nil
}

// list puts a new session on record, and counts work until work.Done.
func (m *Manager) list(s *Session) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.drain.is(stopped):
		return ErrClosing
	case len(m.sessions) >= m.opts.MaxSessions:
		return fmt.Errorf("%w: %d sessions are open on this node (--max-sessions or MaxSessions)", ErrBusy, m.opts.MaxSessions)
	case m.overShare(s.tenant):
		return fmt.Errorf("%w: %d sessions of this client are open (--max-share or MaxShare, of --max-sessions)", ErrBusy, m.shareOf(m.opts.MaxSessions))
	}
	m.sessions[s.key] = s
	m.work.Add(1)
	return nil
}

// session makes a session that is not known to anybody yet. It is counted for its
// tenant.
func (m *Manager) session(id string, principal caller.Principal, tenant string, kind kind) *Session {
	s := &Session{m: m, identity: identity{id: id, key: KeyOf(id), principal: principal, tenant: m.countIn(tenant), kind: kind}, revision: kind.modern}
	s.lists = m.listsOf(principal.Server())
	s.use.times = &m.times
	s.held = holding{keeper: m.keeper, lease: &s.lease}
	s.events = events{&m.opts.Observers, &s.identity}
	s.standalone = &Call{s: s}
	s.standalone.become(callStored)
	if s.untold = webhook.New(string(s.key), untoldOwner{s}, &m.untold); kind.single {
		s.standalone.record = &record{untold: s.untold.Share()}
	}
	s.log.Init(logOwner{s}, &m.journal)
	s.streams.Init(readerOwner{s}, s.key, writer{s.standalone}, kind.modern != "", &m.reading)
	s.use.touch()
	return s
}

// Find returns the session with the secret id, if it is the principal's.
// Otherwise it is [ErrNotFound], whatever the reason; [ErrEnded] is one, too.
func (m *Manager) Find(id string, principal caller.Principal) (*Session, error) {
	s, err := m.FindName(string(KeyOf(id)), principal)
	if err != nil || s.isLingering() {
		return nil, ErrNotFound
	}
	if s.use.lost.Load() {
		return nil, ErrServerEnded
	}
	if s.use.isLeft() {
		return nil, ErrEnded
	}
	s.use.touch()
	return s, nil
}

// FindToRead is Find for a client that comes back for a stream: its server may have ended the session meanwhile.
func (m *Manager) FindToRead(id string, principal caller.Principal) (*Session, error) {
	s, err := m.Find(id, principal)
	if errors.Is(err, ErrServerEnded) {
		return m.FindName(string(KeyOf(id)), principal)
	}
	return s, err
}

// FindName returns the session with the public name, if it is the principal's. A
// name alone opens nothing: the caller has to ask for a secret of the stream. The
// session may have ended, with streams to be read yet. One that begins again is not found before the store has it: who asks for it
// waits for that in [Manager.Revive].
func (m *Manager) FindName(name string, principal caller.Principal) (*Session, error) {
	m.mu.RLock()
	s := m.sessions[stream.SessionKey(name)]
	m.mu.RUnlock()
	if s == nil || s.principal != principal || s.state() == sessionOpening || s.isClosed() && !s.isLingering() {
		return nil, ErrNotFound
	}
	return s, nil
}

// startWork counts work that Close waits for, until work.Done, unless Close has begun
// to wait.
func (m *Manager) startWork() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.drain.is(managerClosed) {
		return false
	}
	m.work.Add(1)
	return true
}

// inBackground runs f as work that Close waits for, unless Close has begun to wait.
func (m *Manager) inBackground(f func()) bool {
	if !m.startWork() {
		return false
	}
	go func() {
		defer m.work.Done()
		f()
	}()
	return true
}

// admit counts n more requests in flight, if they are within the limits. Those that are about
// calls which were begun before have as much room again: else nobody could cancel these, or get
// what they have ended with, while they fill the limits.
func (m *Manager) admit(s *Session, n int32, aboutBegun bool) error {
	if m.drain.is(stopped) {
		return ErrClosing
	}
	room := int64(1)
	if aboutBegun {
		room = 2
	}
	if got := s.use.calls.Add(n); int64(got) > room*int64(m.opts.SessionMax) && s.modern == "" {
		s.use.calls.Add(-n)
		return fmt.Errorf("%w: %d requests in this session", ErrBusy, m.opts.SessionMax)
	}
	switch all, own := m.count(s, n); {
	case all > room*int64(m.opts.MaxCalls):
		m.dismiss(s, n)
		return fmt.Errorf("%w: %d requests on this node (--max-calls or MaxCalls)", ErrBusy, m.opts.MaxCalls)
	case own > room*m.callShare && s.tenant.name != "":
		m.dismiss(s, n)
		return fmt.Errorf("%w: %d requests of this client (--max-share or MaxShare, of --max-calls)", ErrBusy, m.callShare)
	}
	return nil
}

// dismiss counts n requests less.
func (m *Manager) dismiss(s *Session, n int32) {
	m.count(s, -n)
	if s.use.calls.Add(-n) == 0 {
		s.Touch() // idle from now on
	}
}

// closeBackend closes a backend's conversation, which was counted as work when it was
// opened, on a goroutine of its own: it may wait for a process to end.
func (m *Manager) closeBackend(conn backend.Conn) {
	m.placeLeaves(conn)
	go func() {
		defer m.work.Done()
		if err := m.closeConn(conn); err != nil && !panicked(err) {
			m.logger.Warn("backend not closed", "error", err)
		}
	}()
}

func (m *Manager) all() []*Session {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := make([]*Session, 0, len(m.sessions))
	for _, s := range m.sessions {
		all = append(all, s)
	}
	return all
}

// Stop refuses new sessions and calls from now on.
func (m *Manager) Stop() { m.become(stopped) }

// Idle reports whether nothing is in flight, nobody reads, and no client is likely
// to come back, within patience, for the end of a call that it has yet to read.
func (m *Manager) Idle(patience time.Duration) bool {
	if m.calls.Load() > 0 {
		return false
	}
	for _, s := range m.all() {
		if s.use.readers.Load() > 0 || s.streams.Awaits(patience) {
			return false
		}
	}
	return true
}

// Sessions returns how many sessions there are that clients know.
func (m *Manager) Sessions() (n int) {
	for _, s := range m.all() {
		if s.modern == "" {
			n++
		}
	}
	return n
}

// Readers returns how many readers are attached.
func (m *Manager) Readers() int {
	n := 0
	for _, s := range m.all() {
		n += int(s.use.readers.Load())
	}
	return n
}

// Calls returns how many requests are in flight.
func (m *Manager) Calls() int { return int(m.calls.Load()) }

// closePatience is how long Close waits for a store that does not answer.
const closePatience = 10 * time.Second

// Close ends all sessions, or, where the store is shared, leaves them to others, and
// waits until their backends are closed.
func (m *Manager) Close() {
	m.Stop()
	m.once.Do(func() { close(m.quit) })
	late := time.AfterFunc(closePatience, m.stop)
	defer m.stop()
	defer late.Stop()
	if m.shared != nil {
		m.awaitTakeOvers(m.ctx)
		m.cut(m.all())
	}
	for _, s := range m.all() {
		m.end(s, ErrClosing)
	}
	m.flights.Tell()
	m.become(managerClosed)
	m.work.Wait()
	m.moves.End()
}

// Load returns how many requests are in flight, and how many sessions are open.
func (m *Manager) Load() (calls, sessions int) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return int(m.calls.Load()), len(m.sessions)
}
