// Package life has the stages in the life of a node: it takes sessions on, unless it is a door; it is drained; and it leaves.
package life

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"holdfast/internal/departure"
	"holdfast/internal/placement"
	"holdfast/internal/session"
)

// A Life is the life of one node. Its methods may be called concurrently.
type Life struct {
	Sessions *departure.Departure
	Nodes    *placement.Nodes // nil if this node is alone. Set before the first request
	Door     bool             // the node owns no sessions
	Retry    time.Duration    // how long clients are told to wait before they come back
	Spread   time.Duration    // the most over which a drain disconnects clients

	drainOnce sync.Once
	draining  chan struct{}
	leaveOnce sync.Once
	leaving   chan struct{}
	spread    time.Duration // over which a drain disconnects clients; set before draining is closed
}

// Begin begins the life, after its fields were set.
func (l *Life) Begin() { l.draining, l.leaving = make(chan struct{}), make(chan struct{}) }

// mostDelay bounds the extra retry time for a client after its session has left.
const mostDelay = 5 * time.Second

// mostLate bounds the time at the end of a drain in which calls that might be cut are refused.
const mostLate = 2 * time.Second

// Drain ends the work of the node. From now on it refuses new sessions and calls. Clients that
// only listen are disconnected, with a time after which they may reconnect.
//
// Where the store is not shared, Drain returns when no call is in flight, no client is connected, and the clients of calls that
// have ended since have had the time to come back. Where it is shared, Drain hands all sessions over to other nodes, and calls in
// flight go on here until they have ended. If ctx is done first, Drain returns its error. The caller closes the sessions' manager afterwards.
func (l *Life) Drain(ctx context.Context) error {
	if l.Sessions.Shared {
		return l.handOver(ctx)
	}
	l.Sessions.Stop()
	l.drainOnce.Do(func() { close(l.draining) })
	return l.Sessions.AwaitIdle(ctx, max(2*l.Retry, time.Second))
}

// spreadOf returns the time over which clients are disconnected in a drain that ends with ctx:
// a third of the time left, at most most.
func spreadOf(ctx context.Context, most time.Duration) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return most
	}
	return max(0, min(time.Until(end)/3, most))
}

// handOver drains a node with a shared store: other nodes, or the next process, take its sessions over. Until ctx is done, calls
// in flight and requests that are forwarded to other nodes go on here.
func (l *Life) handOver(ctx context.Context) error {
	l.drainOnce.Do(func() {
		l.spread = spreadOf(ctx, l.Spread)
		if l.Nodes != nil {
			l.Nodes.Drain()
		}
		close(l.draining)
	})
	last := l.refuseLate(ctx)
	var away sync.WaitGroup
	if l.Nodes != nil {
		away.Go(func() { l.Nodes.Disconnect(ctx, l.spread) })
	}
	l.Sessions.DrainAlone(ctx, l.IsAlone)
	if l.IsAlone() {
		l.leave()
	}
	err := l.Sessions.HandOver(ctx)
	away.Wait()
	last()
	return err
}

// refuseLate refuses calls that might be cut, from shortly before ctx's deadline on. The
// caller calls last when no session is left here.
func (l *Life) refuseLate(ctx context.Context) (last func()) {
	var stop context.CancelFunc
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		ctx, stop = context.WithTimeout(ctx, left-min(left/6, mostLate))
	} else {
		ctx, stop = context.WithCancel(ctx)
	}
	var done sync.WaitGroup
	done.Go(func() {
		<-ctx.Done()
		l.Sessions.RefuseUnsafe()
		if !l.IsAlone() {
			l.leave()
		}
	})
	return func() {
		stop()
		done.Wait()
	}
}

// Leaving returns a channel that is closed when the node takes no more requests, as it is about to end: if there are other
// nodes, shortly before the time of [Life.Drain] is over, or when no session is left; if there are none, when calls in flight
// have ended or that time is over. From then on requests are refused with 503, which some clients take for the end of their
// session, so the listener is better closed. Where the store is not shared, the channel stays open.
func (l *Life) Leaving() <-chan struct{} { return l.leaving }

func (l *Life) leave() { l.leaveOnce.Do(func() { close(l.leaving) }) }

// Draining returns a channel that is closed when the node takes on no new sessions.
func (l *Life) Draining() <-chan struct{} { return l.draining }

// IsAlone reports whether there is no other node to take sessions over.
func (l *Life) IsAlone() bool { return l.Nodes == nil || l.Nodes.Alone() }

// IsDraining reports whether the node takes on no new sessions.
func (l *Life) IsDraining() bool { return isClosed(l.draining) }

// IsLeaving reports whether the node takes no more requests, not even to forward them.
func (l *Life) IsLeaving() bool { return isClosed(l.leaving) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Departure returns the time to disconnect a client that waits for no call; zero: it may stay, until again is closed. While no other node is
// there to take its session over, it stays until requests in flight have ended: once it has left it might find no node. listens says that it has
// such a request itself, for messages alone.
func (l *Life) Departure(now time.Time, listens bool) (at time.Time, again <-chan struct{}) {
	switch {
	case !l.IsDraining():
		return at, l.draining
	case !listens && l.Sessions.Shared && l.IsAlone() && !l.IsLeaving():
		return at, l.leaving
	}
	return now.Add(rand.N(l.spread + 1)), nil
}

// Delay returns a random time that a client waits longer before it comes back for a session that has left a drained node, so
// that clients come one after the other.
func (l *Life) Delay() time.Duration { return rand.N(min(l.spread, mostDelay) + 1) }

// TakesNothing reports whether no session may begin on this node or come here.
func (l *Life) TakesNothing() bool { return l.Door || l.IsDraining() }

// NotHere returns the error for a request that would begin a session on this node, which takes none.
func (l *Life) NotHere() error {
	if l.Door {
		return placement.NoWorker{}
	}
	return session.ErrClosing
}
