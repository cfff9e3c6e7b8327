package session

import (
	"context"
	"errors"

	"holdfast/internal/caller"
	"holdfast/internal/ticket"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// Shared reports whether the sessions are kept in a store that outlives this process,
// so that other nodes may take them over.
func (m *Manager) Shared() bool { return m.shared != nil }

// A Remote is a session that is not, or no longer, on this node.
type Remote struct {
	whereabouts.Record
	begins *beginning // the session is on no node, and begins again; nil: it is where the record says
}

// A Range is a range of sessions by their keys.
type Range = whereabouts.Range

// Redirect is the error of a request about a session of the same principal that is not on this node.
// Placement sends the request there, as that session's client, or takes the session over and tries again.
type Redirect struct{ *Remote }

// Error implements error.
func (e *Redirect) Error() string { return "the session is on another node" }

// Locate finds a session of the principal: on this node, or where it is. The error is [ErrNotFound], whatever
// the reason, or that of a store which can't tell. It waits for a session that is being taken over here.
func (m *Manager) Locate(ctx context.Context, key stream.SessionKey, principal caller.Principal) (*Session, *Remote, error) {
	s, err := m.FindName(string(key), principal)
	if err == nil && !s.isLingering() {
		s.Touch()
		return s, nil, nil
	}
	known, under, ending := m.look(key)
	switch {
	case m.shared == nil, ending, known != nil && known.principal != principal:
		return nil, nil, ErrNotFound
	case under != nil:
		if s, err := under.wait(ctx); err == nil && s.principal == principal {
			return s, nil, nil
		}
	}
	at, err := m.Finder.Lookup(ctx, key)
	if err == nil && at.Principal != principal {
		err = ErrNotFound
	}
	if err != nil {
		return nil, nil, err
	}
	return nil, &Remote{Record: *at}, nil
}

// errHere says that a session which was looked for elsewhere is here by now.
var errHere = errors.New("the session has come here")

// redirect returns the error of a request about a session that is not here: a [*Redirect], errHere, or an error of [Manager.Locate].
func (m *Manager) redirect(key stream.SessionKey, principal caller.Principal) error {
	if m.shared == nil {
		return ErrNotFound
	}
	ctx, stop := context.WithTimeout(m.work.Context(), storeTimeout)
	defer stop()
	s, at, err := m.Locate(ctx, key, principal)
	switch {
	case err != nil:
		return err
	case s != nil:
		return errHere
	}
	return &Redirect{at}
}

// findSealed returns the principal's session that has made a ticket, for a purpose and bound to the text bound. The errors are those of [Manager.findIf].
func (m *Manager) findSealed(t ticket.Ticket, purpose string, bound []byte, principal caller.Principal) (*Session, error) {
	return m.findIf(t.Session, principal, func(secret string) bool { return t.IsFrom(secret, purpose, bound) })
}

// findIf returns the principal's session with the public name, if good accepts its secret id. The error is
// [ErrNotFound], whatever the reason, a [*Redirect], or that of the store.
func (m *Manager) findIf(name string, principal caller.Principal, good func(secret string) bool) (*Session, error) {
	for {
		s, err := m.FindName(name, principal)
		if err == nil {
			if !good(s.id) {
				return nil, ErrNotFound
			}
			return s, nil
		}
		err = m.redirect(stream.SessionKey(name), principal)
		var at *Redirect
		switch {
		case errors.Is(err, errHere):
			continue
		case errors.As(err, &at) && !good(at.ID):
			return nil, ErrNotFound
		}
		return nil, err
	}
}
