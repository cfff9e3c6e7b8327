package session

import (
	"context"
	"sync/atomic"
	"time"

	"holdfast/internal/handover"
	"holdfast/internal/tools"
	"holdfast/internal/whereabouts"
)

// slimAfter is for how long a session is quiet before it gives back the memory that it keeps for its next call.
const slimAfter = 10 * time.Second

// mayRest reports whether the store still marks a session that has no calls for another node to go on with.
func (m *Manager) mayRest(s *Session) bool {
	store, ok := m.store.(whereabouts.Marking)
	return ok && !store.Rests(s.key) && !s.keyed.Load() && !s.Watched.WereUsed() && s.Resumes() == nil && s.use.calls.Load() == 0 && s.streams.IsUnused() && s.untold.IsIdle()
}

// rest makes the store remove the marks of sessions. If the store does not answer, the others keep theirs for now.
func (m *Manager) rest(all []*Session) {
	var silent atomic.Bool
	handover.Each(all, handover.Parallel, func(s *Session) {
		if silent.Load() {
			return
		}
		ctx, stop := context.WithTimeout(m.work.Context(), storeTimeout)
		defer stop()
		if err := m.store.(whereabouts.Marking).Rest(ctx, s.leased()); err != nil {
			silent.Store(unavailable(err))
			m.logger.Debug("a quiet session is still marked as one with calls", "session", s.Name(), "error", err)
		}
	})
}

// slim makes a session give back the memory that it keeps for its next call, and share its list of tools with other sessions.
func (s *Session) slim(common tools.Common) {
	locked(s, func() {
		s.requests.locked(func() {
			if len(s.requests.all) == 0 {
				s.requests.all = nil
			}
		})
	})
	common.Share(&s.Tools)
	s.log.Slim()
}
