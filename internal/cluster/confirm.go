package cluster

import "fmt"

// maxEarly is how many messages of a connection are held for one that is missing.
const maxEarly = 4096

// checks is what a connection remembers between ticks of its node: time that passes
// while the process is stopped does not count.
//
// Nothing says that a message was lost, so each end asks, for all its connections
// to a node at once, whether those messages have come that nobody confirmed since
// the last tick, and now and then whether the other end is still there. An end that
// lacks a message waits for it for a while, as it may be on its way.
type checks struct {
	marked uint64 // handed to the bus, at the last tick
	asks   int    // how often the other end was asked since its last answer, or is to be
	quiet  int    // ticks since the other end last confirmed anything
	gap    int    // ticks since the message is missing
	gapAt  uint64 // that has this number
}

// tick reports whether to ask the other end about this connection, and what it should
// have; or why the connection must fail.
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
	if c.asks++; c.asks > o.ticks(5*o.Silence) { // it lives, but is slow
		return false, 0, fmt.Errorf("node %s does not say whether messages arrived", c.peer.name)
	}
	return true, c.out.handed, nil
}

// recheck has the other end asked at the next tick.
func (c *conn) recheck() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asks, c.gap = 1, 0
}

// checked notes what the other end has sent, and returns what has come of it.
func (c *conn) checked(number uint64) (next, granted uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in.announced = max(c.in.announced, number)
	return c.in.next, c.in.granted
}

// confirmed notes what the other end waits for, and for how many bytes it has room in
// all. over: this end was closed, and the other has all.
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

// checkConns asks the peers about all connections that need it.
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

// onHave hears the answer.
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
