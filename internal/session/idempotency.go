package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for idempotency keys: a client that cannot know whether its request
// arrived sends it again under the same key, and gets the call that it began the first
// time. docs/decisions/0009-idempotency-keys.md says what a key covers.

// Errors of [Session.BeginKeyed].
var (
	// ErrKeyReused refuses a key that another request was made under.
	ErrKeyReused = errors.New("the idempotency key was used for another request")
	// ErrGone stands for a call that began under its key, and of which nothing is
	// kept any more.
	ErrGone = errors.New("the call of this idempotency key began, and what became of it is no longer kept")
	// ErrOtherCredential refuses a request that was made under its key before, from the same
	// address and with another Authorization. That may have been the same client, whose token was
	// renewed, or not: so the request must not run twice, and its result must not be shown.
	ErrOtherCredential = errors.New("this request may have run: it came under this idempotency key before, with another Authorization")
)

// ExistingCall is the call that was begun under a key before.
type ExistingCall struct {
	Session *Session // another one than was asked, maybe, of the same principal
	Number  uint64   // of its stream, which may have ended
}

// A keyRecord is what is known of a call that began under an idempotency key, or under
// the name that another node gave its POST.
type keyRecord struct {
	id      idempotency.ID
	sum     idempotency.Sum // of what it began with
	forward bool            // the key is a node's name for a POST
	// twin is [Client.twin]: it is claimed with the key, so that no other credential begins the
	// same request.
	twin    idempotency.ID
	twinned bool // this node has claimed the twin, and settles it with the key
}

func (k *keyRecord) hasTwin() bool { return k.twin != idempotency.ID{} }

// keys returns whose the idempotency keys are under which the session's client makes requests.
// Modern clients, who have no session, have keys of their own: [Client].
func (s *Session) keys() idempotency.Scope {
	if s.principal.IsAnonymous() {
		return idempotency.OfSession(s.key)
	}
	return idempotency.OfPrincipal(s.principal.Text())
}

// keepsKeys reports whether the keys that calls of the session begin under are the session's own.
func (s *Session) keepsKeys() bool { return s.principal.IsAnonymous() && s.modern == "" }

// BeginKeyed opens a stored call as [Session.Begin] does, under an idempotency
// key. body is what makes two requests the same. Where the call was begun before,
// by this session or another of the same named principal, no call is opened, and
// the one that there is is returned: running or ended. Of several that come at the
// same time one begins the call.
//
// The errors are those of Begin, after which the key is free again,
// [ErrKeyReused], [ErrGone], and a [*Redirect] where the call was begun in a
// session that is not on this node.
func (s *Session) BeginKeyed(key string, body []byte, msgs []jsonrpc.Message, from ...Origin) (*Call, *ExistingCall, error) {
	return s.beginKeyed(keyRecord{id: idempotency.KeyID(s.keys(), key), sum: idempotency.SumOf(body)}, msgs, from)
}

// BeginKeyedFor is BeginKeyed in a carrier, for a modern client. Its errors are [ErrOtherCredential],
// too.
func (s *Session) BeginKeyedFor(client *Client, key string, body []byte, msgs []jsonrpc.Message, from ...Origin) (*Call, *ExistingCall, error) {
	k := keyRecord{id: idempotency.KeyID(client.keys(), key), sum: idempotency.SumOf(body)}
	k.twin = client.twin(key, k.sum)
	return s.beginKeyed(k, msgs, from)
}

func (s *Session) beginKeyed(k keyRecord, msgs []jsonrpc.Message, from []Origin) (*Call, *ExistingCall, error) {
	m := s.m
	s.keyed.Store(true)
	for {
		known, mine := m.keys.Claim(k.id, k.sum, s.key, s.keepsKeys(), false)
		if mine {
			err := s.claim(&k)
			if err == nil && k.hasTwin() {
				if err = s.claimTwin(&k); err != nil {
					s.unclaim(&k)
				}
			}
			if err == nil {
				c, err := s.startUnder(k, msgs, false, from)
				return c, nil, err
			}
			m.keys.Free(k.id)
			if !errors.Is(err, errHere) {
				return nil, nil, err
			}
			continue
		}
		if known.State == idempotency.Claimed {
			<-known.Settled // beginning does not take long
			continue
		}
		call, err := s.begunUnder(&k, known)
		if !errors.Is(err, errHere) {
			return nil, call, err
		}
	}
}

