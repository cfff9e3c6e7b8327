package cluster

import "bytes"

// An ear is the node as its bus sees it. It does not wait: what it answers goes
// through the outbox.
type ear Node

// Gone hears that a message found nobody.
func (e *ear) Gone(node string) { (*Node)(e).nobody(node) }

// Message hears a message.
func (e *ear) Message(m []byte) {
	n := (*Node)(e)
	k, from, body, ok := parseHead(m)
	if !ok {
		return
	}
	p := n.hear(from)
	if p == nil {
		return
	}
	r := reader{b: body}
	switch k {
	case kindBeat:
		n.onBeat(p, body)
	case kindBye:
		if p.name != n.name {
			n.lose(p, left, "has ended")
		}
	case kindPing:
		n.post(p.name, n.compose(kindPong))
	case kindPong:
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
		if r.bad {
			return
		}
		if c := n.conn(p, id); c != nil {
			n.onConn(c, k, r)
		} else if k != kindReset {
			n.post(p.name, n.compose(kindReset).conn(id))
		}
	}
}

// onConn hears a message of a connection.
func (n *Node) onConn(c *conn, k kind, r reader) {
	number := r.number()
	if r.bad && k != kindReset {
		return
	}
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
			n.onFin(c)
		}
	}
}

// onFin tells the other end that all has arrived.
func (n *Node) onFin(c *conn) {
	c.mu.Lock()
	next, granted, closed := c.next, c.granted, c.closed
	c.mu.Unlock()
	n.post(c.peer.name, n.compose(kindCredit).conn(c.id).number(granted).number(next))
	if closed {
		n.remove(c)
	}
}
