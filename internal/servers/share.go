package servers

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"holdfast/backend"
)

// shared is a backend with one conversation below for all sessions, for servers without state:
// ids and progress tokens are mapped. The server is told of a client without capabilities,
// as nobody could say which session a question of it would be for. It is a legacy conversation.
// What the server keeps for a client is not offered: a level for logs, subscriptions, tasks.
//
// No lock is held while the server or a session is told anything.
type shared struct {
	inner backend.Backend
	log   *slog.Logger
	wait  sync.WaitGroup

	mu      sync.Mutex
	conns   map[*sharedConn]bool
	opening *sharedOpening // nil: none is under way
	current *sharing       // nil: the server is not open
	last    uint64         // of the ids for the server
	closed  bool
}

func newShared(inner backend.Backend, log *slog.Logger) *shared {
	return &shared{inner: inner, log: log, conns: make(map[*sharedConn]bool)}
}

// Open implements [backend.Backend].
func (s *shared) Open(_ context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	c := &sharedConn{s: s, start: start, sink: sink, done: make(chan struct{})}
	c.start.HTTP = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errStopped
	}
	s.conns[c] = true
	return c, nil
}

// sharedOpen bounds how long a shared server may take to start and to answer initialize.
const sharedOpen = 60 * time.Second

// get returns the server, which is opened if it is not.
func (s *shared) get(c *sharedConn) (*sharing, error) {
	s.mu.Lock()
	for {
		now, opening := s.current, s.opening
		switch {
		case s.closed:
			s.mu.Unlock()
			return nil, errStopped
		case now != nil:
			s.mu.Unlock()
			return now, nil
		case opening == nil:
			opening = &sharedOpening{done: make(chan struct{})}
			s.opening = opening
			s.wait.Go(func() { s.begin(c.start, opening) })
		}
		s.mu.Unlock()
		select {
		case <-opening.done:
		case <-c.done:
			return nil, errStopped
		}
		if opening.err != nil {
			return nil, opening.err
		}
		s.mu.Lock()
	}
}

// sharedOpening is under way.
type sharedOpening struct {
	done chan struct{} // closed when the server is open, or could not be
	err  error         // why it could not; to be read after that
}

// begin opens the server for all who wait.
func (s *shared) begin(start backend.Start, o *sharedOpening) {
	now, err := s.open(start)
	s.mu.Lock()
	if err == nil && (now.over || s.closed) {
		err = errStopped
	}
	if err == nil {
		s.current = now
	} else if now != nil {
		now.over = true
	}
	s.opening, o.err = nil, err
	s.mu.Unlock()
	close(o.done)
	if err != nil && now != nil && now.conn != nil {
		_ = now.conn.Close()
	}
}

// close ends the conversation with the server.
func (s *shared) close() {
	s.mu.Lock()
	s.closed = true
	now := s.current
	s.current = nil
	if now != nil {
		now.over = true
	}
	s.mu.Unlock()
	if now != nil {
		_ = now.conn.Close()
	}
	s.wait.Wait()
}
