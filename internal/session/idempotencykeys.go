package session

import (
	"context"
	"errors"

	"holdfast/internal/caller"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/handover"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file is for requests that run once, however often they arrive. A client that cannot know whether its
// request arrived sends it again under the same name, and gets the call that it began the first time.
// docs/decisions/0009-idempotency-keys.md says what an idempotency key covers.

// Once is the name under which requests run once.
type Once struct {
	Key    string  // the client's idempotency key, or ""
	Client *Client // that the key is of; nil: the session's client
	// Name is the name that another node has given to a POST which it forwards to this session, and forwards
	// again when it cannot know whether the POST arrived. It is used if there is no key.
	Name string
}

// record returns the record of a call that begins under the name. Requests are the same if their bodies are.
func (o *Once) record(s *Session, body []byte) *idempotency.Record {
	sum := idempotency.SumOf(body)
	switch {
	case o.Key == "":
		return idempotency.Forward(s.key, o.Name, sum)
	case o.Client != nil:
		return idempotency.Key(o.Client.keys(), o.Key, sum, o.Client.twin(o.Key, sum))
	}
	return idempotency.Key(s.keys(), o.Key, sum, idempotency.ID{})
}

// ExistingCall is a call that was begun under a name before.
type ExistingCall struct {
	Session *Session // the one that was asked, or another of the same principal
	Number  uint64   // of its stream, which may have ended
}

// keys returns the scope of the idempotency keys under which the session's client makes requests. Modern
// clients, which have no session, have scopes of their own: [Client.keys].
func (s *Session) keys() idempotency.Scope {
	if s.principal.IsAnonymous() {
		return idempotency.OfSession(s.key)
	}
	return idempotency.OfPrincipal(s.principal.Text())
}

// beginner describes the session to idempotency keys.
func (s *Session) beginner() idempotency.Beginner {
	return idempotency.Beginner{
		Session: s.key, Principal: s.principal, Single: s.single, Moved: s.Moved,
		Scoped: s.principal.IsAnonymous() && s.modern == "",
	}
}

// BeginOnce opens a stored call as [Session.Begin] does, under a name. Requests are the same if their bodies are. If
// the call was begun before, by this session or another of the same named principal, BeginOnce opens none, and returns
// the existing call, running or ended. Of several requests at the same time one begins the call. In a session with a
// single stream, a call that was begun by another node's POST has no stream of its own that could be read.
//
// The errors are those of Begin, after which the name is free again, those of [idempotency.Keys.Begin], and a
// [*Redirect] if the call was begun in a session that is not on this node.
func (s *Session) BeginOnce(once Once, body []byte, msgs []jsonrpc.Message, from ...Origin) (c *Call, _ *ExistingCall, err error) {
	r := once.record(s, body)
	if r.IsClients() {
		s.keyed.Store(true)
	}
	at, err := s.m.keys.Begin(r, s.beginner(), func() (uint64, bool, error) {
		c = &Call{s: s, record: &record{key: r}}
		return c.startOnce(msgs, from)
	})
	switch {
	case errors.Is(err, idempotency.ErrLookedUp):
		return nil, nil, wrapped{err.Error(), ErrNotDelivered}
	case err != nil:
		return nil, nil, err
	case c != nil:
		return c, nil, nil
	}
	owner := s
	if r.IsClients() {
		if owner = s.m.find(at.Session); owner == nil { // it has ended just now
			return nil, nil, idempotency.ErrGone
		}
	}
	return nil, &ExistingCall{Session: owner, Number: at.Number}, nil
}

// startOnce begins a call under the name of its record.
func (c *Call) startOnce(msgs []jsonrpc.Message, from []Origin) (number uint64, left bool, err error) {
	s := c.s
	err = s.start(c, msgs, s.single && !c.record.key.IsClients(), from)
	number = c.Number()
	if s.single && c.recovery != nil {
		number = c.recovery.journal
	}
	if err == nil && number == 0 {
		err = ErrNotFound // the session ended just now, and with it the call
	}
	if err != nil && c.recovery != nil {
		c.mu.Lock()
		left = c.recovery.state == recoveryLeft // to the next owner, before it began
		c.mu.Unlock()
	}
	return number, left, err
}

// BegunOnce reports whether a call of a modern client is known on this node by its idempotency
// key.
func (m *Manager) BegunOnce(client *Client, key string) bool {
	return m.keys.Knows(idempotency.KeyID(client.keys(), key))
}

// CancelOnce cancels the call that a modern client has begun under an idempotency key, or the requests that wait for their turn under
// it. The error is a [*Redirect] if the session of the call is not on this node, or that of the store.
func (m *Manager) CancelOnce(client *Client, key, reason string) error {
	m.keyedTurns.cancel(nameOfTurn(client, key)) // first: a waiting request may begin at any moment
	c, err := m.callOnce(client, key)
	if c != nil {
		c.Withdraw(reason)
	}
	return err
}

// callOnce returns the call in flight that a modern client began under an idempotency key, or nil.
func (m *Manager) callOnce(client *Client, key string) (*Call, error) {
	at, err := m.keys.Find(idempotency.KeyID(client.keys(), key), client.principal)
	if err != nil || at.Session == "" {
		return nil, err
	}
	s, err := m.FindName(string(at.Session), client.principal)
	if err != nil {
		return nil, nil // it has ended just now
	}
	return s.CallAt(at.Number), nil
}

// disown frees the name of a call that will not be delivered.
func (c *Call) disown() {
	if c.record == nil || c.record.key == nil {
		return
	}
	if c.recovery != nil {
		c.mu.Lock()
		if c.number != 0 && !c.IsOver() {
			c.s.log.Queue(entry{By: c, Number: c.number, Data: []byte("{}"), Note: true})
		}
		c.mu.Unlock()
	}
	c.s.m.keys.GiveUp(c.record.key, c.s.beginner())
}

// openKeys makes the keys of the node.
func (m *Manager) openKeys() {
	m.keys = idempotency.New(idempotency.Options{
		Sessions: keySessions{m}, Store: m.shared, Context: m.work.Context(), Timeout: storeTimeout,
		Keep: m.opts.Keep, KeepNames: m.KeepEnded(), Logger: m.logger,
	})
}

// keySessions are the sessions of a manager as keys know them: [idempotency.Sessions].
type keySessions struct{ m *Manager }

func (k keySessions) Holder(session stream.SessionKey, number uint64) (of caller.Principal, ok bool) {
	s := k.m.holder(session, number)
	if s == nil {
		return of, false
	}
	return s.principal, true
}

func (k keySessions) Locate(session stream.SessionKey, of caller.Principal) error {
	_, err := k.m.FindName(string(session), of)
	if err == nil {
		return nil
	}
	switch err = k.m.redirect(session, of); {
	case errors.Is(err, ErrNotFound):
		return idempotency.ErrGone
	case errors.Is(err, errHere):
		return idempotency.ErrAgain
	}
	return err
}

func (k keySessions) Has(session stream.SessionKey) (here, ending bool) {
	s, _, ending := k.m.look(session)
	return s != nil, ending
}

func (k keySessions) Tenant(session stream.SessionKey) (name string, ok bool) {
	s := k.m.find(session)
	if s == nil || s.isClosed() {
		return "", false
	}
	return s.tenant.name, true
}

func (k keySessions) Work(all []idempotency.ID, do func(idempotency.ID)) {
	k.m.work.Go(func() { handover.Each(all, handover.Parallel, do) })
}

// holder returns the session of a stream that is still written to, or has entries in the store; else nil.
func (m *Manager) holder(name stream.SessionKey, number uint64) *Session {
	s := m.find(name)
	if s == nil || s.isClosed() && !s.isLingering() {
		return nil
	}
	if s.CallAt(number) == nil {
		_, _, err := m.store.Bounds(context.Background(), stream.ID{Session: name, Number: number})
		if errors.Is(err, stream.ErrNotFound) {
			return nil
		}
	}
	return s
}
