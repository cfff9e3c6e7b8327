package cluster

import "bytes"

// A receiver is the node as its bus sees it. It does not wait: its answers go through the outbox.
type receiver Node

// Gone notes that a message reached no node.
func (v *receiver) Gone(node string) { (*Node)(v).noName(node) }

// Message handles a message.
func (v *receiver) Message(m []byte) {
	n := (*Node)(v)
	k, from, body, ok := parseHead(m)
	if !ok {
		return
	}
	p := n.sender(from)
	if p == nil {
		return
	}
	r := reader{b: body}
	switch k {
	case kindBeat:
		n.onBeat(p, body)
	case kindBye:
		if p.name != n.name {
			n.lose(p, signFarewell, "has ended")
		}
	case kindPing:
		n.enqueue(p.name, n.compose(kindPong))
	case kindPong:
	case kindSent:
		n.onSent(p, r.number(), true)
	case kindArrived:
		p.flow.acknowledge(r.number())
	case kindNotice:
		n.notices.put(bytes.Clone(body))
	case kindCheck:
		n.onCheck(p, r)
	case kindHave:
		n.onHave(p, r)
	case kindOpen:
		id, window := r.conn(), r.number()
		if !r.bad {
			n.onOpen(p, id, window)
		}
	default:
		id := r.conn()
		var number uint64
		if k != kindReset {
			number = r.number()
		}
		if k == kindData {
			n.onSent(p, r.number(), false)
		}
		if r.bad {
			return
		}
		if c := n.conn(p, id); c != nil {
			n.onConn(c, k, number, r)
		} else if k != kindReset {
			n.enqueue(p.name, n.compose(kindReset).conn(id))
		}
	}
}

// onSent notes how many bytes a peer has sent. asked: the peer wants to know how many have arrived.
func (n *Node) onSent(p *peer, place uint64, asked bool) {
	if received, report := p.flow.receive(place); report || asked {
		n.enqueue(p.name, n.compose(kindArrived).number(received))
	}
}

// onConn handles a message of a connection, which begins with a number or a count.
func (n *Node) onConn(c *conn, k kind, number uint64, r reader) {
	switch k {
	case kindAccept:
		c.accepted(number)
	case kindCredit:
		next := r.number()
		if c.confirmed(next, number) {
			n.remove(c)
		}
	case kindReset:
		n.drop(c, c.reset(), false)
	case kindData, kindFin:
		over, err := c.arrive(number, r.b, k == kindFin)
		switch {
		case err != nil:
			n.drop(c, err, true)
		case over:
			n.finished(c)
		}
	}
}

// finished tells the other end, which has closed, that all its messages have arrived.
func (n *Node) finished(c *conn) {
	c.mu.Lock()
	next, granted, over := c.in.next, c.in.granted, c.state == closed
	c.mu.Unlock()
	n.enqueue(c.peer.name, n.compose(kindCredit).conn(c.id).number(granted).number(next))
	if over {
		n.remove(c)
	}
}
