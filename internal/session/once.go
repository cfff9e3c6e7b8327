package session

import (
	"crypto/sha256"
	"time"

	"holdfast/jsonrpc"
)

// What follows is for requests that another node has sent on, and sends again when
// it can't know whether they arrived.

// onceID names a POST to the session, however often it arrives. No client's key is
// like it.
func (s *Session) onceID(once string) keyID {
	text := append(make([]byte, 0, 128), 'o')
	text = append(append(text, s.key...), 0)
	return sha256.Sum256(append(text, once...))
}

// BeginNamed is like [Session.BeginKeyed] for a name that a node has given to a POST
// to this session, and that means nothing anywhere else. In a single session a call
// that was begun before has no stream of its own to be read.
func (s *Session) BeginNamed(once string, body []byte, msgs []jsonrpc.Message) (*Call, *ExistingCall, error) {
	m, id, sum := s.m, s.onceID(once), sumOf(body)
	for {
		e, mine := m.keys.claim(id, sum, s)
		if mine {
			m.keys.fleeting(id)
			c := &Call{s: s, record: &record{key: &id, sum: sum, once: true}}
			if err := s.startUnder(id, c, msgs, s.single); err != nil {
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
		case e.buried || !s.single && m.keeper(s.key, e.number) == nil:
			return nil, nil, ErrGone
		}
		return nil, &ExistingCall{Session: s, Number: e.number}, nil
	}
}

// onceKept is how long it may take at the most until a POST is sent again.
const onceKept = time.Minute

// fleeting has nothing stay behind of a key, once its call is no longer kept: nobody
// comes back with it.
func (k *keys) fleeting(id keyID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.known[id]; e != nil {
		e.once = time.Now()
	}
}

// IsStandaloneName says whether a stream's name is that of a standalone stream.
func IsStandaloneName(name string) bool { return len(name) == markLen+1 && name[markLen] == '0' }

// CallOf returns the call that a request in flight with the id is part of, or nil.
func (s *Session) CallOf(id []byte) *Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rq := s.open[string(jsonrpc.Key(id))]; rq != nil {
		return rq.call
	}
	return nil
}
