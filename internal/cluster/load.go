package cluster

import (
	"cmp"
	"math/rand/v2"
)

// A peerLoad is the load of a peer, as far as a node knows it.
type peerLoad struct {
	told  bool // the peer has reported a load; nodes of older builds do not
	last  Load // the load that it has reported
	given int  // sessions that this node has sent it since
}

// compare compares the loads of two peers that have reported one: calls first, then sessions.
func (l *peerLoad) compare(with *peerLoad) int {
	return cmp.Or(cmp.Compare(l.last.Calls+l.given, with.last.Calls+with.given),
		cmp.Compare(l.last.Sessions+l.given, with.last.Sessions+with.given))
}

// takes reports whether a peer takes new sessions. Node.mu is held.
func (n *Node) takes(p *peer) bool {
	return p.name != n.name && p.beats && !p.draining && !p.lost()
}

// Choose returns the name of the node with the least load among [Node.Peers]: calls in flight
// first, then sessions. It counts how often it has chosen a node since that node last reported its
// load. Nodes of older builds report no load: each of them gets an equal share. "" says that there
// is no such node.
func (n *Node) Choose() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var silent, least []*peer // without a reported load; with the same, lowest load
	told := 0
	for _, p := range n.peers {
		if !n.takes(p) {
			continue
		}
		if !p.load.told {
			silent = append(silent, p)
			continue
		}
		told++
		order := -1
		if len(least) > 0 {
			order = p.load.compare(&least[0].load)
		}
		switch {
		case order < 0:
			least = append(least[:0], p)
		case order == 0:
			least = append(least, p)
		}
	}
	if told+len(silent) == 0 {
		return ""
	}
	from := least
	if rand.N(told+len(silent)) < len(silent) {
		from = silent
	}
	p := from[rand.N(len(from))]
	p.load.given++
	return p.name
}

// composeBeat composes a heartbeat.
func (n *Node) composeBeat(flags byte) *packet {
	n.mu.Lock()
	drained := n.drained
	n.mu.Unlock()
	if drained || n.o.Door { // to nodes of older builds, which know no doors, a door is a node that drains
		flags |= beatDraining
	}
	m := n.compose(kindBeat).bytes(flags)
	if n.o.Load != nil {
		l := n.o.Load()
		m = m.number(uint64(max(l.Calls, 0))).number(uint64(max(l.Sessions, 0)))
	}
	return m
}

// onLoad notes the load that a heartbeat of the peer reports. Node.mu is held.
func (p *peer) onLoad(r reader) {
	calls, sessions := r.number(), r.number()
	if r.bad {
		p.load.told = false
		return
	}
	p.load = peerLoad{told: true, last: Load{Calls: int(min(calls, 1<<31)), Sessions: int(min(sessions, 1<<31))}}
}
