package cluster

import (
	"slices"
	"time"
)

// run is the node's clock: it says that the node lives, asks who is silent, and
// looks after connections.
func (n *Node) run() {
	n.beat(beatHello)
	c := clock{node: n, due: n.now() + n.o.tick(), wall: time.Now().Round(0), mono: n.now()}
	timer := time.NewTimer(n.o.tick())
	defer timer.Stop()
	for {
		select {
		case <-n.closed:
			return
		case <-timer.C:
		case <-n.hurry:
		}
		doubtful := c.doubts()
		if n.now() >= c.due {
			c.tick()
			c.due = n.now() + n.o.tick()
		}
		next := max(c.due-n.now(), 0)
		if doubtful {
			next = min(next, n.o.Doubt/2)
		}
		timer.Reset(next)
	}
}

// A clock is what run remembers.
type clock struct {
	node  *Node
	count int
	due   time.Duration // the next tick
	wall  time.Time     // at the last one
	mono  time.Duration
	away  time.Duration // since when the bus carries nothing; 0: it does
}

func (c *clock) tick() {
	n, now, wall := c.node, c.node.now(), time.Now().Round(0)
	// A process that was stopped sees its ticks late; on a machine that was, the
	// monotonic clock may have stood still.
	late := max(now-c.due, wall.Sub(c.wall)-(now-c.mono))
	c.wall, c.mono = wall, now
	if late > n.o.jump() {
		n.wake("this process was stopped", late)
	}
	c.count++
	if c.count%2 == 0 {
		n.beat(0)
	}
	if c.isAway(now) {
		return // nobody can be heard of
	}
	c.peers(now)
	n.checkConns()
}

// isAway says whether the bus carries nothing.
func (c *clock) isAway(now time.Duration) bool {
	n := c.node
	switch well := n.well(now, now-n.o.jump()); {
	case well && c.away == 0:
		return false
	case well:
		n.health.woke.Store(int64(now))
		n.wake("the bus was away", now-c.away)
		c.away = 0
		return false
	case c.away == 0:
		c.away = max(now, 1)
		if echo := time.Duration(n.health.echo.Load()); echo != 0 {
			c.away = echo
		}
		n.log.Warn("cluster: the bus carries nothing")
	case now-c.away > 5*n.o.Silence:
		n.loseAll()
	}
	return true
}

// peers asks who is silent, and gives up who has been for too long.
func (c *clock) peers(now time.Duration) {
	n := c.node
	var ask, lost, held []*peer
	n.mu.Lock()
	// That a node was killed is heard of when it is sent a message, so who has a
	// connection to it asks as soon as a heartbeat is late.
	linked := make(map[*peer]bool)
	for _, c := range n.conns {
		linked[c.peer] = true
	}
	for name, p := range n.peers {
		silent := now - time.Duration(p.heard.Load())
		if _, waits := p.flow.held(); waits {
			held = append(held, p)
		}
		switch state := p.state.Load(); {
		case name == n.name:
		case state == alive && silent > n.o.Silence+2*n.o.Answer:
			lost = append(lost, p)
		case state == alive && (silent > 2*n.o.Heartbeat || linked[p] && silent > n.o.Heartbeat):
			ask = append(ask, p)
		case p.users.Load() > 0:
		case state == strange, p.lost() && now-p.lostAt > remembered:
			delete(n.peers, name)
		}
	}
	n.mu.Unlock()
	for _, p := range ask {
		n.post(p.name, n.compose(kindPing))
	}
	for _, p := range held {
		p.flow.free(0) // those who were called may have given up
		sent, _ := p.flow.held()
		n.post(p.name, n.compose(kindSent).number(sent))
	}
	for _, p := range lost {
		n.lose(p, gone, "does not answer")
	}
}

// doubts asks again those of whom the bus said that nobody has their name, and says
// whether there are any.
func (c *clock) doubts() bool {
	n := c.node
	var ask []*peer
	n.mu.Lock()
	for _, p := range n.peers {
		if p.nobody != 0 && p.state.Load() == alive {
			ask = append(ask, p)
		}
	}
	n.mu.Unlock()
	for _, p := range ask {
		n.post(p.name, n.compose(kindPing))
	}
	return len(ask) > 0
}

// beat says that this node lives.
func (n *Node) beat(flags byte) {
	n.mu.Lock()
	if n.drained {
		flags |= beatDraining
	}
	n.mu.Unlock()
	n.post("", n.compose(kindBeat).bytes(flags))
}

// onBeat hears that another lives.
func (n *Node) onBeat(p *peer, body []byte) {
	if len(body) == 0 {
		return
	}
	n.mu.Lock()
	p.met = true
	p.draining = body[0]&beatDraining != 0
	flags := byte(0)
	if n.drained {
		flags = beatDraining
	}
	n.mu.Unlock()
	if body[0]&beatHello != 0 && p.name != n.name {
		n.post(p.name, n.compose(kindBeat).bytes(flags))
	}
}

// wake is called when this node has heard nothing for a while for reasons of its
// own: the others are given time to be heard of.
func (n *Node) wake(why string, away time.Duration) {
	now := n.now()
	n.mu.Lock()
	for _, p := range n.peers {
		if p.state.Load() == alive {
			p.heard.Store(int64(now))
			p.nobody = 0
		}
	}
	if echo := &n.health.echo; echo.Load() != 0 {
		echo.Store(int64(now))
	}
	all := n.allConns()
	wakes := slices.Clone(n.wakes)
	n.mu.Unlock()
	for _, c := range all {
		c.doubt()
	}
	n.log.Warn("cluster: "+why, "for", away.Round(time.Millisecond))
	if away < n.o.jump() {
		return // nobody can have missed this node
	}
	n.told.put(func() {
		for _, f := range wakes {
			f()
		}
	})
}

// loseAll ends all connections: the bus has carried nothing for too long.
func (n *Node) loseAll() {
	n.mu.Lock()
	all := n.allConns()
	n.mu.Unlock()
	for _, c := range all {
		n.drop(c, errAway, false)
	}
}

// OnWake has f called, from a goroutine of the Node, when this node has been away:
// its process was stopped, or the bus carried nothing, for so long that others may
// think it gone.
func (n *Node) OnWake(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wakes = append(n.wakes, f)
}
