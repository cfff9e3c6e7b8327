package session

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/handover"
	"holdfast/internal/moves"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/sessionid"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file makes idle sessions fall asleep if nothing would be lost: this node and the store drop all that they have of
// them, and their ids wake them (revive.go). docs/decisions/0049-sleep.md.

// A keepsSaying is a store that says whether it keeps messages of a session's calls.
type keepsSaying interface {
	// Says reports whether entries of any call's stream in the session are kept.
	Says(key stream.SessionKey) bool
}

// sleepers has the memory that this node has of sleeping sessions, beside the store.
type sleepers struct {
	mu  sync.Mutex
	all map[uint64]asleep // by hashes of their keys; no more than mostAsleep

	lists map[string]uint64 // how often servers, by their names, have said that their lists have changed
}

// mostAsleep bounds how many sleeping sessions are remembered. When another one wakes, it is not known whether its server
// still offers the same: its client is told to list again.
const mostAsleep = 1 << 16

// An asleep has the server's answer and lists that a session's client was last told.
type asleep struct {
	answer, lists uint64 // as in [offering]
	changed       uint64 // as in sleepers.lists
}

// remember remembers a session that falls asleep.
func (a *sleepers) remember(key stream.SessionKey, server string, is asleep) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = make(map[uint64]asleep)
	}
	if len(a.all) >= mostAsleep {
		for other := range a.all {
			delete(a.all, other) // any
			break
		}
	}
	is.changed = a.lists[server]
	a.all[maphash.String(seed, string(key))] = is
}

// wake forgets a session, and returns its memory; ok: it was remembered.
func (a *sleepers) wake(key stream.SessionKey, server string) (was asleep, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	hash := maphash.String(seed, string(key))
	was, ok = a.all[hash]
	delete(a.all, hash)
	if was.changed != a.lists[server] {
		was.answer = 0
	}
	return was, ok
}

// relisted notes that a server has said in a session that one of its lists has changed: sessions that sleep do not hear that.
func (a *sleepers) relisted(server string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		return
	}
	if a.lists == nil {
		a.lists = make(map[string]uint64)
	}
	a.lists[server]++
}

// leavesMore reports whether a message may leave state in the memory of the session's server that another conversation
// does not begin with. s.mu is held.
func leavesMore(s *Session, in *backend.Inbound) bool {
	switch {
	case in.Kind == jsonrpc.Response:
		return false // the request says that: see [Session.answer]
	case in.Kind == jsonrpc.Notification:
		switch in.Method {
		case protocol.MethodInitialized, protocol.MethodCancelled, protocol.MethodProgress, "notifications/roots/list_changed":
			return false
		}
		return true
	case in.Method == protocol.MethodCallTool:
		name := jsonrpc.Field(in.Params, "name")
		if len(name) < 2 {
			return true
		}
		name = name[1 : len(name)-1] // a name with an escape in it is not found: its tool may do anything
		if s.Tools.OnlyReads(name) {
			return false
		}
		if s.Tools.IsComplete() || len(s.backend.unsure) >= mostUnsure || len(name) > jsonrpc.MaxName {
			return true
		}
		if !slices.Contains(s.backend.unsure, string(name)) {
			s.backend.unsure = append(s.backend.unsure, string(name)) // the list of tools may be known later
		}
		return false
	default:
		return !protocol.RetrySafe(in.Method, nil)
	}
}

// mostUnsure bounds how many tools are remembered that were called before it was known whether they only read.
const mostUnsure = 16

// isSure reports whether no message of the session has left state in its server. s.mu is held.
func isSure(s *Session) bool {
	for _, name := range s.backend.unsure {
		if !s.Tools.OnlyReads([]byte(name)) {
			return false
		}
	}
	return !s.use.lasts.Load()
}

// canSleep reports whether a session may fall asleep, as far as is known without its lock.
func (m *Manager) canSleep(s *Session, now time.Duration) bool {
	after := m.opts.SleepAfter
	if after <= 0 || m.opts.Revival == nil || s.modern != "" || s.single || s.state() != sessionOpen ||
		s.use.sinceSeen(now) <= after || !s.use.isIdle() || s.use.isLeft() || s.use.isHeld(now) || !sessionid.MayBe(s.id) || m.work.Reached(handover.HandingOver) {
		return false
	}
	store, ok := m.store.(keepsSaying)
	return ok && !store.Says(s.key)
}

