package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// mostSpread bounds the time over which clients are sent away.
const mostSpread = 15 * time.Second

// mostDelay bounds how long a client is asked to stay away whose session is elsewhere
// already.
const mostDelay = 5 * time.Second

// mostLast bounds the time at the end of a drain in which nothing is taken on any more
// that might be cut.
const mostLast = 2 * time.Second

// spreadOf is the time over which clients are sent away, if all has to be over when
// ctx is done.
func spreadOf(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return mostSpread
	}
	return max(0, min(time.Until(end)/3, mostSpread))
}

// handOver drains a node whose sessions others take over, or who comes after it.
// Calls in flight go on here until ctx is done, and so does what other nodes answer
// to clients of this one.
func (h *Handler) handOver(ctx context.Context) error {
	h.drainOnce.Do(func() {
		h.spread = spreadOf(ctx)
		if h.peers != nil {
			h.peers.node.Drain()
		}
		close(h.draining)
	})
	last := h.lastOf(ctx)
	var away sync.WaitGroup
	if h.peers != nil {
		away.Go(func() { h.peers.sendAway(ctx, h.spread) })
	}
	h.sessions.DrainAlone(ctx, h.alone)
	if h.alone() {
		h.leave()
	}
	err := h.sessions.HandOver(ctx)
	away.Wait()
	last()
	return err
}

// lastOf sees to it that calls which might be cut are refused at the end of the time
// that there is. What it returns is called when nothing is left here.
func (h *Handler) lastOf(ctx context.Context) (last func()) {
	ctx, stop := context.WithCancel(ctx)
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		var release context.CancelFunc
		ctx, release = context.WithTimeout(ctx, left-min(left/6, mostLast))
		cancel := stop
		stop = func() { release(); cancel() }
	}
	var done sync.WaitGroup
	done.Go(func() {
		<-ctx.Done()
		h.sessions.RefuseUnsafe()
		if !h.alone() {
			h.leave()
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
func (h *Handler) Leaving() <-chan struct{} { return h.leaving }

func (h *Handler) leave() { h.leaveOnce.Do(func() { close(h.leaving) }) }

// alone says whether there is nobody to take sessions over.
func (h *Handler) alone() bool { return h.peers == nil || len(h.peers.node.Peers()) == 0 }

// isLeaving says whether requests are for other nodes to take, without our help.
func (h *Handler) isLeaving() bool {
	select {
	case <-h.leaving:
		return true
	default:
		return false
	}
}

// sendAway has the clients that other nodes answer through this one come back to
// another, in parts: first those that only listen, then WebSockets, and when ctx is
// done, all; but who could not ask for what becomes of its requests is given a time to
// learn how. It returns when none is left.
func (p *peers) sendAway(ctx context.Context, spread time.Duration) {
	begun := time.Now()
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	left := make(map[any]time.Time) // when each is to leave
	var over time.Time              // when ctx was done
	for {
		if over.IsZero() && ctx.Err() != nil {
			over = time.Now()
		}
		gone := !over.IsZero() && time.Since(over) >= leaveGrace
		p.mu.Lock()
		busy := len(p.relays) + len(p.bridges)
		for rl := range p.relays {
			at, known := left[rl]
			if !known {
				at = begun.Add(rand.N(spread + 1))
				left[rl] = at
			}
			if gone || rl.listens.Load() && time.Now().After(at) || !over.IsZero() && rl.mayLeave() {
				rl.leave()
			}
		}
		var bridges []*bridge
		for b := range p.bridges {
			at, known := left[b]
			if !known {
				at = begun.Add(spread + rand.N(spread+1))
				left[b] = at
			}
			if time.Now().After(at) || !over.IsZero() {
				bridges = append(bridges, b)
			}
		}
		p.mu.Unlock()
		for _, b := range bridges {
			b.leave(websocket.StatusGoingAway, "going away; retry: 1000")
		}
		if busy == 0 || gone {
			return
		}
		if over.IsZero() {
			select {
			case <-t.C:
			case <-ctx.Done():
			}
		} else {
			<-t.C
		}
	}
}

// errLeaving says that a client is sent away because its node is drained.
var errLeaving = errors.New("the node is drained")

// mayLeave says whether the client can ask for what becomes of its request.
func (rl *relay) mayLeave() bool { return !rl.asks || rl.told.Load() }

// leave has the client that is told of a stream through this node come back. It
// may be called at any time.
func (rl *relay) leave() {
	rl.leaving.Store(true)
	if cancel := rl.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}
