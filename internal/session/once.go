package session

import (
	"context"
	"errors"

	"holdfast/internal/caller"
	"holdfast/internal/departure"
	"holdfast/internal/feature/idempotency"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for requests that run once, however often they come: a client that cannot know whether
// its request arrived sends it again under the same name, and gets the call that it began the first
// time. docs/decisions/0009-idempotency-keys.md says what an idempotency key covers.

// Once says under what name requests run once.
type Once struct {
	Key    string  // the client's idempotency key, or ""
	Client *Client // whose key it is; nil: the session's client
	// Name is the one that another node has given to a POST to this session, which it sends again when it
	// can't know whether it arrived. It counts if there is no key.
	Name string
}

// record returns what is known of a call that begins under the name. body is what makes two requests the same.
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

// ExistingCall is the call that was begun under a name before.
type ExistingCall struct {
	Session *Session // another one than was asked, maybe, of the same principal
	Number  uint64   // of its stream, which may have ended
}

// keys returns whose the idempotency keys are under which the session's client makes requests.
// Modern clients, who have no session, have keys of their own: [Client].
func (s *Session) keys() idempotency.Scope {
	if s.principal.IsAnonymous() {
		return idempotency.OfSession(s.key)
	}
	return idempotency.OfPrincipal(s.principal.Text())
}

// beginner returns the session as keys know it.
func (s *Session) beginner() idempotency.Beginner {
	return idempotency.Beginner{
		Session: s.key, Principal: s.principal, Single: s.single, Moved: s.Moved,
		Scoped: s.principal.IsAnonymous() && s.modern == "",
	}
}

// BeginOnce opens a stored call as [Session.Begin] does, under a name. body is what makes two requests the
// same. Where the call was begun before, by this session or another of the same named principal, no call is opened, and
// the one that there is is returned: running or ended. Of several that come at the
// same time one begins the call. In a session with a single stream a call that another node's POST began before has no
// stream of its own to be read.
//
// The errors are those of Begin, after which the name is free again, those of [idempotency.Keys.Begin], and a
// [*Redirect] where the call was begun in a session that is not on this node.
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
		err = ErrNotFound // the session ended just now, and the call with it
	}
	if err != nil && c.recovery != nil {
		c.mu.Lock()
		left = c.recovery.state == recoveryLeft // to the next owner, without having begun
		c.mu.Unlock()
	}
	return number, left, err
}

// BegunOnce reports whether a call of a modern client is known on this node by its idempotency
// key.
func (m *Manager) BegunOnce(client *Client, key string) bool {
	return m.keys.Knows(idempotency.KeyID(client.keys(), key))
}

// CancelOnce cancels what a modern client has begun under an idempotency key, or what waits for its turn. The error is a [*Redirect] if
// the session of the call is not on this node, or that of a store which can't tell.
func (m *Manager) CancelOnce(client *Client, key, reason string) error {
	m.keyedTurns.cancel(nameOfTurn(client, key)) // first: it may begin at any moment
	c, err := m.callOnce(client, key)
	if c != nil {
		c.Withdraw(reason)
	}
	return err
}

// callOnce returns the call of a modern client that began under an idempotency key and is in flight, or nil.
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
	k.m.work.Go(func() { departure.Each(all, departure.Parallel, do) })
}

// holder returns the session of a stream of which something is kept, or that is
// still written to; or nil.
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
