package session

import (
	"context"
	"errors"

	"holdfast/jsonrpc"
)

// ErrCancelled says that the client has cancelled a request before it began. It gets no response.
var ErrCancelled = errors.New("the client has cancelled the request")

// A turn is what a request waits for that a limit does not let begin: it is not on record yet.
// Guarded by Session.mu.
type turn struct {
	stop      context.CancelCauseFunc
	cancelled bool
}

// AwaitTurn notes that a request with an id waits for its turn. The context ends with parent, and
// with [ErrCancelled] as its cause when the client cancels the request; then [Session.Begin] refuses it
// with that. over must be called when the request has begun, or waits no more. The error is
// [ErrDuplicate].
func (s *Session) AwaitTurn(parent context.Context, id []byte) (_ context.Context, over func(), _ error) {
	key := string(jsonrpc.Key(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[key] != nil || s.inFlight[key] != nil {
		return nil, nil, ErrDuplicate
	}
	if s.waiting == nil {
		s.waiting = make(map[string]*turn)
	}
	ctx, stop := context.WithCancelCause(parent)
	s.waiting[key] = &turn{stop: stop}
	return ctx, func() {
		stop(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.waiting, key); len(s.waiting) == 0 {
			s.waiting = nil
		}
	}, nil
}

// cancelWaiting cancels a request that waits for its turn, and reports whether one does. s.mu is held.
func (s *Session) cancelWaiting(id []byte) bool {
	w := s.waiting[string(jsonrpc.Key(id))]
	if w == nil {
		return false
	}
	w.cancelled = true
	w.stop(ErrCancelled)
	return true
}
