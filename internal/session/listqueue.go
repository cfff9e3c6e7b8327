package session

import (
	"context"
	"fmt"
	"sync"

	"holdfast/internal/caller"
)

// mostLists is how many requests for all calls or tasks of one client may wait for their turn.
const mostLists = 8

// lists has the requests for all calls or tasks of a client, on all nodes: one of each client is served at a time. The zero value is ready.
type lists struct {
	mu sync.Mutex
	of map[string]*list // by tenants
}

// A list is the queue of such requests of one client.
type list struct {
	turn chan struct{} // held by the request that is served
	n    int           // requests; guarded by lists.mu
}

// ListTurn waits until no other request for all calls or tasks of the client is served. The caller has to call done after its own. The error is [ErrBusy], or ctx's.
func (m *Manager) ListTurn(ctx context.Context, principal caller.Principal, address string) (done func(), err error) {
	return m.lists.await(ctx, caller.TenantOf(principal, address))
}

func (l *lists) await(ctx context.Context, tenant string) (done func(), err error) {
	if tenant == "" {
		return func() {}, nil // a client with neither a name nor an address is on a pipe, and has few sessions
	}
	l.mu.Lock()
	one := l.of[tenant]
	if one == nil {
		if one = (&list{turn: make(chan struct{}, 1)}); l.of == nil {
			l.of = make(map[string]*list)
		}
		l.of[tenant] = one
	}
	if one.n > mostLists {
		l.mu.Unlock()
		return nil, fmt.Errorf("%w: %d requests of this client that look for all its calls or tasks wait already", ErrBusy, mostLists)
	}
	one.n++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.n--; one.n == 0 {
			delete(l.of, tenant)
		}
	}
	select {
	case one.turn <- struct{}{}:
		return func() { <-one.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
