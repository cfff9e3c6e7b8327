package session

import (
	"errors"
	"slices"
	"sync"

	"holdfast/internal/feature/resume"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file is for guests: requests about a deferred call that its home, the session of the call, gets from
// another session of the same principal. They run in the home, but their ids and progress tokens are of the
// other session, which the client of the home does not know.

// MayGoAbroad reports whether a message may be about a call of another session than the one that the message
// came in: it is a request about a call, or cancels such a request.
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

// guestOf returns the session that the call's requests came from; "": the call's own, or c is nil.
func (c *Call) guestOf() stream.SessionKey {
	if c == nil || c.record == nil {
		return ""
	}
	return c.record.guest
}

// cameAsGuest notes the session that the call's requests came from. No other goroutine knows the call yet.
func (c *Call) cameAsGuest(from stream.SessionKey) {
	if from != "" && from != c.s.key {
		c.recorded().guest = from
	}
}

// requestKey returns the key of a request in flight that came from the session guest; "": from the one that
// it is in. No key of an id begins like that of a guest.
func requestKey(guest stream.SessionKey, id []byte) []byte {
	key := jsonrpc.Key(id)
	if guest == "" {
		return key
	}
	return append(append(append([]byte{'@'}, guest...), ' '), key...)
}

// abroad are requests of a session's client that wait in other sessions. Its methods may be called concurrently.
type abroad struct {
	mu  sync.Mutex
	all []waitAbroad // oldest first
}

// A waitAbroad is a request that waits in another session.
type waitAbroad struct {
	key  string // of its id
	home stream.SessionKey
}

// mostAbroad bounds how many such requests a session knows: to cancel others does nothing.
const mostAbroad = 16

// add notes that a request waits in another session.
func (a *abroad) add(id []byte, home stream.SessionKey) {
	key := string(jsonrpc.Key(id))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = slices.DeleteFunc(a.all, func(w waitAbroad) bool { return w.key == key })
	if len(a.all) >= mostAbroad {
		a.all = slices.Delete(a.all, 0, 1)
	}
	a.all = append(a.all, waitAbroad{key, home})
}

// home returns the session in which a request waits or has waited; "": none is known.
func (a *abroad) home(id []byte) stream.SessionKey {
	key := string(jsonrpc.Key(id))
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.all {
		if w.key == key {
			return w.home
		}
	}
	return ""
}

// cancelAbroad cancels a request of the session's client that waits in another session, and reports whether
// it may have been there. The error is a [*Redirect], or that of a store which can't tell.
func (s *Session) cancelAbroad(id []byte) (taken bool, err error) {
	at := s.abroad.home(id)
	if at == "" || s.requests.at("", id) != nil || s.waiting.has(string(jsonrpc.Key(id))) {
		return false, nil
	}
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
