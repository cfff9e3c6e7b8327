package session

import (
	"context"

	"holdfast/stream"
)

// Shared says whether the sessions are kept in a store that outlives this process,
// so that other nodes may take them over.
func (m *Manager) Shared() bool {
	_, ok := m.store.(stream.Shared)
	return ok
}

// An Away is a session that is not, or no longer, on this node.
type Away struct {
	stream.Session        // whose it is
	ID             string // its secret id: to make requests as its client; it must not be logged
	Principal      string
	Single         bool
}

// Elsewhere is the error of what concerns a session of the same principal that is
// not on this node. Its door sends the request there, as that session's client, or
// takes the session over and tries again.
type Elsewhere struct{ *Away }

// Error implements error.
func (e *Elsewhere) Error() string { return "the session is on another node" }

// Locate finds a session of the principal: on this node, or where it is. The error
// is [ErrNotFound], whatever the reason, or that of the store.
func (m *Manager) Locate(_ context.Context, key stream.SessionKey, principal string) (*Session, *Away, error) {
	s, err := m.FindName(string(key), principal)
	if err == nil {
		s.Touch()
	}
	return s, nil, err
}

// TakeOver opens here a session whose owner is gone, or that is nobody's. Calls in
// it that have not ended are made again where that does no harm; others end, with
// their outcome unknown. Several that want the same session at the same time are
// given the same one. The error is [stream.ErrConflict] where another node was
// faster: the session is to be located again.
func (m *Manager) TakeOver(context.Context, *Away) (*Session, error) { return nil, ErrNotFound }

// Sweep takes over those sessions, of those that mine says, that have calls which
// have not ended and nobody to look after them: their owner is gone, as gone says
// of its name, or gave them up. It takes its time.
func (m *Manager) Sweep(_ context.Context, gone func(node string) bool, mine func(stream.SessionKey) bool) error {
	return nil
}

// Homes returns the names of the other nodes that own sessions of the principal.
func (m *Manager) Homes(context.Context, string) ([]string, error) { return nil, nil }

// HandOver gives up all sessions for other nodes to take over, each as soon as
// nothing is in flight in it. When ctx is done it cuts what is left: calls that
// may be made again are left to the next owner, others end with their outcome
// unknown. It returns when no session is left. It does nothing where the store is
// not shared.
func (m *Manager) HandOver(context.Context) error { return nil }

// Lose forgets a session that another node has taken. Its readers leave without
// having seen an end, and its clients come back to the new owner.
func (m *Manager) Lose(stream.SessionKey) {}

// Verify looks who owns the sessions here that are in use, and loses those that
// another has taken: for after a pause of this process, or of the store.
func (m *Manager) Verify(context.Context) {}

// Moved says whether the session has left this node: another has taken it, or may.
// What it says and is asked goes on there, so its clients should come back.
func (s *Session) Moved() bool { return s.moved.Load() }
