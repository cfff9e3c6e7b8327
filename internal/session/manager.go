package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/admission"
	"holdfast/internal/again"
	"holdfast/internal/backpressure"
	"holdfast/internal/caller"
	"holdfast/internal/clientkind"
	"holdfast/internal/deferred"
	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/feature/resume"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/handover"
	"holdfast/internal/journal"
	"holdfast/internal/moves"
	"holdfast/internal/processes"
	"holdfast/internal/reading"
	"holdfast/internal/tools"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// A Manager holds the sessions of one endpoint. Its methods may be called
// concurrently.
//
// A [handover.State] says which work it still takes on.
type Manager struct {
	opts       Options
	store      stream.Store
	journal    journal.Options  // of the logs of sessions
	untold     webhook.Options  // of the outcomes that webhooks are told
	reading    reading.Options  // of their streams
	watched    deferred.Options // of calls that are asked for by a name
	shared     shared.Store     // the store, if other nodes take its sessions over; else nil
	many       manyServers      // the backend, if it has many servers; else nil
	listTeller listTeller       // the backend, if the lists of its servers may change
	userCode
	keys      *idempotency.Keys
	resumes   resume.Requests[*Session]
	added     Addition
	services  []Service
	Finder    *whereabouts.Finder // of sessions that are not here
	Tools     tools.Rules         // for the lists of sessions; they do not change
	Gate      admission.Gate      // for the calls that clients begin
	elsewhere Elsewhere           // nil: there are no other nodes
	limits
	load
	times
	work      handover.Work       // goroutines that Close waits for
	Departure *handover.Departure // of its sessions, at the end of the node
	waiters   sync.Pool           // see [Waiter]

	Kinds clientkind.Table

	roster
	processes  processes.Bound // which has a lock of its own
	carriers   carriers        // which have a lock of their own
	keyedTurns turns           // of modern requests, by [idempotency.KeyID]
	flights    *again.Calls
	takeOvers
	sleepers sleepers
}

// limits are bounds that depend on the store.
type limits struct {
	pace   backpressure.Options
	keeper keeper // the store, if it counts the bytes that sessions hold; else nil
}

// takeOvers are the sessions that come here from other nodes. nextRetry is guarded
// by retrying.
type takeOvers struct {
	takers    chan struct{} // a place for each goroutine that takes a session over
	lists     lists
	retrying  sync.Mutex
	nextRetry time.Time // when the next session that was taken over makes its calls again
	moves     moves.Log
}

// NewManager returns a manager of sessions that are answered by backend and kept
// in store. The caller closes it, and the store after it.
func NewManager(store stream.Store, backend backend.Backend, opts Options) *Manager {
	opts.setDefaults()
	m := &Manager{
		opts:      opts,
		store:     store,
		userCode:  userCode{backend, opts.OnEnded, opts.Safe, opts.Logger},
		load:      load{most: opts.MaxCalls, share: opts.shareOf(opts.MaxCalls), ofSession: opts.SessionMax},
		times:     times{zero: time.Now().Add(-time.Hour)}, // so that 0 is long ago
		work:      handover.NewWork(),
		roster:    newRoster(&opts),
		processes: processes.Bound{Options: processes.Options{Most: opts.MaxProcesses, Share: opts.shareOf(opts.MaxProcesses), Busy: ErrBusy}},
		takeOvers: takeOvers{takers: make(chan struct{}, takers), moves: moves.Log{Logger: opts.Logger}},
	}
	m.added = noAddition{}
	if opts.Addition != nil {
		m.added = opts.Addition(m, &m.opts)
	}
	for _, of := range opts.Services {
		m.services = append(m.services, of(m, &m.opts))
	}
	if !opts.Stateless { // no other node takes over sessions of a stateless endpoint
		m.shared, _ = store.(shared.Store)
	}
	m.Finder = whereabouts.NewFinder(whereabouts.Options{
		Store: m.shared, Logger: m.logger, NotFound: ErrNotFound, Work: &m.work,
		IsHere: m.isHere, IsKnown: m.isKnown, TakeOver: m.adopt,
	})
	if bounded, ok := store.(interface{ StreamBytes() int64 }); ok {
		m.pace.Kept = bounded.StreamBytes()
	}
	m.pace.Room, _ = store.(backpressure.Room)
	m.pace.Quit = m.work.Quit()
	m.keeper, _ = store.(keeper)
	m.many, _ = backend.(manyServers)
	m.listTeller, _ = backend.(listTeller)
	m.Tools = tools.Rules{Operator: m.saysRepeatable, Own: m.added, Logger: m.logger, Told: m.untold.Wants, Alone: m.shared == nil}
	m.Gate = admission.Gate{Limiter: opts.Limits, Stateless: opts.Stateless, IsOurs: m.Tools.CallsOwn}
	m.Departure = newDeparture(m)
	m.openJournal()
	m.openKeys()
	m.resumes.Sessions, m.resumes.Options = resumeSessions{m}, resume.Options{MinWait: opts.MinWait, MaxWait: opts.MaxWait, TTL: opts.TTL, Keep: opts.Keep}
	m.openFlights()
	m.reading = reading.Options{Store: m.store, Shared: m.shared != nil, Observed: m.opts.Observers != nil, IsOld: isProgress}
	m.watched = deferred.Options{Context: m.work.Context(), Keep: m.KeepEnded(), NotFound: ErrNotFound, Progress: progressText}
	m.watchServers()
	m.work.Go(m.expire)
	return m
}

