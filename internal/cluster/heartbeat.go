package cluster

import (
	"slices"
	"time"
)

// run is the node's clock: it sends heartbeats, pings silent peers, and checks connections.
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
		case <-n.wakeClock:
		}
		next := c.ask()
		if n.now() >= c.due {
			c.tick()
			c.due = n.now() + n.o.tick()
		}
		timer.Reset(max(min(next, c.due)-n.now(), 0))
	}
}

// A clock is the state of run.
type clock struct {
	node  *Node
	count int
	due   time.Duration // the next tick
	wall  time.Time     // at the last one
	mono  time.Duration
	away  time.Duration // since when the bus carries no messages; 0: it carries them
}

func (c *clock) tick() {
	n, now, wall := c.node, c.node.now(), time.Now().Round(0)
	// A process that was stopped sees its ticks late. On a machine that was stopped, the monotonic
	// clock may have stood still.
	late := max(now-c.due, wall.Sub(c.wall)-(now-c.mono))
	c.wall, c.mono = wall, now
	if late > n.o.jump() {
		n.wake(late)
		n.log.Warn("this process stood still: other nodes may have taken its sessions over", "for", late.Round(time.Millisecond))
	}
	c.count++
	if c.count%2 == 0 {
		n.beat(0)
	}
	if c.isAway(now) {
		return // silence is no sign now
	}
	c.peers(now)
	n.checkConns()
}

// isAway reports whether the bus carries no messages.
func (c *clock) isAway(now time.Duration) bool {
	n := c.node
	switch well := n.busWorks(now, now-n.o.jump()); {
	case well && c.away == 0:
		return false
	case well:
		n.health.returned.Store(int64(now))
		n.wake(now - c.away)
		if n.o.Bus != nil {
			n.o.Bus(false)
		} else {
			n.log.Info("cluster: messages of nodes come through again", "for", (now - c.away).Round(time.Millisecond))
		}
		c.away = 0
		return false
	case c.away == 0:
		c.away = max(now, 1)
		if echo := time.Duration(n.health.echo.Load()); echo != 0 {
			c.away = echo
		}
		if n.o.Bus != nil {
			n.o.Bus(true)
		} else {
			n.log.Warn("cluster: no message of nodes comes through")
		}
		n.doubt()
	case now-c.away > 5*n.o.Silence:
		n.loseAll()
	}
	return true
}

// ask pings the suspected peers, and the peers that it suspects from now on. It returns the time of
// its next call: that of the next tick, or an earlier one.
func (c *clock) ask() (next time.Duration) {
	n, now := c.node, c.node.now()
	next = c.due
	if now-c.due > n.o.jump() {
		return next // this process was stopped
	}
	var ask []*peer
	n.mu.Lock()
	for _, p := range n.peers {
		if p.name == n.name {
			continue
		}
		switch p.is() {
		case suspected:
			if p.nameless == 0 {
				continue // it is pinged at ticks
			}
			ask = append(ask, p)
			next = min(next, now+n.o.Grace/2)
			if end := p.nameless + n.grace(now); end > now {
				next = min(next, end) // no caller waits for longer than that
			}
		case alive:
			late := time.Duration(p.seen.Load()) + n.o.late(p.conns > 0)
			if c.away != 0 {
				continue // the bus carries no messages: silence is no sign
			}
			if late > now {
				next = min(next, late)
				continue
			}
			p.take(signSilence)
			p.asked = now
			ask = append(ask, p)
		}
	}
	n.mu.Unlock()
	for _, p := range ask {
		n.enqueue(p.name, n.compose(kindPing))
	}
	return next
}

// late is how long a peer may send no message before it is pinged. Some buses say that a node was
// killed only when a message is sent to it. So a node that has connections to the peer pings it as
// soon as a heartbeat is late.
func (o *Options) late(connected bool) time.Duration {
	if connected {
		return o.Heartbeat + o.Heartbeat/10
	}
	return 2 * o.Heartbeat
}

