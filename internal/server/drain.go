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

// errLeaving says that a client is sent away because its node is drained.
var errLeaving = errors.New("the node is drained")

// A departure is how the client of a placement can be sent away when its node is drained.
//
//	state      | what it is                                               | next
//	-----------|----------------------------------------------------------|--------------------
//	canAsk     | the client can ask for what becomes of its request       | listening, departing
//	mustWait   | it made requests, and has no event id to ask by          | canAsk, departing
//	listening  | it waits for nothing in particular                       | departing
//	departing  | it is being sent away                                    |
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

// waits, told and listens note what the client does. They change nothing once it departs.
func (d *departure) waits()   { d.state.CompareAndSwap(canAsk, mustWait) }
func (d *departure) told()    { d.state.CompareAndSwap(mustWait, canAsk) }
func (d *departure) listens() { d.state.CompareAndSwap(canAsk, listening) }

// due reports whether the client is to be sent away: its turn has come, the time of the
// drain is over, or nothing is waited for any more.
func (d *departure) due(turn, over, gone bool) bool {
	switch d.state.Load() {
	case mustWait:
		return gone
	case listening:
		return turn || over || gone
	}
	return over || gone
}

// begin sends the client away.
func (d *departure) begin() {
	d.state.Store(departing)
	if cancel := d.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}

// begun reports whether the client is being sent away.
func (d *departure) begun() bool { return d.state.Load() == departing }

// cancels sets what cancels what is forwarded from now on. It is false if the client is
// being sent away.
func (d *departure) cancels(cancel *context.CancelFunc) bool {
	d.cancel.Store(cancel)
	return !d.begun()
}
