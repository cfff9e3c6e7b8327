package placement

import (
	"slices"
	"time"

	"holdfast/internal/limit"
)

// numbersInNotice is how many numbers fit into one notice: the smallest message size of
// any bus is 4 KiB.
const numbersInNotice = 12

// tellLimits sends this node's changed counts to the other nodes, until Close.
func (n *Nodes) tellLimits() {
	t := time.NewTicker(limit.ShareEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-n.quit:
			return
		}
		all := n.opts.Limits.Changes()
		if len(all) == 0 {
			continue
		}
		for _, to := range n.node.Peers() {
			for some := range slices.Chunk(all, numbersInNotice) {
				n.notify(to, &notice{Node: n.node.Name(), Limits: some})
			}
		}
	}
}
