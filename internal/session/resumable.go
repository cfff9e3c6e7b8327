package session

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"holdfast/internal/caller"
	"holdfast/internal/feature/resume"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// This file is for calls that can be resumed (SEP-975).

// Resumes returns the calls of the session that can be resumed; nil: its client can resume none.
func (s *Session) Resumes() *resume.Session { return s.resumes.Load() }

// Resumes returns the requests that clients can resume by their tokens.
func (m *Manager) Resumes() *resume.Requests[*Session] { return &m.resumes }

// takeInitialize takes in the client's initialize: the raw request, its host, and whether it can resume requests. It replaces an initialize that has
// failed. s.mu is held, or no other goroutine knows the session.
func (s *Session) takeInitialize(raw, params []byte) {
	s.backend.initialize = raw
	s.patience.know(s, params)
	if s.single || s.m.opts.Stateless {
		return
	}
	r := s.m.resumes.Session(s.Tickets(), params)
	if s.resumes.Store(r); r != nil {
		s.m.resumer(s)
	}
}

// resume returns the [resume.Call] of a call that can be resumed; nil for others.
func (c *Call) resume() *resume.Call {
	if c.record == nil {
		return nil
	}
	return c.record.resume
}

// A resumed is a call's [feature].
type resumed struct{ *resume.Call }

func (r resumed) stored(c *Call) {
	for _, policy := range r.Stored(c.number, c.said) {
		c.push(policy, false)
	}
}
func (r resumed) answered(_ *Call, rq *inflight, failed bool, _ uint64) { r.End(rq.id, failed) }
func (r resumed) cancelled(_ *Call, rq *inflight)                       { r.End(rq.id, true) }
func (r resumed) left(*Call)                                            { r.Leave() }
func (r resumed) refused(_ *Call, ids [][]byte, _ uint64) {
	for _, id := range ids {
		r.End(string(id), true)
	}
}

// A resumable is a call as its resumable requests know it. It implements [resume.Owner].
type resumable struct{ *Call }

func (c resumable) Look(do func(pending, asks, isRead bool)) {
	read := c.s.streams.IsRead(c.Number())
	c.mu.Lock()
	defer c.mu.Unlock()
	do(c.said > c.pace.Told(), c.client.isOpen() && !c.IsOver(), read)
}

func (c resumable) Told(seq uint64) { paced(c).told(seq) }
func (c resumable) IsKept() bool    { return c.s.m.holder(c.s.key, c.Number()) != nil }

func (c resumable) Cancel(ids []string, why string) {
	if !c.s.m.work.Start() {
		return // all calls end now
	}
	defer c.s.m.work.Done()
	for _, id := range ids {
		c.s.withdraw(c.Call, []byte(id), nil, why, func(rq *inflight) { rq.fail(jsonrpc.Errorf(jsonrpc.CodeServer, "%s", why)) })
	}
}

// resumeSessions are the sessions of a manager as resumable requests know them: [resume.Sessions].
type resumeSessions struct{ m *Manager }

func (r resumeSessions) Sealed(t ticket.Ticket, purpose string, bound []byte, of caller.Principal, has func(*Session) bool) (*Session, error) {
	for {
		s, err := r.m.findSealed(t, purpose, bound, of)
		if err == nil {
			if has(s) {
				s.Touch()
				s.streams.Asked(t.Number)
				return s, nil
			}
			err = s.checkOwner(r.m.work.Context())
		}
		switch {
		case err == nil, errors.Is(err, ErrNotFound):
			return nil, resume.ErrBadToken
		case !errors.Is(err, ErrMoved): // if the session has moved, it is looked for where it is now
			return nil, err
		}
	}
}

func (r resumeSessions) List(of caller.Principal, own *Session, in Range) []*Session {
	all := r.m.SessionsOf(of, in)
	if of.IsAnonymous() && own != nil {
		all = []*Session{own}
	}
	for _, s := range all {
		s.Touch()
	}
	return all
}

func (r resumeSessions) Withdraw(s *Session, number uint64, id []byte, reason string, header http.Header) {
	if c := s.CallAt(number); c != nil {
		s.withdraw(c, id, header, reason, (*inflight).cancel)
	}
}

// SessionsOf returns the sessions of a named principal on this node, in a range, with calls that are looked for together, in the order of their names.
func (m *Manager) SessionsOf(principal caller.Principal, in Range) []*Session {
	of := m.resumersOf(principal, in)
	slices.SortFunc(of, func(a, b *Session) int { return strings.Compare(a.Name(), b.Name()) })
	return of
}