// begunUnder returns the call that was begun under a key. The error is errHere if the
// key is to be looked up again.
func (s *Session) begunUnder(k *keyRecord, known idempotency.Entry) (*ExistingCall, error) {
	m := s.m
	switch {
	case known.Sum != k.sum:
		return nil, ErrKeyReused
	case known.State == idempotency.Expired:
		return nil, ErrGone
	}
	if owner := m.holder(known.Session, known.Number); owner != nil && owner.principal == s.principal {
		return &ExistingCall{Session: owner, Number: known.Number}, nil
	}
	if _, err := m.FindName(string(known.Session), s.principal); err != nil && m.shared != nil {
		if err = m.redirect(known.Session, s.principal); !errors.Is(err, ErrNotFound) {
			return nil, err
		}
	}
	m.keys.Expire(k.id, time.Now())
	return nil, ErrGone
}

// KeyedCall returns the call of a modern client that began under an idempotency key and is in
// flight, or nil. The error is a [*Redirect] if its session is not on this node, or that of a
// store which can't tell.
func (m *Manager) KeyedCall(client *Client, key string) (*Call, error) {
	id, principal := idempotency.KeyID(client.keys(), key), client.principal
	for {
		known, ok := m.keys.Find(id)
		if !ok {
			at, err := m.claimant(id)
			if err != nil || at == "" {
				return nil, err
			}
			if _, err = m.FindName(string(at), principal); err != nil {
				err = m.redirect(at, principal)
			}
			switch {
			case errors.Is(err, ErrNotFound):
				return nil, nil // it has ended with its session
			case err != nil && !errors.Is(err, errHere):
				return nil, err
			}
			if known, ok = m.keys.Find(id); !ok {
				return nil, nil // it has not begun, or is kept no longer
			}
		}
		if known.State == idempotency.Claimed {
			<-known.Settled // beginning does not take long
			continue
		}
		s, err := m.FindName(string(known.Session), principal)
		if err == nil {
			return s.CallAt(known.Number), nil
		}
		if err = m.redirect(known.Session, principal); errors.Is(err, ErrNotFound) {
			return nil, nil
		}
		if !errors.Is(err, errHere) {
			return nil, err
		}
	}
}

// nobody is the claim of who looks a key up.
var nobody idempotency.Sum

// errLookedUp refuses a call under a key that is being looked up, by who cancels that call.
var errLookedUp error = wrapped{"a call of this idempotency key is being cancelled, and none has begun", ErrNotDelivered}

// claimant returns the session that has claimed a key, as the nodes' store knows it, or "".
func (m *Manager) claimant(id idempotency.ID) (stream.SessionKey, error) {
	if m.shared == nil {
		return "", nil
	}
	ctx, stop := context.WithTimeout(m.ctx, storeTimeout)
	defer stop()
	// A store tells only who is too late. Until this is undone the call that is cancelled,
	// should it come only now, is refused.
	was, _, err := m.shared.Claim(ctx, shared.ClaimID(id), nobody[:])
	if err == nil && was == nil {
		err = m.shared.Unclaim(ctx, shared.ClaimID(id), nobody[:])
	}
	if err != nil {
		return "", fmt.Errorf("idempotency key not looked up: %w", err)
	}
	if len(was) <= len(nobody) {
		return "", nil
	}
	return stream.SessionKey(was[len(nobody):]), nil
}