// storeCrowded reports whether the store has room only for calls that have begun.
func (m *Manager) storeCrowded() bool {
	store, ok := m.store.(interface{ Crowded() bool })
	return ok && store.Crowded()
}

// New begins a session for the client that made the request r, and opens the backend for it. The session counts for the tenant
// of the principal or of r.RemoteAddr ([caller.TenantOf]). single says that all its messages go to the standalone stream.
// params are those of the client's initialize, by which the session can be revived; nil: it cannot.
//
// The errors are [ErrBusy], [ErrClosing], [stream.ErrFull], and one that wraps
// [ErrRefused].
func (m *Manager) New(r *http.Request, principal caller.Principal, single bool, params []byte) (*Session, error) {
	return m.begin(r, principal, kind{single: single}, params, func(s *Session) error {
		return s.open(r.Context(), r)
	})
}

// Reserve begins a session as New does, for a client that has yet to send its
// initialize. The backend is opened when that arrives, with r.
func (m *Manager) Reserve(r *http.Request, principal caller.Principal, single bool) (*Session, error) {
	return m.begin(r, principal, kind{single: single}, nil, func(s *Session) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.backend.first = r.WithContext(context.WithoutCancel(r.Context()))
		return nil
	})
}

// begin begins a session, and calls open when the session is on record. params are as in [Manager.newID].
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
	if kind.modern == "" {
		s.agent = m.opts.agentOf(r)
	}
	s.use.calls.Store(1) // not idle, however long the backend takes to open
	var record []byte
	if m.shared != nil {
		record = s.about()
	}
	if err := m.list(s); err != nil {
		return nil, err
	}
	defer m.work.Done()
	ctx, stop := context.WithTimeout(r.Context(), storeTimeout)
	lease, err := m.store.Create(ctx, s.key, record)
	stop()
	if err != nil && unavailable(err) && m.work.Go(func() { m.end(s, err) }) { // the store may have it all the same; to end it may take as long again
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
		s.renewed.Store(int64(m.clock()))
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

// list puts a new session on record, and counts work until work.Done. If there are too many sessions it ends unused ones.
func (m *Manager) list(s *Session) error {
	start := func(err error) error { return m.work.StartBefore(handover.Stopped, err) }
	err := m.add(s, start)
	if errors.Is(err, ErrBusy) && m.endUnused(s.tenant) {
		err = m.add(s, start)
	}
	if err != nil {
		m.countOut(s.tenant)
	}
	return err
}

// session makes a session that no other goroutine knows yet. It is counted for its tenant.
func (m *Manager) session(id string, principal caller.Principal, tenant string, kind kind) *Session {
	s := &Session{m: m, tenure: tenure{shared: m.shared}, identity: identity{id: id, key: whereabouts.KeyOf(id), principal: principal, tenant: m.countIn(tenant), kind: kind}, revision: kind.modern}
	s.Tools.Init(toolServer{s}, &m.Tools)
	s.offering.lists = m.listsOf(principal.Server())
	s.use.times = &m.times
	s.held = holding{keeper: m.keeper, lease: &s.lease}
	s.events = events{&m.opts.Observers, &s.identity}
	s.standalone = &Call{s: s}
	s.standalone.become(callStored)
	if s.untold = webhook.New(string(s.key), untoldOwner{s}, &m.untold); kind.single {
		s.standalone.record = &record{untold: s.untold.Share()}
	}
	s.log.Init(logOwner{s}, &m.journal)
	s.Watched.Init(watchedOwner{s}, &m.watched)
	s.streams.Init(readerOwner{s}, s.key, writer{s.standalone}, kind.modern != "", &m.reading)
	s.use.touch()
	return s
}

// InBackground runs f as work that Close waits for, unless Close has begun to wait. The context is done when Close has waited for long enough.
func (m *Manager) InBackground(f func(context.Context)) bool {
	return m.work.Go(func() { f(m.work.Context()) })
}

// closeBackend closes a backend's conversation, which was counted as work when it was
// opened, on a goroutine of its own: it may wait for a process to end.
func (m *Manager) closeBackend(conn backend.Conn) {
	if p, ok := conn.(*placed); ok {
		p.place.Leave()
	}
	go func() {
		defer m.work.Done()
		if err := m.closeConn(conn); err != nil && !panicked(err) {
			m.logger.Warn("backend not closed", "error", err)
		}
	}()
}

// Close ends all sessions, or, where the store is shared, leaves them to other
// nodes, and waits until their backends are closed.
func (m *Manager) Close() {
	m.Departure.Close(func() {
		for _, s := range m.all() {
			m.end(s, ErrClosing)
		}
		m.flights.Tell()
	})
	m.moves.End()
}
