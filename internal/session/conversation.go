package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"holdfast/backend"
	"holdfast/internal/processes"
	"holdfast/internal/protocol"
)

// A conversation is a session's state towards its backend: the open link, and the messages and settings that
// the next link begins with. Guarded by Session.mu. It is
//
//	reserved  while first is set: it is opened for the client's initialize, and not before
//	opening   while opening is not nil
//	open      while link is not nil
//	closed    else: the next message opens it again
type conversation struct {
	link    *link
	opening chan struct{} // closed when the backend is open, or could not be opened
	first   *http.Request // the request that began the session

	initialize  []byte // the raw request
	refused     error  // how the backend has refused initialize: a [protocol.Unauthorized], or nil
	initialized bool   // the client has sent notifications/initialized
	stateful    bool   // the backend may have state that a new one would not have: see leavesState
	own         ownRequests
	settings    settings
	unsure      []string     // tools that were called before the backend's list of tools was known
	noted       []byte       // the [sleepNote] that the store has, or nil
	inVain      *vainOpening // the last opening before a request began, or nil
}

// openTimeout bounds how long a backend may take to be opened, and to answer its first request: the client's
// or, when it is opened again, the stored one.
const openTimeout = protocol.OpensWithin

// open opens the backend for a new session.
func (s *Session) open(ctx context.Context, r *http.Request) error {
	place, err := s.m.processes.Take(ctx, processOwner{s}, placeWait, false)
	if err != nil {
		return err
	}
	_, err = s.connect(ctx, r, place)
	return err
}

// connect opens the backend for the session. place is the one that was taken for its process; nil: it needs none.
func (s *Session) connect(ctx context.Context, r *http.Request, place *processes.Place) (*link, error) {
	if !s.m.work.Start() {
		place.Free()
		return nil, ErrClosing
	}
	l := &link{s: s}
	if s.m.many != nil {
		l.version, _ = s.m.many.Server(s.Server(), s.modern != "")
	}
	s.mu.Lock()
	s.backend.link = l
	s.mu.Unlock()
	began := time.Now()
	ctx, stop := context.WithTimeout(ctx, openTimeout)
	defer stop()
	conn, err := s.m.openBackend(ctx, backend.Start{Session: s.Name(), Secret: s.id, Server: s.Server(), Revision: s.modern, HTTP: r}, l)
	s.events.opened(began, err)
	if err != nil {
		place.Free()
		s.m.work.Done()
		if errors.Is(err, ErrBusy) { // there is no memory for the conversation, and the server has refused nothing
			return l, err
		}
		return l, fmt.Errorf("%w: %w", ErrRefused, l.inVain("", err))
	}
	if place != nil {
		conn = &placed{conn, place}
		place.Opened()
	}
	s.mu.Lock()
	l.conn = conn
	s.backend.first = nil
	ended := l.over || s.isClosed()
	l.over = ended
	replies := l.replies
	l.replies = nil
	s.mu.Unlock()
	if ended { // while the backend was opened
		s.events.closed()
		s.m.closeBackend(conn)
		return l, fmt.Errorf("%w: %w", ErrRefused, l.whyEnded())
	}
	for _, m := range replies {
		l.replyNow(m)
	}
	return l, nil
}

var errEnded = errors.New("the server ended")
