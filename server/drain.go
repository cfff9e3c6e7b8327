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
	var away sync.WaitGroup
	if h.peers != nil {
		away.Go(func() { h.peers.sendAway(ctx, h.spread) })
	}
	err := h.sessions.HandOver(ctx)
	away.Wait()
	return err
}

// sendAway has the clients that other nodes answer through this one come back to
// another, in parts: first those that only listen, then WebSockets, and when ctx is
// done, all. It returns when none is left.
func (p *peers) sendAway(ctx context.Context, spread time.Duration) {
	begun := time.Now()
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	left := make(map[any]time.Time) // when each is to leave
	for {
		p.mu.Lock()
		busy := len(p.relays) + len(p.bridges)
		for rl := range p.relays {
			at, known := left[rl]
			if !known {
				at = begun.Add(rand.N(spread + 1))
				left[rl] = at
			}
			if (rl.listens.Load() && time.Now().After(at)) || ctx.Err() != nil {
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
			if time.Now().After(at) || ctx.Err() != nil {
				bridges = append(bridges, b)
			}
		}
		p.mu.Unlock()
		for _, b := range bridges {
			b.leave(websocket.StatusGoingAway, "going away; retry: 1000")
		}
		if busy == 0 || ctx.Err() != nil {
			return
		}
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// errLeaving says that a client is sent away because its node is drained.
var errLeaving = errors.New("the node is drained")

// leave has the client that is told of a stream through this node come back. It
// may be called at any time.
func (rl *relay) leave() {
	rl.leaving.Store(true)
	if cancel := rl.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}
