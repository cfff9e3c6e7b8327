package servers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/internal/translate"
)

// shared is a backend with one conversation below for all sessions, for servers without state:
// ids and progress tokens are mapped. The server sees a client without capabilities, as its
// questions would belong to no session. It is a legacy conversation. State that the server
// keeps for a client is not offered: a level for logs, subscriptions, tasks.
//
// Clients of each revision have a conversation of their own, as the server answers initialize
// once, for one revision.
//
// No lock is held while a message goes to the server or to a session.
type shared struct {
	inner  backend.Backend
	log    *slog.Logger
	linger func() time.Duration // how long the server stays without sessions; 0: [sharedLinger]
	ctx    context.Context      // ends with close
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu      sync.Mutex
	conns   map[*sharedConn]bool      // true: the session has initialized
	users   map[string]int            // how many sessions there are, by the revision that they ask for
	opening map[string]*sharedOpening // by the revision that is asked for
	current map[string]*sharing       // by the revision that is spoken
	speaks  map[string]string         // the revision that the server has answered with, by the revision that it was asked for
	last    uint64                    // of the ids for the server
	closed  bool
}

const (
	// sharedOpen bounds how long a shared server may take to start and to answer initialize.
	sharedOpen = protocol.OpensWithin
	// sharedLinger is how long a shared server stays without sessions and without use, where
	// the configuration does not say.
	sharedLinger = 5 * time.Minute
)

func newShared(inner backend.Backend, log *slog.Logger, linger func() time.Duration) *shared {
	s := &shared{
		inner: inner, log: log, linger: linger,
		conns: make(map[*sharedConn]bool), users: make(map[string]int), opening: make(map[string]*sharedOpening), current: make(map[string]*sharing), speaks: make(map[string]string),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Share returns a backend that has one conversation with b for all sessions, and a function that
// ends it, to be called after the handler's Shutdown. The logger may be nil.
func Share(b backend.Backend, log *slog.Logger) (backend.Backend, func()) {
	if log == nil {
		log = slog.Default()
	}
	s := newShared(translate.New(b, log), log, func() time.Duration { return 0 })
	return s, s.close
}

// Open implements [backend.Backend].
func (s *shared) Open(_ context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	c := &sharedConn{s: s, start: start, sink: sink, done: make(chan struct{}), revision: protocol.V20251125, waiting: make(map[*sharedRequest]struct{})}
	c.start.HTTP = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errStopped
	}
	s.conns[c] = false
	s.users[c.revision]++
	return c, nil
}

// spoken returns the revision of the conversation for clients that ask for a revision. s.mu is
// held.
func (s *shared) spoken(revision string) string {
	if known, ok := s.speaks[revision]; ok {
		return known
	}
	return revision
}

// get returns the conversation for a session, and opens it if necessary.
func (s *shared) get(c *sharedConn) (*sharing, error) {
	s.mu.Lock()
	for {
		revision := s.spoken(c.revision)
		now, opening := s.current[revision], s.opening[revision]
		switch {
		case s.closed:
			s.mu.Unlock()
			return nil, errStopped
		case now != nil:
			s.mu.Unlock()
			c.now.Store(now)
			return now, nil
		case opening == nil:
			opening = &sharedOpening{done: make(chan struct{})}
			s.opening[revision] = opening
			s.wait.Go(func() { s.begin(c, revision, opening) })
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

// sharedOpening is an opening that is under way.
type sharedOpening struct {
	done chan struct{} // closed when the server is open, or could not be
	err  error         // why it could not; to be read after that
}

// begin opens the server for all sessions that wait.
func (s *shared) begin(c *sharedConn, revision string, o *sharedOpening) {
	now, err := s.open(c.start, c.sink, revision)
	s.mu.Lock()
	if err == nil && (now.over || s.closed) {
		err = cmp.Or(now.why, errStopped)
	}
	spare := err != nil
	if err == nil {
		s.speaks[revision] = now.revision
		if spare = s.current[now.revision] != nil; !spare { // else there is a conversation of that revision
			s.current[now.revision] = now
		}
	}
	if spare && now != nil {
		now.over = true
	}
	delete(s.opening, revision)
	o.err = err
	s.rest()
	s.mu.Unlock()
	close(o.done)
	if none, ok := errors.AsType[*protocol.NoAnswer](err); ok {
		s.log.Warn(none.ForOperator())
	}
	if spare && now != nil && now.conn != nil {
		_ = now.conn.Close()
	}
}

// rest starts the timers that end conversations without sessions. s.mu is held.
func (s *shared) rest() {
	if s.closed {
		return
	}
	for _, now := range s.current {
		if now.idle == nil && s.sessions(now) == 0 {
			now.idle = time.AfterFunc(max(0, s.left(now)), func() { s.expire(now) })
		}
	}
}

// sessions returns how many sessions have a conversation open. s.mu is held.
func (s *shared) sessions(now *sharing) (n int) {
	for revision, some := range s.users {
		if s.spoken(revision) == now.revision {
			n += some
		}
	}
	return n
}

// left returns for how long a conversation stays yet if no session uses it. s.mu is held.
func (s *shared) left(now *sharing) time.Duration {
	return cmp.Or(s.linger(), sharedLinger) - time.Since(now.used)
}

// expire ends a conversation that no session has open. It is opened again when it is needed.
func (s *shared) expire(now *sharing) {
	s.mu.Lock()
	now.idle = nil
	if now.over || s.closed || s.sessions(now) > 0 {
		s.mu.Unlock()
		return
	}
	if s.left(now) > 0 { // it was used meanwhile
		s.rest()
		s.mu.Unlock()
		return
	}
	now.over = true
	delete(s.current, now.revision)
	s.wait.Add(1)
	s.mu.Unlock()
	defer s.wait.Done()
	s.log.Debug("shared server ended: nobody uses it")
	_ = now.conn.Close()
}

// close ends the conversations with the server.
func (s *shared) close() {
	s.cancel()
	s.mu.Lock()
	s.closed = true
	all := s.current
	s.current = nil
	for _, now := range all {
		now.over = true
		if now.idle != nil {
			now.idle.Stop()
		}
	}
	s.mu.Unlock()
	for _, now := range all {
		_ = now.conn.Close()
	}
	s.wait.Wait()
}
