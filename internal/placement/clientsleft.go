package placement

import (
	"context"
	"slices"
	"sync"
	"time"
)

// leavers are the clients that have left other nodes, and the light calls to cancel when
// such a client leaves. The methods may be called concurrently.
type leavers struct {
	mu sync.Mutex
	// When they left, in two generations: when the younger one is leftFor old, or full, the older one is forgotten.
	left, leftBefore map[string]time.Time
	since            time.Time // when the younger generation began
	// waiting cancels the light calls of a forwarded request, by the request's name: if the connection between the nodes has broken, the
	// request comes twice.
	waiting map[string][]*context.CancelFunc
}

// requestLeft notes that the client of a forwarded request has left, and cancels its light call.
func (l *leavers) requestLeft(request string) {
	l.note(request) // for a request that comes later
	l.mu.Lock()
	all := slices.Clone(l.waiting[request])
	l.mu.Unlock()
	for _, leave := range all {
		(*leave)()
	}
}

// WatchRequest returns a context that ends when the client of a forwarded request leaves the
// node that it is connected to, or with ctx, or when done is called.
func (n *Nodes) WatchRequest(ctx context.Context, request string) (_ context.Context, done func()) {
	return n.leavers.watch(ctx, request)
}

// watch is [Nodes.WatchRequest].
func (l *leavers) watch(ctx context.Context, request string) (_ context.Context, done func()) {
	began := time.Now()
	ctx, leave := context.WithCancel(ctx)
	l.mu.Lock()
	if l.waiting == nil {
		l.waiting = make(map[string][]*context.CancelFunc)
	}
	l.waiting[request] = append(l.waiting[request], &leave)
	l.mu.Unlock()
	if l.hasLeft(request, began.Add(-leftFor)) {
		leave()
	}
	return ctx, func() {
		leave()
		l.mu.Lock()
		defer l.mu.Unlock()
		rest := slices.DeleteFunc(l.waiting[request], func(one *context.CancelFunc) bool { return one == &leave })
		if l.waiting[request] = rest; len(rest) == 0 {
			delete(l.waiting, request)
		}
	}
}

// leftFor is how long a node remembers that a client left another node, at the least, unless mostRemembered others have left since.
const (
	leftFor        = 10 * time.Second
	mostRemembered = 1 << 16
)

// note notes that a client, or the client of a request, has left another node. Messages
// from this node to the client may still be on their way to that node.
func (l *leavers) note(from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.left == nil || len(l.left) >= mostRemembered || now.Sub(l.since) > leftFor {
		l.left, l.leftBefore, l.since = make(map[string]time.Time), l.left, now
	}
	l.left[from] = now
}

// HasLeft reports whether a client is known to have left another node since a time.
func (n *Nodes) HasLeft(from string, since time.Time) bool { return n.leavers.hasLeft(from, since) }

// hasLeft is [Nodes.HasLeft].
func (l *leavers) hasLeft(from string, since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.left[from]
	if !ok {
		at, ok = l.leftBefore[from]
	}
	return ok && !at.Before(since)
}
