// Package life is how long a node takes part: it takes sessions on, unless it is a door; it is drained; and it leaves.
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

// A Life is that of one node. Its methods may be called concurrently.
type Life struct {
	Sessions *departure.Departure
	Nodes    *placement.Nodes // nil where there is no other node. It is set before there is a request
	Door     bool             // the node owns no sessions
	Retry    time.Duration    // what clients are told to wait before they come back
	Spread   time.Duration    // the most over which a drain disconnects clients

	drainOnce sync.Once
	draining  chan struct{}
	leaveOnce sync.Once
	leaving   chan struct{}
	spread    time.Duration // over which clients are sent away when draining; set before that
}

// Begin begins the life, whose fields are set.
func (l *Life) Begin() { l.draining, l.leaving = make(chan struct{}), make(chan struct{}) }

// mostDelay bounds the retry time that is sent to a client whose session is on another node already.
const mostDelay = 5 * time.Second

// mostLate bounds the time at the end of a drain in which calls are refused that might be cut.
const mostLate = 2 * time.Second

// Drain ends the work of the node. From now on it refuses new sessions and calls. Clients that
// only listen are disconnected, with a time after which they may reconnect.
//
// Where the store is not shared, Drain returns when no call is in flight, no client is connected, and the clients of calls that
// have ended since have had the time to come back. Where it is shared, Drain hands all sessions over to other nodes, and calls in
// flight go on here until they have ended. If ctx is done first, Drain returns its error. The sessions' manager is to be closed
// afterwards.
func (l *Life) Drain(ctx context.Context) error {
	if l.Sessions.Shared {
		return l.handOver(ctx)
	}
	l.Sessions.Stop()
	l.drainOnce.Do(func() { close(l.draining) })
	return l.Sessions.AwaitIdle(ctx, max(2*l.Retry, time.Second))
}

// spreadOf returns the time over which clients are disconnected, if the drain ends when ctx is
// done: a third of what is left, and not more than most.
func spreadOf(ctx context.Context, most time.Duration) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return most
	}
	return max(0, min(time.Until(end)/3, most))
}

// handOver drains a node with a shared store: other nodes take its sessions over, or the process that is started next. Until ctx
// is done, calls in flight go on here, and so do requests that are forwarded to other nodes.
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
// function that it returns is called when no session is left here.
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

// Leaving is closed when the node takes no more requests, as it is about to end: where there are other nodes, shortly before the
// time of [Life.Drain] is over, or when nothing is left; where there is none, when calls in flight have ended or that time is
// over. From then on they are refused with 503, which some clients take for the end, so a listener is better closed. It stays
// open where the store is not shared.
func (l *Life) Leaving() <-chan struct{} { return l.leaving }

func (l *Life) leave() { l.leaveOnce.Do(func() { close(l.leaving) }) }

// Draining is closed when nothing new is taken on.
func (l *Life) Draining() <-chan struct{} { return l.draining }

// IsAlone reports whether there is nobody to take sessions over.
func (l *Life) IsAlone() bool { return l.Nodes == nil || l.Nodes.Alone() }

// IsDraining reports whether nothing new is taken on.
func (l *Life) IsDraining() bool { return isClosed(l.draining) }

// IsLeaving reports whether the node takes no requests any more, not even to forward them.
func (l *Life) IsLeaving() bool { return isClosed(l.leaving) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Departure returns when a client that waits for nothing is to be sent away; zero: the node is not drained yet, and drained
// is closed once it is.
func (l *Life) Departure(now time.Time) (at time.Time, drained <-chan struct{}) {
	select {
	case <-l.draining:
		return now.Add(rand.N(l.spread + 1)), nil
	default:
		return at, l.draining
	}
}

// Delay returns for how much longer a client waits than others before it comes back for a session that has left a node which
// is drained: they come one after the other.
func (l *Life) Delay() time.Duration { return rand.N(min(l.spread, mostDelay) + 1) }

// TakesNothing reports whether no session is to begin on this node, or to come here.
func (l *Life) TakesNothing() bool { return l.Door || l.IsDraining() }

// NotHere returns the error of what would begin a session on this node, which takes nothing.
func (l *Life) NotHere() error {
	if l.Door {
		return placement.NoWorker{}
	}
	return session.ErrClosing
}
