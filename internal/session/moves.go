package session

import (
	"errors"

	"holdfast/internal/moves"
	"holdfast/stream"
)

// came notes that a session has come here whose record named an owner. While the store is away, and when it is back, all
// are taken over that their owners had to give up: the store's own lines count them.
func (m *Manager) came(owner string, found *restored) {
	n := moves.Count{Sessions: 1, Again: len(found.retry), Unknown: len(found.lost)}
	is := moves.Kind{How: moves.CameLost, Node: owner}
	switch {
	case m.opts.Outage.Covers():
		m.opts.Outage.TookOver(n.Again, n.Unknown)
		return
	case owner == "":
		is = moves.Kind{How: moves.CameReleased}
	case owner == m.shared.Node():
		is = moves.Kind{How: moves.CameBack}
	}
	m.moves.Add(is, n)
}

// went notes that this node has lost the session, because of an error of the store; nil: another node has it. While the
// store is away, and when it is back without what it kept, the store's own lines count those.
func (s *Session) went(err error) {
	s.m.logger.Debug("session lost", "session", s.Name(), "error", err)
	if s.m.opts.Outage.Covers() {
		s.m.opts.Outage.LostSession()
		return
	}
	how := moves.WentTaken
	switch {
	case errors.Is(err, stream.ErrNotFound):
		how = moves.WentGone
	case err != nil && unavailable(err):
		how = moves.WentAway
	}
	s.m.moves.Add(moves.Kind{How: how}, moves.Count{Sessions: 1, Calls: int(s.use.calls.Load())})
}
