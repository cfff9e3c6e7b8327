package session

import (
	"context"
	"errors"
	"time"

	"holdfast/stream"
)

// This file is for a backend with many servers (docs/decisions/0025-many-servers.md), which come, change and go while it is in use.

// manyServers is a backend with many servers. Its methods may be called concurrently, and do not wait.
type manyServers interface {
	// Server describes the server with a name. version changes when open conversations have to be replaced by others;
	// 0: there is no such server. stopIdle is how long a session may be silent before its conversation is closed, to
	// be opened again with the next message; 0: for ever. carrier says that the session carries modern requests.
	Server(name string, carrier bool) (version uint64, stopIdle time.Duration)
	// StartsProcess reports whether a conversation with the server with a name costs a process
	// of its own.
	StartsProcess(name string) bool
	// SafeTool reports whether the operator calls a tool of a server safe.
	SafeTool(server, tool string) bool
	// OnChange sets a function that is called after servers have changed, and that does not wait.
	OnChange(changed func())
}

const (
	// tendEvery is how often sessions of many servers are looked at.
	tendEvery = 5 * time.Second
	// removedGrace is how long calls of a removed server may go on.
	removedGrace = 30 * time.Second
	// removedAgain is the time between two looks at whether these calls have ended.
	removedAgain = 100 * time.Millisecond
)

// A sessionsAsker is a backend with many servers that has to know which server a session belongs to, if several were at one path.
type sessionsAsker interface {
	// AskSessions gives the backend a function that returns the server of the session with a public name; ok: the session exists.
	AskSessions(serverOf func(ctx context.Context, name string) (server string, ok bool))
}

var errRemoved = errors.New("its server was removed from the configuration")

// watchServers begins to listen to changes of the backend's servers.
func (m *Manager) watchServers() {
	if m.many != nil {
		m.many.OnChange(m.serversChanged)
	}
	if b, ok := m.backend.(sessionsAsker); ok {
		b.AskSessions(m.serverOf)
	}
}

// serverOf returns the server of a session, of any principal, here or on another node.
func (m *Manager) serverOf(ctx context.Context, name string) (server string, ok bool) {
	if s := m.find(stream.SessionKey(name)); s != nil {
		return s.Server(), true
	}
	if m.shared == nil {
		return "", false
	}
	at, err := m.Finder.Lookup(ctx, stream.SessionKey(name))
	if err != nil {
		return "", false
	}
	return at.Principal.Server(), true
}

// serversChanged ends the sessions of removed servers, once their calls have ended, and closes conversations
// that have to be replaced, once nothing is in flight in them.
func (m *Manager) serversChanged() {
	m.work.Go(func() {
		t := time.NewTicker(removedAgain)
		defer t.Stop()
		for began := time.Now(); ; {
			late := time.Since(began) > removedGrace
			waits := false
			for _, s := range m.all() {
				waits = m.tend(s, m.clock(), late) || waits
			}
			if !waits {
				return
			}
			select {
			case <-t.C:
			case <-m.work.Quit():
				return
			}
		}
	})
}

// tend ends a session if its server was removed, and closes its conversation if the server was changed or the
// session is silent for too long. waits says that calls in flight delay that; late: it does not wait for them,
// and the session of a removed server ends all the same.
func (m *Manager) tend(s *Session, now time.Duration, late bool) (waits bool) {
	version, stopIdle := m.many.Server(s.Server(), s.modern != "")
	switch {
	case version == 0 && s.use.calls.Load() > 0 && !late:
		return !s.isClosed()
	case version == 0:
		m.end(s, errRemoved)
	case stopIdle > 0 && s.use.sinceSeen(now) > stopIdle:
		s.closeQuiet(0)
		s.tellLists()
	default:
		if !s.closeQuiet(version) {
			return !late
		}
		s.tellLists() // not before: the client would get the lists from the old conversation
	}
	return false
}

// closeQuiet closes the session's conversation, if it was opened at another version of the server and nothing is in
// flight in it but listens, which are made again. The next message opens another with the stored initialize. closeQuiet
// returns false if the conversation has to be closed, but something is in flight.
func (s *Session) closeQuiet(version uint64) bool {
	s.mu.Lock()
	l := s.backend.link
	listens, quiet := []*inflight(nil), s.isQuietLocked()
	if version != 0 && !quiet && s.modern != "" && s.offering.known().lists != 0 && s.isStill() {
		listens, quiet = s.requests.listens()
		quiet = quiet && int(s.use.calls.Load()) == len(listens)
	}
	if l == nil || l.conn == nil || l.version == version || !quiet {
		done := l == nil || l.conn == nil || l.version == version || s.isClosed()
		s.mu.Unlock()
		return done
	}
	conn := l.finish()
	if version != 0 {
		s.offering.forget()
	}
	s.mu.Unlock()
	if conn != nil {
		s.m.logger.Debug("backend closed: its server has changed, or the session is silent", "session", s.Name())
		s.m.closeBackend(conn)
	}
	s.listenAgain(listens)
	return true
}

// isQuietLocked reports whether nothing is in flight or about to be. s.mu is held.
func (s *Session) isQuietLocked() bool {
	initialized := s.backend.initialize != nil && s.revision != "" || s.modern != ""
	return initialized && s.isStill() && s.requests.len() == 0 && s.use.calls.Load() == 0 && s.use.reserved.Load() == 0
}

// isStill reports whether the session lives, and nothing but requests of its clients is on its way. s.mu is held.
func (s *Session) isStill() bool {
	return !s.isClosed() && s.asked.len() == 0 && s.backend.opening == nil && !s.Tools.IsReading()
}
