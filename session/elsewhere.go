package session

import (
	"context"
	"errors"
	"fmt"

	"holdfast/stream"
)

// Shared says whether the sessions are kept in a store that outlives this process,
// so that other nodes may take them over.
func (m *Manager) Shared() bool { return m.shared != nil }

// An Away is a session that is not, or no longer, on this node.
type Away struct {
	stream.Session        // whose it is; Owner is "" if nobody's, or if it was this node's
	ID             string // its secret id: to make requests as its client; it must not be logged
	Principal      string
	Single         bool

	was stream.Session // as it was looked up
}

// Elsewhere is the error of what concerns a session of the same principal that is
// not on this node. Its door sends the request there, as that session's client, or
// takes the session over and tries again.
type Elsewhere struct{ *Away }

// Error implements error.
func (e *Elsewhere) Error() string { return "the session is on another node" }

// Moved says whether the session has left this node: another has taken it, or may.
// What it says and is asked goes on there, so its clients should come back.
func (s *Session) Moved() bool { return s.moved.Load() }

// Locate finds a session of the principal: on this node, or where it is. The error
// is [ErrNotFound], whatever the reason, or that of a store which can't tell. A
// session that is being taken over here is waited for.
func (m *Manager) Locate(ctx context.Context, key stream.SessionKey, principal string) (*Session, *Away, error) {
	s, err := m.FindName(string(key), principal)
	if err == nil {
		s.Touch()
		return s, nil, nil
	}
	m.mu.RLock()
	known, under := m.sessions[key], m.taking[key]
	_, ending := m.ending[key]
	m.mu.RUnlock()
	switch {
	case m.shared == nil, ending, known != nil && known.principal != principal:
		return nil, nil, ErrNotFound
	case under != nil:
		if s, err := under.wait(ctx); err == nil && s.principal == principal {
			return s, nil, nil
		}
	}
	at, err := m.lookup(ctx, key)
	if err == nil && at.Principal != principal {
		err = ErrNotFound
	}
	if err != nil {
		return nil, nil, err
	}
	return nil, at, nil
}

// lookup reads the record of a session.
func (m *Manager) lookup(ctx context.Context, key stream.SessionKey) (*Away, error) {
	ctx, stop := context.WithTimeout(ctx, asks)
	defer stop()
	was, err := m.shared.Lookup(ctx, key)
	if errors.Is(err, stream.ErrNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("session not looked up: %w", err)
	}
	at, err := away(was)
	if err != nil {
		m.logger.Error("session not found", "error", err)
		return nil, ErrNotFound
	}
	if at.Owner == m.shared.Node() {
		at.Owner = "" // it was lost here, when the store could not be reached
	}
	return at, nil
}

// errHere says that a session which was looked for elsewhere is here by now.
var errHere = errors.New("the session has come here")

// elsewhere returns the error of what concerns a session that is not here: an
// [*Elsewhere], or why not.
func (m *Manager) elsewhere(key stream.SessionKey, principal string) error {
	if m.shared == nil {
		return ErrNotFound
	}
	ctx, stop := context.WithTimeout(m.ctx, asks)
	defer stop()
	s, at, err := m.Locate(ctx, key, principal)
	switch {
	case err != nil:
		return err
	case s != nil:
		return errHere
	}
	return &Elsewhere{at}
}

// named returns the principal's session with the public name, if good says so of its
// secret id. The error is [ErrNotFound], whatever the reason, an [*Elsewhere], or
// that of the store.
func (m *Manager) named(name, principal string, good func(secret string) bool) (*Session, error) {
	for {
		s, err := m.FindName(name, principal)
		if err == nil {
			if !good(s.id) {
				return nil, ErrNotFound
			}
			return s, nil
		}
		err = m.elsewhere(stream.SessionKey(name), principal)
		var at *Elsewhere
		switch {
		case errors.Is(err, errHere):
			continue
		case errors.As(err, &at) && !good(at.ID):
			return nil, ErrNotFound
		}
		return nil, err
	}
}

// Homes returns the names of the other nodes that own sessions of the principal.
// They may be gone.
func (m *Manager) Homes(ctx context.Context, principal string) ([]string, error) {
	if m.shared == nil || principal == "" {
		return nil, nil
	}
	var homes []string
	seen := map[string]bool{"": true, m.shared.Node(): true}
	err := m.shared.Sessions(ctx, func(was stream.Session) bool {
		if seen[was.Owner] {
			return true
		}
		if at, err := away(was); err == nil && at.Principal == principal {
			seen[was.Owner] = true
			homes = append(homes, was.Owner)
		}
		return true
	})
	return homes, err
}
