package session

import (
	"context"
	"errors"
	"sync"

	"holdfast/internal/feature/idempotency"
	"holdfast/jsonrpc"
)

// What follows is for requests that a limit does not let begin yet, and that wait for their turn: they
// are not on record.

// ErrCancelled says that the client has cancelled a request before it began. It gets no response.
var ErrCancelled = errors.New("the client has cancelled the request")

// A turn is what one such request waits for.
type turn struct {
	stop      context.CancelCauseFunc
	cancelled bool
}

// turns are requests that wait, by what names them to their client. Several may have one name: those of a
// client that makes its request again, under an idempotency key.
type turns map[string][]*turn

// add adds a request, whose context ends with parent. remove takes it out again.
func (all *turns) add(parent context.Context, name string) (ctx context.Context, remove func()) {
	ctx, stop := context.WithCancelCause(parent)
	t := &turn{stop: stop}
	if *all == nil {
		*all = make(turns)
	}
	(*all)[name] = append((*all)[name], t)
	return ctx, func() {
		stop(nil)
		rest := (*all)[name]
		for i := range rest {
			if rest[i] == t {
				rest = append(rest[:i:i], rest[i+1:]...)
				break
			}
		}
		if (*all)[name] = rest; len(rest) == 0 {
			delete(*all, name)
		}
		if len(*all) == 0 {
			*all = nil
		}
	}
}

// cancel cancels the requests with a name.
func (all turns) cancel(name string) {
	for _, t := range all[name] {
		t.cancelled = true
		t.stop(ErrCancelled)
	}
}

// isCancelled reports whether a request with a name that waits was cancelled.
func (all turns) isCancelled(name string) bool {
	for _, t := range all[name] {
		if t.cancelled {
			return true
		}
	}
	return false
}

// stop has all of them wait no more, because of why.
func (all turns) stop(why error) {
	for _, some := range all {
		for _, t := range some {
			t.stop(why)
		}
	}
}

// AwaitTurn notes that a request with an id waits for its turn. The session does not expire meanwhile. The
// context ends with parent, and when there is nothing more to wait for: its cause is [ErrCancelled] if the
// client has cancelled the request (then [Session.Begin] refuses it with that), or why the session has
// ended. over must be called when the request has begun, or waits no more.
func (s *Session) AwaitTurn(parent context.Context, id []byte) (_ context.Context, over func()) {
	s.use.reserved.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, remove := s.waiting.add(parent, string(jsonrpc.Key(id)))
	if s.isClosed() {
		s.waiting.stop(s.goneError())
	}
	return ctx, func() {
		s.mu.Lock()
		remove()
		s.mu.Unlock()
		s.use.reserved.Add(-1)
	}
}

// keyedTurns are modern requests under an idempotency key that wait for their turn, by [idempotency.KeyID].
type keyedTurns struct {
	mu  sync.Mutex
	all turns
}

// AwaitOnce is [Session.AwaitTurn] for a modern request, whose client can cancel it by its idempotency key
// ("": it has none). It need not have a session yet.
func (m *Manager) AwaitOnce(parent context.Context, client *Client, key string) (_ context.Context, over func()) {
	if key == "" {
		return parent, func() {}
	}
	w := &m.keyedTurns
	w.mu.Lock()
	defer w.mu.Unlock()
	ctx, remove := w.all.add(parent, nameOfTurn(client, key))
	return ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		remove()
	}
}

// cancel cancels what waits under an idempotency key of a modern client.
func (w *keyedTurns) cancel(client *Client, key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.cancel(nameOfTurn(client, key))
}

func nameOfTurn(client *Client, key string) string {
	id := idempotency.KeyID(client.keys(), key)
	return string(id[:])
}
