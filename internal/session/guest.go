package session

import (
	"errors"
	"slices"

	"holdfast/internal/feature/resume"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for guests: requests about a deferred call that its home, the session of
// the call, gets from another session of the same principal. They run in the home, but their ids
// and progress tokens are of the session that they came from, which the client of the home knows
// nothing of.

// MayGoAbroad reports whether a message may be about a call of another session than the one that
// it came in: a request about one, or the cancellation of such a request.
func MayGoAbroad(sessions *Manager, m *jsonrpc.Message) bool {
	switch m.Kind {
	case jsonrpc.Request:
		for _, f := range sessions.services {
			if purpose, _, _ := f.About(m); purpose != "" {
				return true
			}
		}
	case jsonrpc.Notification:
		return m.Method == protocol.MethodCancelled && !resume.Cancels(m)
	}
	return false
}

// guestOf returns the session that the call's requests came from, or "" if that is the call's own.
// A nil call is of none in particular.
func (c *Call) guestOf() stream.SessionKey {
	if c == nil || c.record == nil {
		return ""
	}
	return c.record.guest
}

// cameAsGuest notes where a call comes from that nobody else knows yet.
func (c *Call) cameAsGuest(from stream.SessionKey) {
	if from != "" && from != c.s.key {
		c.recorded().guest = from
	}
}

// requestKey returns the key under which a request is in flight that came from a session: "" for
// the one that it is in. No key of an id begins like that of a guest.
func requestKey(guest stream.SessionKey, id []byte) []byte {
	key := jsonrpc.Key(id)
	if guest == "" {
		return key
	}
	return append(append(append([]byte{'@'}, guest...), ' '), key...)
}

// A waitAbroad is a request of the session's client that waits in another session.
type waitAbroad struct {
	key  string // of its id
	home stream.SessionKey
}

// mostAbroad bounds how many of them are known: to cancel one of the others does nothing.
const mostAbroad = 16

// goesAbroad notes that a request waits in another session, or has.
func (s *Session) goesAbroad(id []byte, home stream.SessionKey) {
	key := string(jsonrpc.Key(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.abroad = slices.DeleteFunc(s.abroad, func(w waitAbroad) bool { return w.key == key })
	if len(s.abroad) >= mostAbroad {
		s.abroad = slices.Delete(s.abroad, 0, 1)
	}
	s.abroad = append(s.abroad, waitAbroad{key, home})
}

// cancelAbroad cancels a request of the session's client that waits in another session, and reports
// whether that may be. The error is a [*Redirect], or that of a store which can't tell.
func (s *Session) cancelAbroad(id []byte) (taken bool, err error) {
	key := string(jsonrpc.Key(id))
	s.mu.Lock()
	i := slices.IndexFunc(s.abroad, func(w waitAbroad) bool { return w.key == key })
	if i < 0 || s.requests.at("", id) != nil || s.waiting.has(key) {
		s.mu.Unlock()
		return false, nil
	}
	at := s.abroad[i].home
	s.mu.Unlock()
	home, err := s.m.findIf(string(at), s.principal, func(string) bool { return true })
	if errors.Is(err, ErrNotFound) {
		return true, nil
	}
	if err == nil {
		home.CancelGuest(s.key, id)
	}
	return true, err
}

// CancelGuest ends a request that came from another session, if it is in flight here. No backend
// has heard of it.
func (s *Session) CancelGuest(guest stream.SessionKey, id []byte) {
	if rq := s.requests.at(guest, id); rq != nil && s.requests.take(id, rq.call) != nil {
		rq.cancel()
	}
}
