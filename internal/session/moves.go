package session

import (
	"errors"

	"holdfast/internal/moves"
	"holdfast/stream"
)

// came notes that this node has taken over a session, and which owner its record named. While the store is away, and when
// it is back, nodes take over all sessions that their owners had to give up: the log's lines about the store count those.
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
// store is away, and when it is back without its data, the log's lines about the store count such sessions.
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
