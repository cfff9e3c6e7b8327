package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

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
	if h.sessions.Shared() {
		return h.handOver(ctx)
	}
	h.sessions.Stop()
	h.sessions.WithdrawWaiting("the server is shutting down")
	h.drainOnce.Do(func() { close(h.draining) })
	const often = 10 * time.Millisecond
	t := time.NewTicker(often)
	defer t.Stop()
	patience := max(2*h.opts.Retry, time.Second)
	for last := time.Now(); !h.sessions.Idle(patience); last = time.Now() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		// The time for which the process stood still does not count: clients that come back
		// are still waiting to be accepted.
		if late := time.Since(last) - often; late > time.Second {
			patience += late
		}
	}
	return nil
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
func (h *Handler) handOver(ctx context.Context) error {
	h.drainOnce.Do(func() {
		h.spread = spreadOf(ctx, h.opts.DrainSpread)
		if h.peers != nil {
			h.peers.node.Drain()
		}
		close(h.draining)
	})
	last := h.refuseLate(ctx)
	var away sync.WaitGroup
	if h.peers != nil {
		away.Go(func() { h.peers.disconnectAll(ctx, h.spread) })
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

// refuseLate refuses calls that might be cut, from shortly before ctx's deadline on. The
// function that it returns is called when no session is left here.
func (h *Handler) refuseLate(ctx context.Context) (last func()) {
	ctx, stop := context.WithCancel(ctx)
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		var release context.CancelFunc
		ctx, release = context.WithTimeout(ctx, left-min(left/6, mostLate))
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

// alone reports whether there is nobody to take sessions over.
func (h *Handler) alone() bool { return h.peers == nil || len(h.peers.node.Peers()) == 0 }

// isLeaving reports whether this node takes no requests any more, not even to forward them.
func (h *Handler) isLeaving() bool {
	select {
	case <-h.leaving:
		return true
	default:
		return false
	}
}

// disconnectAll disconnects the clients whose requests are forwarded to other nodes, so that
// they come back to another node: over the time spread those that only listen, then
// WebSockets, and when ctx is done all others. A client that has nothing to resume its
// requests by yet keeps its connection for a little longer. disconnectAll returns when no
// such client is left.
func (p *peers) disconnectAll(ctx context.Context, spread time.Duration) {
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
		busy := len(p.placements) + len(p.bridges)
		for x := range p.placements {
			at, known := left[x]
			if !known {
				at = begun.Add(rand.N(spread + 1))
				left[x] = at
			}
			if x.leaving.due(time.Now().After(at), !over.IsZero(), gone) {
				x.leaving.begin()
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

// errLeaving says that a client is disconnected because its node is drained.
var errLeaving = errors.New("the node is drained")

// A departure is how the client of a placement is disconnected when its node is drained.
//
//	state      | what it is                                               | next
//	-----------|----------------------------------------------------------|--------------------
//	canAsk     | the client can resume its request                        | listening, departing
//	mustWait   | it made requests, and has no event id to resume by       | canAsk, departing
//	listening  | it has no request in flight                              | departing
//	departing  | it is being disconnected                                 |
//
// Its methods may be called concurrently.
type departure struct {
	state  atomic.Int32
	cancel atomic.Pointer[context.CancelFunc] // of what is forwarded
}

const (
	canAsk int32 = iota
	mustWait
	listening
	departing
)

// waits, hasID and listens note what the client does. They change nothing once it departs.
func (d *departure) waits()   { d.state.CompareAndSwap(canAsk, mustWait) }
func (d *departure) hasID()   { d.state.CompareAndSwap(mustWait, canAsk) }
func (d *departure) listens() { d.state.CompareAndSwap(canAsk, listening) }

// due reports whether the client is to be disconnected: its turn has come, the time of the
// drain is over, or the grace after that.
func (d *departure) due(turn, over, gone bool) bool {
	switch d.state.Load() {
	case mustWait:
		return gone
	case listening:
		return turn || over || gone
	}
	return over || gone
}

// begin disconnects the client.
func (d *departure) begin() {
	d.state.Store(departing)
	if cancel := d.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}

// begun reports whether the client is being disconnected.
func (d *departure) begun() bool { return d.state.Load() == departing }

// cancels sets the function that cancels the request which is forwarded from now on. It is
// false if the client is being disconnected.
func (d *departure) cancels(cancel *context.CancelFunc) bool {
	d.cancel.Store(cancel)
	return !d.begun()
}
