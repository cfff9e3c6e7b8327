package session

import (
	"context"
	"errors"
	"slices"
	"sync"

	"holdfast/internal/feature/idempotency"
	"holdfast/jsonrpc"
)

// This file is for requests that wait for their turn, as a limit does not allow them to begin yet: they are not on record.

// ErrCancelled says that the client has cancelled a request before it began. It gets no response.
var ErrCancelled = errors.New("the client has cancelled the request")

// A turn is a request that waits.
type turn struct {
	stop      context.CancelCauseFunc
	cancelled bool
}

// turns are requests that wait, by the names that their clients know. Several may have one name: a client may make its request again,
// under an idempotency key. The zero value is ready to use. Its methods may be called concurrently, and its lock is taken last.
type turns struct {
	mu  sync.Mutex
	all map[string][]*turn // nil if there are none
}

// add adds a request, with a context that ends with parent. remove takes the request out again.
func (w *turns) add(parent context.Context, name string) (ctx context.Context, remove func()) {
	ctx, stop := context.WithCancelCause(parent)
	t := &turn{stop: stop}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[string][]*turn)
	}
	w.all[name] = append(w.all[name], t)
	return ctx, func() {
		stop(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.all[name] = slices.DeleteFunc(w.all[name], func(other *turn) bool { return other == t }); len(w.all[name]) == 0 {
			delete(w.all, name)
		}
		if len(w.all) == 0 {
			w.all = nil
		}
	}
}

// cancel cancels the requests with a name.
func (w *turns) cancel(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.all[name] {
		t.cancelled = true
		t.stop(ErrCancelled)
	}
}

// has reports whether a request with a name waits.
func (w *turns) has(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[name] != nil
}

// isEmpty reports whether no request waits.
func (w *turns) isEmpty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all == nil
}

// isCancelled reports whether a request with a name that waits was cancelled.
func (w *turns) isCancelled(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.all[name], func(t *turn) bool { return t.cancelled })
}

// stop ends the wait of all of them, because of why.
func (w *turns) stop(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, some := range w.all {
		for _, t := range some {
			t.stop(why)
		}
	}
}

// AwaitTurn notes that a request with an id waits for its turn. The session does not expire meanwhile. The
// context ends with parent, and when the request need not wait any more: its cause is [ErrCancelled] if the
// client has cancelled the request (then [Session.Begin] refuses it with that), or why the session has ended.
// over must be called when the request has begun, or waits no more.
func (s *Session) AwaitTurn(parent context.Context, id []byte) (_ context.Context, over func()) {
	s.use.reserved.Add(1)
	ctx, remove := s.waiting.add(parent, string(jsonrpc.Key(id)))
	if s.isClosed() { // else the goroutine that closes it finds the request
		s.waiting.stop(s.goneError())
	}
	return ctx, func() {
		remove()
		s.use.reserved.Add(-1)
	}
}

// AwaitOnce is [Session.AwaitTurn] for a modern request, which the client can cancel by its idempotency key
// ("": it has none). The request need not have a session yet.
func (m *Manager) AwaitOnce(parent context.Context, client *Client, key string) (_ context.Context, over func()) {
	if key == "" {
		return parent, func() {}
	}
	return m.keyedTurns.add(parent, nameOfTurn(client, key))
}

func nameOfTurn(client *Client, key string) string {
	id := idempotency.KeyID(client.keys(), key)
	return string(id[:])
}
