package session

import (
	"context"
	"maps"
	"reflect"
	"sync/atomic"
	"time"
)

// slimAfter is for how long a session is quiet before it gives back the memory that it keeps for its next call.
const slimAfter = 10 * time.Second

// commonTools has what is known of the tools of servers, by their names, as quiet sessions share it. One goroutine uses it.
type commonTools map[string]toolHints

// mayRest reports whether a store marks a session that another node need not go on with.
func (m *Manager) mayRest(s *Session) bool {
	store, ok := m.store.(marking)
	return ok && !store.Rests(s.key) && !s.keyed.Load() && s.watched.Load() == nil && s.resumes.Load() == nil && s.use.calls.Load() == 0 && s.isUnread()
}

// rest has the store take the marks of sessions away. If it does not answer, the others have time.
func (m *Manager) rest(all []*Session) {
	var silent atomic.Bool
	m.each(all, parallel, func(s *Session) {
		if silent.Load() {
			return
		}
		ctx, stop := context.WithTimeout(m.ctx, storeTimeout)
		defer stop()
		if err := m.store.(marking).Rest(ctx, s.leased()); err != nil {
			silent.Store(unavailable(err))
			m.logger.Debug("a quiet session is still marked as one with calls", "session", s.Name(), "error", err)
		}
	})
}

// slim has a session give back what it keeps for its next call, and share what it knows of tools with others.
func (t commonTools) slim(s *Session) {
	locked(s, func() {
		s.requests.locked(func() {
			if len(s.requests.all) == 0 {
				s.requests.all = nil
			}
		})
		t.share(s.Server(), &s.tools)
	})
	s.log.Slim()
}

// share has h share its maps with the last one of its server, if they are equal. The lock of h's session is held.
func (t commonTools) share(server string, h *toolHints) {
	if h.common || !h.complete {
		return
	}
	if other, ok := t[server]; ok && other.equal(h) {
		h.safe, h.changes, h.headed, h.shaped = other.safe, other.changes, other.headed, other.shaped
	} else {
		t[server] = toolHints{safe: h.safe, changes: h.changes, headed: h.headed, shaped: h.shaped}
	}
	h.common = true
}

// equal reports whether both say the same of the same tools.
func (h toolHints) equal(other *toolHints) bool {
	return maps.Equal(h.safe, other.safe) && maps.Equal(h.changes, other.changes) && maps.Equal(h.shaped, other.shaped) &&
		reflect.DeepEqual(h.headed, other.headed)
}

// own gives h maps of its own, which may be changed.
func (h *toolHints) own() {
	if h.common {
		h.safe, h.changes, h.headed, h.shaped, h.common = maps.Clone(h.safe), maps.Clone(h.changes), maps.Clone(h.headed), maps.Clone(h.shaped), false
	}
}
