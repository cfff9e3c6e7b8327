package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/config"
	"holdfast/internal/session"
	"holdfast/internal/translate"
)

// A server is a server of a file.
type server struct {
	name    string
	version uint64
	log     *slog.Logger
	run     runner
	shared  *shared         // nil if the server is not shared
	inner   backend.Backend // run or shared, in both eras
	conf    atomic.Pointer[config.Server]
	lists   atomic.Uint64 // see [Set.Lists]
	// before is the former server of the name, while it has calls to end; or nil.
	before atomic.Pointer[server]

	mu      sync.Mutex
	open    int           // conversations
	leaving int           // of them, those that have ended or are being closed
	changed chan struct{} // closed when a conversation has ended or begins to; nil if no goroutine waits for that
	stopped bool
	idle    chan struct{} // closed when there are no conversations and there will be none
}

func newServer(conf *config.Server, version uint64, log *slog.Logger) *server {
	s := &server{name: conf.Name, version: version, log: log.With("server", conf.Name), idle: make(chan struct{})}
	s.conf.Store(conf)
	s.lists.Store(version)
	s.run = newRunner(conf, s.log)
	s.inner = translate.New(s.run, s.log)
	if conf.Share {
		s.shared = newShared(s.inner, s.log, func() time.Duration { return s.conf.Load().StopIdle })
		s.inner = translate.New(s.shared, s.log)
	}
	return s
}

// startsProcess reports whether each session of the server has a process of its own.
func (s *server) startsProcess() bool {
	conf := s.conf.Load()
	return conf.Type == config.Stdio && !conf.Share
}

// runsLike reports whether another entry for the server runs it in the same way.
func (s *server) runsLike(b *config.Server) bool {
	a := s.conf.Load()
	return a.Type == b.Type && slices.Equal(a.Command, b.Command) && reflect.DeepEqual(a.Env, b.Env) && a.Dir == b.Dir &&
		a.URL == b.URL && reflect.DeepEqual(a.Header, b.Header) && a.Share == b.Share &&
		a.Auth.Passthrough == b.Auth.Passthrough && reflect.DeepEqual(a.Auth.Token, b.Auth.Token)
}

// If too many processes run, a session waits for one that ends, for placeWait at most. The end of a session may not have got
// to its process yet, as a client may begin its next session at once: a session waits for that, too, but only for leaveWait.
const (
	placeWait = 5 * time.Second
	leaveWait = 100 * time.Millisecond
)

var errStopped = errors.New("the server has left the configuration")

// Open opens a conversation, if there is room for another.
func (s *server) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	c := &conn{s: s, sink: sink}
	conn, err := s.inner.Open(ctx, start, c)
	if err != nil {
		s.leave()
		return nil, err
	}
	c.inner = conn
	return c, nil
}

// enter counts a conversation, once there is room for it. If no conversation leaves, it fails after leaveWait.
func (s *server) enter(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, placeWait)
	defer cancel()
	early := time.NewTimer(leaveWait)
	defer early.Stop()
	for {
		s.mu.Lock()
		most := s.conf.Load().MaxProcesses
		switch {
		case s.stopped:
			s.mu.Unlock()
			return errStopped
		case most == 0 || s.open < most || s.shared != nil:
			s.open++
			s.mu.Unlock()
			return nil
		}
		none := early.C
		if s.open-s.leaving < most {
			none = nil // it waits for conversations that leave
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
			continue
		case <-none:
		case <-ctx.Done():
		}
		return fmt.Errorf("%w: %d processes of the server %q run on this node (its maxProcesses)", session.ErrBusy, most, s.name)
	}
}

// change wakes the goroutines that wait for room. s.mu is held.
func (s *server) change() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// leaves notes that a conversation is about to leave.
func (s *server) leaves() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving++
	s.change()
}

// left counts the end of a conversation that was about to leave.
func (s *server) left() {
	s.mu.Lock()
	s.leaving--
	s.mu.Unlock()
	s.leave()
}

// tryEnter is enter for another process of a conversation that is open. It does not wait.
func (s *server) tryEnter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := s.conf.Load().MaxProcesses
	if s.stopped || most > 0 && s.open >= most && s.shared == nil {
		return false
	}
	s.open++
	return true
}

// leave counts the end of a conversation.
func (s *server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.change()
	if s.stopped && s.open == 0 {
		close(s.idle)
	}
}

// retire lets the conversations that are open end by themselves, and then closes the server.
func (s *server) retire() {
	s.refuse()
	<-s.idle
	s.end()
}

// stop ends all conversations.
func (s *server) stop() {
	s.refuse()
	s.end()
}

func (s *server) end() {
	if s.shared != nil {
		s.shared.close()
	}
	s.run.close()
}

// refuse makes the server refuse new conversations.
func (s *server) refuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.stopped = true
		if s.open == 0 {
			close(s.idle)
		}
	}
}

// endpoint returns the path of the server, or the path of the stream of its pair.
func (s *server) endpoint(pair bool) string {
	at := s.conf.Load().Path
	if pair {
		return path.Join(path.Dir(at), "sse")
	}
	return at
}

// safe reports whether the operator calls a tool safe. tool is the name that clients know.
func (s *server) safe(tool string) bool {
	conf := s.conf.Load()
	name, ok := unprefixed(conf, tool)
	return ok && matches(conf.Safe, name)
}