// BeginNamed is like [Session.BeginKeyed] for a name that another node has given to a
// POST to this session, which it sends again when it can't know whether it arrived. In a
// session with a single stream a call that was begun before has no stream of its own to
// be read.
func (s *Session) BeginNamed(name string, body []byte, msgs []jsonrpc.Message, from ...Origin) (*Call, *ExistingCall, error) {
	m, k := s.m, keyRecord{id: idempotency.ForwardID(s.key, name), sum: idempotency.SumOf(body), forward: true}
	for {
		known, mine := m.keys.Claim(k.id, k.sum, s.key, s.keepsKeys(), true)
		switch {
		case mine:
			c, err := s.startUnder(k, msgs, s.single, from)
			return c, nil, err
		case known.State == idempotency.Claimed:
			<-known.Settled // beginning does not take long
			continue
		case known.Sum != k.sum:
			return nil, nil, ErrKeyReused
		case known.State == idempotency.Expired || !s.single && m.holder(s.key, known.Number) == nil:
			return nil, nil, ErrGone
		}
		return nil, &ExistingCall{Session: s, Number: known.Number}, nil
	}
}

// startUnder begins the call of a claimed key, or gives the key up.
func (s *Session) startUnder(k keyRecord, msgs []jsonrpc.Message, light bool, from []Origin) (*Call, error) {
	m, keys, c := s.m, &s.m.keys, &Call{s: s, record: &record{key: &k}}
	c.cameIn(from)
	err := s.start(c, msgs, light, from)
	number := c.Number()
	if s.single && c.recovery != nil {
		number = c.recovery.journal
	}
	if err == nil && number == 0 {
		err = ErrNotFound // the session ended just now, and the call with it
	}
	if err != nil {
		if !k.forward && !c.isLeft() {
			s.unclaim(&k)
		}
		m.freeKey(&k)
		return nil, err
	}
	if k.twinned {
		keys.Begin(k.twin, number)
	}
	if keys.Begin(k.id, number) {
		m.sweepKeys()
	}
	return c, nil
}

// holder returns the session of a stream of which something is kept, or that is
// still written to; or nil.
func (m *Manager) holder(name stream.SessionKey, number uint64) *Session {
	m.mu.RLock()
	s := m.sessions[name]
	m.mu.RUnlock()
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

// sweepKeys forgets the keys of calls of which nothing is kept.
func (m *Manager) sweepKeys() {
	ended := m.claims.Ended()
	left := m.keys.Sweep(func(session stream.SessionKey, number uint64) bool {
		return m.holder(session, number) != nil || m.shared != nil && m.isEnding(session)
	}, func(session stream.SessionKey, scoped bool) bool {
		_, here := ended[session]
		return (scoped || m.shared != nil && !here) && m.hasEnded(session) // nobody could use it, or the store knows it
	})
	if m.shared != nil {
		m.leaveClaims(left, ended)
	}
}

// isEnding reports whether a session has ended here that the store has still to delete.
func (m *Manager) isEnding(name stream.SessionKey) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, ending := m.ending[name]
	return ending
}

// hasEnded reports whether there is no session of the name any more.
func (m *Manager) hasEnded(name stream.SessionKey) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.sessions[name] == nil
}

// newClaim is how old the claim to a key may be of which there is no call, to be
// taken for one whose node was lost before the call began. What is older may have
// been a call that is kept no longer.
const newClaim = time.Minute

