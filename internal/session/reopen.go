package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"holdfast/backend"
	"holdfast/internal/processes"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// deliver hands a message to the backend, which it opens again if that has ended.
func (s *Session) deliver(ctx context.Context, in backend.Inbound) error {
	for range 4 { // a backend that ends again and again is given up
		s.mu.Lock()
		if s.isClosed() || s.use.lost.Load() {
			s.mu.Unlock()
			return s.goneError()
		}
		if s.backend.first != nil && in.Method != protocol.MethodInitialize {
			s.mu.Unlock()
			return errNotInitialized
		}
		l, opening := s.backend.link, s.backend.opening
		if l != nil && opening == nil {
			rq, begun := s.requests.deliver(&in)
			rq.keepListen(&in)
			s.backend.stateful = s.backend.stateful || leavesState(&in)
			var sets, changes bool
			if begun {
				sets, changes = s.backend.settings.take(&in.Message)
			}
			if begun && !sets && !s.use.lasts.Load() && leavesMore(s, &in) {
				s.use.lasts.Store(true)
			}
			s.mu.Unlock()
			if !begun {
				return nil
			}
			if changes && s.m.shared != nil { // the next owner opens a server, too
				s.noteSettings()
			}
			return s.m.deliverTo(l.conn, in)
		}
		s.mu.Unlock()
		if err := s.awaitOpen(ctx, in); err != nil {
			return err
		}
	}
	return errEnded
}

// awaitOpen opens the backend again for a message, if it is closed, or waits until another goroutine has opened it. The error is that of the
// opening, or ctx's.
func (s *Session) awaitOpen(ctx context.Context, in backend.Inbound) error {
	s.mu.Lock()
	if opening := s.backend.opening; opening != nil {
		s.mu.Unlock()
		select {
		case <-opening:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.backend.link != nil || s.isClosed() {
		s.mu.Unlock()
		return nil
	}
	if err := s.takeInVain(&in); err != nil {
		s.mu.Unlock()
		return err
	}
	opening := make(chan struct{})
	s.backend.opening = opening
	s.mu.Unlock()
	err := s.reopen(ctx, in)
	s.mu.Lock()
	s.backend.opening = nil
	close(opening)
	s.mu.Unlock()
	if err == nil {
		s.learnAgain(in)
	}
	return err
}

// leavesState reports whether a message may leave state in the backend's memory that a new backend of the
// session would not have. Calls that are made again after a take-over do not count: they may run any number
// of times, and older state was lost then.
func leavesState(in *backend.Inbound) bool {
	if in.Method == protocol.MethodInitialize || in.Method == protocol.MethodInitialized {
		return false
	}
	c := callOf(in)
	return !c.Repeated()
}

// errNotInitialized refuses messages before the initialize request.
var errNotInitialized = errors.New("the session is not initialized")

// reopen gives the session a new backend in the state that the client expects: it sends the stored initialize
// again, and the client's settings. The client does not see the answers.
func (s *Session) reopen(ctx context.Context, in backend.Inbound) error {
	wait := placeWait
	switch c := callOf(&in); {
	case c.Repeated():
		wait = placeAgainWait
	case c != nil:
		wait = processes.Patience
	}
	place, err := s.m.processes.Take(context.WithoutCancel(ctx), processOwner{s}, wait, in.Call != nil)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), openTimeout)
	defer stop()
	r := (&http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: in.Header}).WithContext(ctx)
	s.mu.Lock()
	if s.backend.first != nil {
		r = s.backend.first
	}
	s.mu.Unlock()
	l, err := s.connect(ctx, r, place)
	if err != nil {
		l.unlink()
		return err
	}
	s.mu.Lock()
	raw, ready, set := s.backend.initialize, s.backend.initialized, s.backend.settings.requests()
	s.mu.Unlock()
	if raw == nil || in.Method == protocol.MethodInitialize {
		return nil
	}
	init, err := jsonrpc.Parse(append([]byte(nil), raw...))
	if err != nil {
		return err
	}
	reply, err := l.ask(ctx, init.Method, init.Params, in)
	if err == nil && reply.Error != nil {
		err = fmt.Errorf("initialize failed: %s", reply.Error)
	}
	if errors.Is(err, errEnded) {
		err = l.whyEnded()
	}
	if err != nil {
		l.unlink()
		return fmt.Errorf("server did not start again: %w", l.inVain(init.Method, err))
	}
	defer s.answeredAgain(reply.Result)
	if ready {
		err = s.m.deliverTo(l.conn, backend.Inbound{Message: initialized, Context: in.Context, Header: in.Header})
	}
	if err != nil && !panicked(err) { // a server takes no requests before that
		l.unlink()
		return fmt.Errorf("server did not start again: %w", err)
	}
	if err == nil {
		l.setAgain(ctx, set, in)
	}
	return err
}
