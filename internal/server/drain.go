package server

import (
	"context"
	"sync"
	"time"

	"holdfast/internal/placement"
	"holdfast/internal/session"
)

// A life is how long this node takes part: it takes sessions on, unless it is a door; it is drained; and it leaves.
type life struct {
	sessions   *session.Manager
	nodes      *placement.Nodes // nil where there is no other node
	role       Role
	retry      time.Duration
	mostSpread time.Duration

	drainOnce sync.Once
	draining  chan struct{}
	leaveOnce sync.Once
	leaving   chan struct{} // closed when nothing is taken any more, as others do
	spread    time.Duration // over which clients are sent away when draining; set before that
}

// begin begins the life of a node.
func (l *life) begin(opts *Options) {
	l.sessions, l.role, l.retry, l.mostSpread = opts.Manager, opts.Role, opts.Retry, opts.DrainSpread
	l.draining, l.leaving = make(chan struct{}), make(chan struct{})
}

// mostDelay bounds the retry time that is sent to a client whose session is on another node
// already.
const mostDelay = 5 * time.Second

// mostLate bounds the time at the end of a drain in which calls are refused that might be
// cut.
const mostLate = 2 * time.Second

// Drain ends the work of this node. From now on it refuses new sessions and calls. Clients that
// only listen are disconnected, with a time after which they may reconnect.
//
// Where the store is not shared, Drain returns when no call is in flight, no client is
// connected, and the clients of calls that have ended since have had the time to come back.
// Where it is shared, Drain hands all sessions over to other nodes, and calls in flight go on
// here until they have ended. If ctx is done first, Drain returns its error. The Manager is
// to be closed afterwards.
func (h *Handler) Drain(ctx context.Context) error {
	l := &h.life
	if l.sessions.Departure.Shared {
		return l.handOver(ctx)
	}
	l.sessions.Departure.Stop()
	l.drainOnce.Do(func() { close(l.draining) })
	return l.sessions.Departure.AwaitIdle(ctx, max(2*l.retry, time.Second))
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

// handOver drains a node with a shared store: other nodes take its sessions over, or the
// process that is started next. Until ctx is done, calls in flight go on here, and so do
// requests that are forwarded to other nodes.
func (l *life) handOver(ctx context.Context) error {
	l.drainOnce.Do(func() {
		l.spread = spreadOf(ctx, l.mostSpread)
		if l.nodes != nil {
			l.nodes.Drain()
		}
		close(l.draining)
	})
	last := l.refuseLate(ctx)
	var away sync.WaitGroup
	if l.nodes != nil {
		away.Go(func() { l.nodes.Disconnect(ctx, l.spread) })
	}
	l.sessions.Departure.DrainAlone(ctx, l.alone)
	if l.alone() {
		l.leave()
	}
	err := l.sessions.Departure.HandOver(ctx)
	away.Wait()
	last()
	return err
}

// refuseLate refuses calls that might be cut, from shortly before ctx's deadline on. The
// function that it returns is called when no session is left here.
func (l *life) refuseLate(ctx context.Context) (last func()) {
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
		l.sessions.Departure.RefuseUnsafe()
		if !l.alone() {
			l.leave()
		}
	})
	return func() {
		stop()
		done.Wait()
	}
}

// Leaving is closed when the handler takes no more requests, as it is about to end:
// where there are other nodes, shortly before the time of [Handler.Drain] is over, or
// when nothing is left; where there is none, when calls in flight have ended or that
// time is over. From then on they are refused with 503, which some clients take for the
// end, so a listener is better closed. It stays open where the store is not shared.
func (h *Handler) Leaving() <-chan struct{} { return h.life.leaving }

func (l *life) leave() { l.leaveOnce.Do(func() { close(l.leaving) }) }

// alone reports whether there is nobody to take sessions over.
func (l *life) alone() bool { return l.nodes == nil || l.nodes.Alone() }

// isDraining reports whether nothing new is taken on.
func (l *life) isDraining() bool { return isClosed(l.draining) }

// isLeaving reports whether this node takes no requests any more, not even to forward them.
func (l *life) isLeaving() bool { return isClosed(l.leaving) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
