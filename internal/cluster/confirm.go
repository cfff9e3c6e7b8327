package cluster

import "fmt"

// maxEarly is how many messages of a connection are held while an earlier one is missing.
const maxEarly = 4096

// checks are the counts that a connection keeps between ticks of its node: time that passes while
// the process is stopped does not count.
//
// The bus does not report lost messages. So each end asks, for all its connections to a node at
// once, whether messages have arrived that were sent before the last tick and are not confirmed,
// and now and then whether the other end is still there. An end that lacks a message waits for it
// for a while, as it may be on its way.
type checks struct {
	marked uint64 // messages handed to the bus by the last tick
	asks   int    // how often the other end was asked since its last answer; recheck sets it, so that the next tick asks
	quiet  int    // ticks since the other end last confirmed messages
	gap    int    // ticks since a message is missing
	gapAt  uint64 // the number of that message
}

// tick reports whether to ask the other end about this connection, and the number of messages that
// it should have. The error says why the connection must fail.
func (c *conn) tick() (ask bool, number uint64, err error) {
	o := &c.node.o
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != open && c.state != ended && c.state != closing || c.err != nil {
		return false, 0, nil
	}
	switch missing := c.state != ended && (len(c.in.early) > 0 || c.in.announced > c.in.next); {
	case !missing:
		c.gap = 0
	case c.gap == 0 || c.gapAt != c.in.next:
		c.gap, c.gapAt = 1, c.in.next
	default:
		c.gap++
	}
	if c.gap > o.ticks(o.Silence) {
		return false, 0, fmt.Errorf("a message of node %s did not arrive", c.peer.name)
	}
	c.quiet++
	due := c.out.confirmed < c.marked || c.starved() || c.quiet >= o.ticks(5*o.Silence)
	c.marked = c.out.handed
	if !due && c.asks == 0 {
		return false, 0, nil
	}
	if c.asks++; c.asks > o.ticks(5*o.Silence) { // the peer lives, but is slow
		return false, 0, fmt.Errorf("node %s does not say whether messages arrived", c.peer.name)
	}
	return true, c.out.handed, nil
}

// recheck makes the next tick ask the other end.
func (c *conn) recheck() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asks, c.gap = 1, 0
}

// checked notes how many messages the other end has sent. It returns the number of the next message
// that this end waits for, and the bytes that it has granted.
func (c *conn) checked(number uint64) (next, granted uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in.announced = max(c.in.announced, number)
	return c.in.next, c.in.granted
}

// confirmed notes the number of the message that the other end waits for, and the bytes that it has
// granted in all. over: this end was closed, and the other end has all its messages.
func (c *conn) confirmed(next, limit uint64) (over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.confirmed = max(c.out.confirmed, next)
	if limit > c.out.limit {
		c.out.limit = limit
		c.canWrite.Broadcast()
	}
	c.asks, c.quiet = 0, 0
	if c.state == closing && c.out.confirmed >= c.out.next {
		c.take(onConfirmed)
	}
	return c.state == closed
}

// checkConns asks the peers about all connections that need a check.
func (n *Node) checkConns() {
	n.mu.Lock()
	all := n.scratch[:0]
	for _, c := range n.conns {
		all = append(all, c)
	}
	n.mu.Unlock()
	questions := make(map[*peer]*packet)
	for _, c := range all {
		ask, number, err := c.tick()
		if err != nil {
			n.drop(c, err, true)
		}
		if !ask {
			continue
		}
		m := questions[c.peer]
		if m == nil {
			m = n.compose(kindCheck)
		}
		m.conn(c.id).number(number)
		if len(m.b) > n.chunk/4 { // the answer is twice as long
			n.enqueue(c.peer.name, m)
			m = nil
		}
		questions[c.peer] = m
	}
	for p, m := range questions {
		if m != nil {
			n.enqueue(p.name, m)
		}
	}
	clear(all)
	n.scratch = all
}

// onCheck answers a check.
func (n *Node) onCheck(p *peer, r reader) {
	answer := n.compose(kindHave)
	for len(r.b) > 0 {
		id, number := r.conn(), r.number()
		if r.bad {
			break
		}
		c := n.conn(p, id)
		if c == nil {
			n.enqueue(p.name, n.compose(kindReset).conn(id))
			continue
		}
		next, granted := c.checked(number)
		answer.conn(id).number(granted).number(next)
	}
	n.enqueue(p.name, answer)
}

// onHave takes the answer to a check.
func (n *Node) onHave(p *peer, r reader) {
	for len(r.b) > 0 {
		id, limit, next := r.conn(), r.number(), r.number()
		if r.bad {
			return
		}
		if c := n.conn(p, id); c != nil && c.confirmed(next, limit) {
			n.remove(c)
		}
	}
}