// claim takes a key of a named principal for a call of the session, on all nodes.
// The error is errHere if the call, or its session, has come here meanwhile.
func (s *Session) claim(k *keyRecord) error {
	m := s.m
	if m.shared == nil || s.keepsKeys() {
		return nil // the session's notes say all
	}
	ctx, stop := context.WithTimeout(m.ctx, storeTimeout)
	defer stop()
	id, mine := shared.ClaimID(k.id), s.claimed(k.sum)
	was, age, err := m.shared.Claim(ctx, id, mine)
	if err == nil && age > storeTimeout && bytes.Equal(was, nobody[:]) {
		// Who looked the key up was lost then, or could not undo it. Of those who find that,
		// the first to claim the key has it.
		if err = m.shared.Unclaim(ctx, id, was); err == nil {
			was, age, err = m.shared.Claim(ctx, id, mine)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("idempotency key not claimed: %w", err)
	case was == nil:
		return nil
	case bytes.Equal(was, nobody[:]):
		return errLookedUp
	case len(was) <= len(k.sum):
		return ErrGone
	case idempotency.Sum(was[:len(k.sum)]) != k.sum:
		return ErrKeyReused
	}
	key := stream.SessionKey(was[len(k.sum):])
	if _, err := m.FindName(string(key), s.principal); err != nil {
		if err = m.redirect(key, s.principal); errors.Is(err, ErrNotFound) {
			err = ErrGone
		}
		return err
	}
	switch {
	case m.keys.Found(k.id):
		return errHere
	case age >= newClaim || m.opts.Keep > 0 && age >= m.opts.Keep:
		return ErrGone
	case key == s.key:
		return nil
	}
	if err := m.shared.Unclaim(ctx, id, was); err != nil {
		return fmt.Errorf("idempotency key not claimed: %w", err)
	}
	return errHere
}

// claimTwin takes the twin of a claimed key, on all nodes. The error is [ErrOtherCredential] if another credential has them.
func (s *Session) claimTwin(k *keyRecord) error {
	m, of := s.m, idempotency.SumOf(k.id[:])
	for {
		known, mine := m.keys.Claim(k.twin, of, s.key, false, false)
		switch {
		case mine:
			k.twinned = true
		case known.Sum == of: // the key itself was forgotten
		case known.State == idempotency.Claimed:
			<-known.Settled // which another is about to begin
			continue
		default:
			return ErrOtherCredential
		}
		break
	}
	if m.shared == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(m.ctx, storeTimeout)
	defer stop()
	was, _, err := m.shared.Claim(ctx, shared.ClaimID(k.twin), k.id[:])
	switch {
	case err != nil:
		err = fmt.Errorf("idempotency key not claimed: %w", err)
	case was != nil && !bytes.Equal(was, k.id[:]):
		err = ErrOtherCredential
	default:
		return nil
	}
	if k.twinned {
		m.keys.Free(k.twin)
		k.twinned = false
	}
	return err
}

// freeKey forgets a key of this node whose call has not begun, or will not be delivered.
func (m *Manager) freeKey(k *keyRecord) {
	if k.twinned {
		m.keys.Free(k.twin) // first: who finds the key free finds its twin free, too
	}
	m.keys.Free(k.id)
}

// claimed is what the store is told of who began a call, and with what.
func (s *Session) claimed(sum idempotency.Sum) []byte { return append(sum[:], s.key...) }

// unclaim gives up a key whose call has not begun. If that fails it is known by its
// age.
func (s *Session) unclaim(k *keyRecord) {
	if s.m.shared == nil || s.keepsKeys() || s.Moved() {
		return
	}
	ctx, stop := context.WithTimeout(s.m.ctx, storeTimeout)
	defer stop()
	err := s.m.shared.Unclaim(ctx, shared.ClaimID(k.id), s.claimed(k.sum))
	if k.hasTwin() {
		err = errors.Join(err, s.m.shared.Unclaim(ctx, shared.ClaimID(k.twin), k.id[:]))
	}
	if err != nil {
		s.m.logger.Warn("idempotency key not given up", "session", s.Name(), "error", err)
	}
}

// disown frees the key of a call that will not be delivered.
func (c *Call) disown() {
	if c.record == nil || c.record.key == nil {
		return
	}
	if c.recovery != nil {
		c.mu.Lock()
		if c.number != 0 && !c.isOver() {
			c.s.log.Queue(entry{By: c, Number: c.number, Data: []byte("{}"), Note: true})
		}
		c.mu.Unlock()
	}
	c.s.unclaim(c.record.key)
	c.s.m.freeKey(c.record.key)
}

// experimental is how a server says that it honours idempotency keys.
var experimental = []byte(`{"header":"` + protocol.HeaderIdempotencyKey + `"}`)

// advertise adds to the result of initialize or server/discover that idempotency keys are
// honoured.
func (s *Session) advertise(response []byte) []byte {
	if s.single || s.m.opts.Stateless {
		return response
	}
	response, _ = jsonrpc.Set(response, experimental, "result", "capabilities", "experimental", protocol.MetaIdempotencyKey)
	return response
}
