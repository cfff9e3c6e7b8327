package drain

import (
	"context"
	"sync"
	"time"
)

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
