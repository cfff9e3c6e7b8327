package placement

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"holdfast/internal/reading"
	"holdfast/stream"
)

// sweepEvery is how often one of the nodes looks for sessions without an owner, beside the
// sweeps after a node is lost. The engine lists all sessions for a sweep. That takes at most one
// part in sweepShare of the time, unless sweeps would then be further apart than sweepAtLeast.
const (
	sweepEvery   = 30 * time.Second
	sweepShare   = 20
	sweepAtLeast = 10 * time.Minute
)

// sweepAfter is how long a sweep waits after a node is lost. Before that, clients'
// requests take over the sessions that they need.
const sweepAfter = 200 * time.Millisecond

// sweepAgain is the time from a sweep that failed to the next try.
const sweepAgain = 2 * time.Second

// sweep takes over the sessions of nodes that are lost: this node's share when a node is lost,
// and from time to time all of them.
func (n *Nodes) sweep() {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		mine, all := n.mine, false
		select {
		case <-n.quit:
			return
		case <-n.lost: // all nodes notice the loss at the same time, and take their shares
			if !n.sleep(sweepAfter) {
				return
			}
		case <-t.C:
			mine, all = func(stream.SessionKey) bool { return true }, true
		}
		begun := time.Now()
		if !n.isDraining() && !n.sweepOnce(mine) {
			time.AfterFunc(sweepAgain, func() { reading.Wake(n.lost) })
		}
		if all {
			every := min(max(sweepEvery, sweepShare*time.Since(begun)), sweepAtLeast) * time.Duration(1+len(n.node.Peers()))
			if n.sessions.Finder.Alone() {
				every = sweepAtLeast
			}
			t.Reset(every*3/4 + rand.N(every/2))
		}
	}
}

// sleep waits for d. It returns false if Close was called meanwhile.
func (n *Nodes) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-n.quit:
		return false
	}
}

// sweepOnce takes over the sessions without an owner for which mine is true. It returns
// false after an error of the store.
func (n *Nodes) sweepOnce(mine func(stream.SessionKey) bool) bool {
	ctx, stop := n.until(10 * time.Minute)
	defer stop()
	gone := func(name string) bool { return n.node.Gone(ctx, name) }
	err := n.sessions.Finder.Sweep(ctx, gone, mine)
	if err != nil && ctx.Err() == nil {
		n.opts.Logger.Warn("sessions of lost nodes not all taken over; tried again soon", "error", err)
	}
	return err == nil
}

// mine reports whether a session is in this node's share: living nodes agree on the shares
// by rendezvous hashing.
func (n *Nodes) mine(key stream.SessionKey) bool {
	me := weight(n.node.Name(), key)
	for _, name := range n.node.Peers() {
		if weight(name, key) > me {
			return false
		}
	}
	return true
}

func weight(node string, key stream.SessionKey) uint64 {
	sum := fnv.New64a()
	_, _ = fmt.Fprintf(sum, "%s %s", key, node)
	return mix(sum.Sum64())
}

// mix spreads a sum's last bytes over all of it.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