// peers pings silent peers again, and gives up the peers that were silent for too long.
func (c *clock) peers(now time.Duration) {
	n := c.node
	var ask, lost, held []*peer
	n.mu.Lock()
	for name, p := range n.peers {
		if _, waits := p.flow.blocked(); waits {
			held = append(held, p)
		}
		switch state := p.is(); {
		case name == n.name:
		case state == suspected && p.asked == 0:
			if p.silence(now) > n.o.late(p.conns > 0) {
				p.asked = now
			}
		case state == suspected && !p.excused && n.health.stalledSince(p.asked): // the pings may be lost, and the pongs
			p.asked, p.excused = now, true
			ask = append(ask, p)
		case state == suspected && p.silence(now) > n.o.Silence && now-p.asked >= 2*n.o.Answer && n.busWorks(now, p.asked+n.o.Answer):
			lost = append(lost, p)
		case state == suspected:
			ask = append(ask, p)
		case state == alive, p.users.Load() > 0:
		case state == unknown, p.lost() && now-p.lostAt > remembered:
			delete(n.peers, name)
		}
	}
	n.mu.Unlock()
	for _, p := range ask {
		n.enqueue(p.name, n.compose(kindPing))
	}
	for _, p := range held {
		p.flow.acknowledge(0) // admitted connections may have given up
		sent, _ := p.flow.blocked()
		n.enqueue(p.name, n.compose(kindSent).number(sent))
	}
	for _, p := range lost {
		n.lose(p, signNoAnswer, "does not answer")
	}
}

// beat sends a heartbeat to all nodes.
func (n *Node) beat(flags byte) { n.enqueue("", n.composeBeat(flags)) }

// onBeat handles the heartbeat of another node.
func (n *Node) onBeat(p *peer, body []byte) {
	if len(body) == 0 {
		return
	}
	n.mu.Lock()
	p.beats = true
	was := p.draining
	if p.draining = body[0]&beatDraining != 0; p.draining && !was {
		n.changes++
	}
	p.onLoad(reader{b: body[1:]})
	n.mu.Unlock()
	if body[0]&beatHello != 0 && p.name != n.name {
		n.enqueue(p.name, n.composeBeat(0))
	}
}

// wake is called when this node itself is the reason that no message has come for a while: all its
// peers get time to send one, also the peers that seemed gone before.
func (n *Node) wake(away time.Duration) {
	now := n.now()
	n.mu.Lock()
	for _, p := range n.peers {
		if s := p.is(); s == alive || s == suspected || s == gone {
			p.seen.Store(int64(now))
			p.take(signAwake)
		}
	}
	if echo := &n.health.echo; echo.Load() != 0 {
		echo.Store(int64(now))
	}
	all := n.allConns()
	wakes := slices.Clone(n.wakes)
	n.mu.Unlock()
	for _, c := range all {
		c.recheck()
	}
	if away < n.o.jump() {
		return // too short for another node to take this one for gone
	}
	n.events.put(func() {
		for _, f := range wakes {
			f()
		}
	})
}

// loseAll ends all connections: the bus has carried no messages for too long.
func (n *Node) loseAll() {
	n.mu.Lock()
	all := n.allConns()
	n.mu.Unlock()
	for _, c := range all {
		n.drop(c, errAway, false)
	}
}

// doubt suspects peers that seemed gone, so that they are pinged again: while the bus carries no
// messages, they may come back unheard.
func (n *Node) doubt() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.peers {
		if p.is() == gone {
			p.seen.Store(int64(n.now()))
			p.take(signAwake)
		}
	}
}

// OnWake registers f, which a goroutine of the Node calls after this node was away: its process was
// stopped, or the bus carried no messages, for so long that other nodes may take it for gone.
func (n *Node) OnWake(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wakes = append(n.wakes, f)
}
