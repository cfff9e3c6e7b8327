package cluster

// Conns returns how many connections a node has.
func (n *Node) Conns() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns)
}