// maySleep reports whether a session that can sleep may do so now. s.mu is held.
func (m *Manager) maySleep(s *Session) bool {
	b := &s.backend
	switch {
	case s.use.sinceSeen(m.clock()) <= m.opts.SleepAfter, !s.isQuietLocked(), !s.use.isIdle(), !s.waiting.isEmpty(), len(b.own.waiting) > 0, b.refused != nil:
		return false
	case s.Resumes() != nil || s.Watched.WereUsed() || s.lateProgress:
		return false // the records of their calls outlive the messages
	case !s.streams.IsUnused() || !s.untold.IsIdle() || !s.log.IsIdle():
		return false
	}
	s.standalone.mu.Lock()
	told, said := s.standalone.pace.Told(), s.standalone.said
	ours := told < said && told >= s.relisted.after && said == s.relisted.through
	s.standalone.mu.Unlock()
	if told < said && !ours {
		return false
	}
	if ours {
		s.offering.forget() // the client has yet to be told to list again
	}
	if m.opts.Forgets || isSure(s) || keepsNothing(b.link) {
		return true
	}
	if m.many == nil {
		return false
	}
	_, stopIdle := m.many.Server(s.Server(), false)
	return stopIdle > 0 // then the server loses idle sessions anyway
}

// keepsNothing reports whether the server of a conversation, which may be nil, says that it keeps no session.
func keepsNothing(l *link) bool {
	if l == nil || l.conn == nil {
		return false
	}
	conn := l.conn
	if p, ok := conn.(*placed); ok {
		conn = p.Conn
	}
	c, ok := conn.(interface{ Sessionless() bool })
	return ok && c.Sessionless()
}

// fallAsleep makes sessions fall asleep that can.
func (m *Manager) fallAsleep(all []*Session) {
	for _, s := range all {
		if s.keyed.Load() {
			m.keys.Sweep() // so that the used keys are remembered, as nothing is kept of their calls
			break
		}
	}
	handover.Each(all, handover.Parallel, func(s *Session) {
		ctx, stop := context.WithTimeout(m.work.Context(), storeTimeout)
		defer stop()
		c, ok, err := m.opts.Revival.Open(ctx, s.id)
		if err == nil && ok && m.opts.Revival.Rest(c.Began) > m.opts.TTL { // else it lives longer if it stays awake
			m.sleep(ctx, s, &c)
		}
	})
}

// sleep makes a session fall asleep, if it still may, and if its id and its note can restore it.
func (m *Manager) sleep(ctx context.Context, s *Session, says *sessionid.Claims) {
	var is asleep
	var note, written []byte
	var may bool
	look := func() bool {
		if written != nil {
			s.backend.noted = written
		}
		may = m.maySleep(s) && bytes.Equal(says.Initialize, jsonrpc.Field(s.backend.initialize, "params"))
		is, note = s.offering.known(), sleepNoteOf(s)
		return may && bytes.Equal(note, s.backend.noted)
	}
	had, ok := closeIf(s, sessionMoved, look)
	if may && !ok { // the store has to have the note first
		if err := m.opts.Revival.Note(ctx, s.key, says.Began, note); err != nil {
			m.logger.Debug("session stays awake", "session", s.Name(), "error", err)
			return
		}
		written = append([]byte{}, note...)
		had, ok = closeIf(s, sessionMoved, look)
	}
	if !ok {
		return
	}
	m.roster.end(s, false) // it is not woken before the store has deleted it
	defer m.forgotten(s.key)
	if had.conn != nil {
		defer m.closeBackend(had.conn)
	}
	m.dropRequests(s, had.inFlight) // there are none
	s.streams.Dismiss()
	if m.shared != nil {
		if err := s.confirm(m.work.Context()); err != nil && !errors.Is(err, stream.ErrNotFound) {
			m.logger.Debug("session asleep, but not deleted: it may be another's", "session", s.Name(), "error", err)
			m.shared.Forget(s.lease)
			return
		}
	}
	m.sleepers.remember(s.key, s.Server(), is)
	if err := m.store.Delete(ctx, s.key); err != nil {
		m.logger.Debug("session asleep, but not deleted", "session", s.Name(), "error", err) // it is taken over from its record, then
	}
	m.logger.Debug("session asleep", "session", s.Name())
	m.moves.Add(moves.Kind{How: moves.WentAsleep}, moves.Count{Sessions: 1})
	if s.events.areTold() {
		s.events.happened(observe.SessionSlept{Session: s.observed()})
	}
}
